"""How tables of README.md and docs/ write numbers."""

from collections.abc import Sequence

from polyshot.evaluation.compare import half_widths
from polyshot.evaluation.stats import Estimate


def percent(value: float, digits: int = 1) -> str:
    """Write a share in percent, without the sign."""
    return f"{100 * value:.{digits}f}"


def signed(value: float, digits: int = 1) -> str:
    """Write a difference in points with its sign, but 0 without."""
    text = f"{100 * value:+.{digits}f}"
    return text if float(text) else text[1:]


def gap_text(gap: Estimate, digits: int = 1) -> str:
    """Write a difference with its intervals."""
    return f"{signed(gap.value, digits)} {half_widths(gap, digits)}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Write a table."""

    def line(texts: Sequence[str]) -> str:
        return "|" + "".join(f" {text} |" if text else " |" for text in texts)

    columns = sum(name.count("|") + 1 for name in head)  # a name may stand for several
    return [line(head), "|---" * columns + "|", *map(line, rows)]
