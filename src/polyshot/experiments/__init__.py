"""The paper's tables as data, their runs, and what people look at: sheets, figures, reports."""
