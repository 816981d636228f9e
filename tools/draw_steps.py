"""Draw the pictures of docs/how.md as SVG: python tools/draw_steps.py docs/pictures.

The same text on every machine; a test compares the files in docs/pictures with what this draws.
"""

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

INK, SOFT, PAPER, GREY = "#24292f", "#57606a", "#ffffff", "#d0d7de"
DOMAINS = {"signs": "#c9372c", "flowers": "#a64dbf", "letters": "#1f6feb"}
"""Three sources that stand for all."""


class Picture:
    """An SVG in the making: shapes are added from the back to the front."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" font-family="sans-serif">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{SOFT}"/></marker>'
            "</defs>",
            f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
        ]

    def box(
        self,
        x: int,
        y: int,
        width: int,
        height: int,
        fill: str = "#eef1f4",
        dashed: bool = False,
        stroke: str = GREY,
    ) -> None:
        """Add a rectangle; dashed is what is thrown away."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{fill}" '
            f'stroke="{stroke}"{dash}/>'
        )

    def text(self, x: int, y: int, words: str, size: int = 13, **more: str) -> None:
        """Add a line of text, centred at x."""
        anchor, fill = more.get("anchor", "middle"), more.get("fill", INK)
        weight = f' font-weight="{more["weight"]}"' if "weight" in more else ""
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"'
            f"{weight}>{escape(words)}</text>"
        )

    def lines(self, x: int, y: int, words: Sequence[str], size: int = 12) -> None:
        """Add lines of soft text below one another, centred at x."""
        for i, line in enumerate(words):
            self.text(x, y + i * (size + 4), line, size, fill=SOFT)

    def arrow(self, x: int, y: int, to_x: int, to_y: int) -> None:
        """Add an arrow."""
        self.parts.append(
            f'<path d="M{x} {y}L{to_x} {to_y}" stroke="{SOFT}" stroke-width="1.5" fill="none" '
            'marker-end="url(#tip)"/>'
        )

    def images(self, x: int, y: int, colour: str, count: int = 3, side: int = 22) -> None:
        """Add a row of images: tiles in the colour of their domain."""
        for i in range(count):
            left = x + i * (side + 4)
            self.box(left, y, side, side, colour, stroke=colour)
            half = side // 2
            self.parts.append(
                f'<circle cx="{left + half}" cy="{y + half}" r="{side // 4}" fill="{PAPER}" '
                f'fill-opacity="{0.9 - 0.25 * (i % 3):.2f}"/>'
            )

    def network(self, x: int, y: int, colour: str | None = None, label: str = "base") -> None:
        """Add a network of four stages; with a colour, a modulator beside each."""
        for i in range(4):
            left, height = x + i * 30, 56 - i * 8
            self.box(left, y - height // 2, 22, height, "#dde3ea", stroke="#8c959f")
            if colour:
                self.box(left + 5, y - 6, 12, 12, colour, stroke=colour)
        self.text(x + 56, y + 46, label, 12, fill=SOFT)

    def svg(self) -> str:
        """Finish."""
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def base() -> str:
    """Step 1: one network learns the classes of all sources, then loses its classifier."""
    made = Picture(720, 190, "Step 1: the base learns the training classes of all sources")
    for i, (name, colour) in enumerate(DOMAINS.items()):
        made.text(20, 48 + i * 44, name, anchor="start")
        made.images(86, 33 + i * 44, colour)
        made.arrow(176, 45 + i * 44, 236, 70 + i * 18)
    made.network(250, 88)
    made.arrow(380, 88, 426, 88)
    made.box(436, 60, 84, 56)
    made.lines(478, 85, ["embedding", "512 numbers"])
    made.arrow(524, 88, 566, 88)
    made.box(576, 52, 124, 72, PAPER, dashed=True)
    made.lines(638, 80, ["classifier of all", "training classes:", "thrown away"])
    made.text(360, 172, "Step 1: one ResNet-18 for all sources", 14, weight="bold")
    return made.svg()


def modulators() -> str:
    """Step 2: with the base frozen, each source gets a modulator of its own."""
    made = Picture(720, 330, "Step 2: a modulator for each source, the base frozen")
    for i, (name, colour) in enumerate(DOMAINS.items()):
        y = 52 + i * 92
        made.text(20, y - 22, name, anchor="start")
        made.images(20, y - 12, colour, 5)
        made.arrow(158, y, 206, y)
        made.network(220, y, colour, f"base + modulator of {name}")
        made.arrow(350, y, 396, y)
        made.box(406, y - 28, 110, 56)
        made.lines(461, y - 4, ["episodes of", f"{name} alone"])
        made.arrow(520, y, 562, y)
        made.box(572, y - 28, 128, 56, PAPER, stroke=colour)
        made.lines(636, y - 4, [f"member {i + 1}", "strength by validation"], 11)
    made.text(360, 316, "Step 2: grey is frozen, colour learns", 14, weight="bold")
    return made.svg()


def selector() -> str:
    """Step 3: a small network learns which member suits a support set."""
    made = Picture(720, 210, "Step 3: the selector tells the best member from the support set")
    made.text(20, 40, "support set", anchor="start")
    for i in range(3):
        made.images(20, 50 + i * 28, DOMAINS["flowers"], 4)
    made.arrow(128, 90, 160, 90)
    made.network(172, 90)
    made.arrow(302, 90, 334, 90)
    made.box(342, 62, 84, 56)
    made.lines(384, 87, ["mean of its", "embeddings"])
    made.arrow(430, 90, 462, 90)
    made.box(470, 62, 84, 56, "#fff4d6", stroke="#d4a72c")
    made.text(512, 94, "selector")
    made.arrow(558, 90, 586, 90)
    rows = {"base": ("#8c959f", 18), **{n: (c, 10) for n, c in DOMAINS.items()}}
    for i, (name, (colour, width)) in enumerate(rows.items()):
        y, length = 44 + i * 26, 52 if name == "flowers" else width
        made.box(594, y, length, 16, colour, stroke=colour)
        made.text(600 + length, y + 13, name, 12, anchor="start", fill=SOFT)
    made.lines(360, 160, ["learned from tasks of the sources for which it is known who did best"])
    made.text(360, 194, "Step 3: which member for this task?", 14, weight="bold")
    return made.svg()


def task() -> str:
    """Show a task: members compare a query with prototypes, a rule weighs their opinions."""
    made = Picture(720, 300, "A task: prototypes, members and a rule")
    made.text(20, 30, "your examples", anchor="start")
    for i, colour in enumerate(("#0b8a6f", "#bf5700")):
        made.images(20, 42 + i * 30, colour)
        made.text(104, 58 + i * 30, f"class {'AB'[i]}", 12, anchor="start", fill=SOFT)
    made.text(20, 150, "a new image", anchor="start")
    made.images(20, 162, "#57606a", 1)
    members = [("base", None), *DOMAINS.items()]
    for i, (name, colour) in enumerate(members):
        y = 46 + i * 56
        made.arrow(158, 110, 196, y)
        made.box(204, y - 18, 112, 36, stroke=colour or "#8c959f")
        made.text(260, y + 5, name)
        made.arrow(320, y, 350, y)
        made.box(358, y - 18, 128, 36, PAPER)
        made.text(422, y + 5, "nearer to A or B?", 12, fill=SOFT)
        made.arrow(490, y, 536, 116 + i * 6)
    made.box(544, 96, 70, 56, "#fff4d6", stroke="#d4a72c")
    made.text(579, 128, "rule")
    made.arrow(618, 124, 638, 124)
    made.text(646, 118, "A 82 %", 13, anchor="start")
    made.text(646, 138, "B 18 %", 13, anchor="start", fill=SOFT)
    made.text(360, 284, "A task: every member compares, a rule decides", 14, weight="bold")
    return made.svg()


PICTURES = {
    "step1-base": base,
    "step2-modulators": modulators,
    "step3-selector": selector,
    "task": task,
}


def main(folder: Path) -> None:
    """Write all pictures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
