"""A short notation for drawings made of flat parts, used where a class is drawn by hand.

Marks are separated by semicolons. Each opens with a one-letter material and goes on with points:
`b 0,0 4,0 4,2` fills an outline, `b~3 0,0 4,0` draws a line of width 3, `b@2 5,5 9,5` puts discs of
radius 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from polyshot.data.toy.canvas import Canvas, Colour, Points, ellipse


@dataclass(frozen=True)
class Mark:
    """One part of a drawing."""

    material: str
    """The letter that a colour is given for."""
    line: float
    """The width of a line, 0 for a filled outline."""
    points: Points
    """The corners `[n, 2]` in the unit frame."""


def parse(text: str, unit: float = 1.0, origin: tuple[float, float] = (0, 0)) -> tuple[Mark, ...]:
    """Read a drawing; `unit` of its lengths make 1, and `origin` is put in the middle.

    With a `unit` below zero, y goes up in the notation.
    """
    axes = np.array([abs(unit), unit])
    marks = []
    for part in text.split(";"):
        head, *tokens = part.split()
        places = np.array([[float(number) for number in token.split(",")] for token in tokens])
        places = (places - np.array(origin)) / axes
        if "@" in head:
            radius = float(head[2:]) / abs(unit)
            marks += [Mark(head[0], 0, ellipse(x, y, radius, radius)) for x, y in places]
        else:
            width = float(head[2:]) / abs(unit) if "~" in head else 0
            marks.append(Mark(head[0], width, places))
    return tuple(marks)


def draw_marks(canvas: Canvas, marks: tuple[Mark, ...], colours: Mapping[str, Colour]) -> None:
    """Draw the marks in their order, each in the colour of its material."""
    for mark in marks:
        if mark.line:
            canvas.line(mark.points, mark.line, colours[mark.material])
        else:
            canvas.polygon(mark.points, colours[mark.material])
