"""Seeded damage: to bytes, and to JSON by what it means."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def damaged(data: bytes, draw: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Damage bytes in one way or a few; `others` are valid files to take pieces from."""
    made = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 8))):
        draw.choice(WAYS)(made, draw, others)
    return bytes(made)


def _place(made: bytearray, draw: random.Random) -> int:
    """Most often in what describes the rest: at the beginning, or at the end, as archives do."""
    size = max(1, len(made))
    choice = draw.random()
    if choice < 0.4:
        return draw.randrange(min(size, 128))
    if choice < 0.6:
        return size - 1 - draw.randrange(min(size, 512))
    return draw.randrange(size)


Others = Sequence[bytes]


def _flip(made: bytearray, draw: random.Random, _: Others) -> None:
    if made:
        made[_place(made, draw)] ^= 1 << draw.randrange(8)


def _byte(made: bytearray, draw: random.Random, _: Others) -> None:
    if made:
        made[_place(made, draw)] = draw.randrange(256)


def _number(made: bytearray, draw: random.Random, _: Others) -> None:
    """Put a number there that programs count wrongly with."""
    size, order = draw.choice((1, 2, 4, 8)), draw.choice(("little", "big"))
    value = draw.choice(NUMBERS) & ((1 << 8 * size) - 1)
    at = _place(made, draw)
    made[at : at + size] = value.to_bytes(size, order)  # type: ignore[arg-type]


def _cut(made: bytearray, draw: random.Random, _: Others) -> None:
    del made[draw.randrange(len(made) + 1) :]


def _drop(made: bytearray, draw: random.Random, _: Others) -> None:
    at = _place(made, draw)
    del made[at : at + draw.choice((1, 2, 16, 300))]


def _insert(made: bytearray, draw: random.Random, _: Others) -> None:
    at = _place(made, draw)
    made[at:at] = draw.randbytes(draw.choice((1, 2, 16, 300)))


def _blank(made: bytearray, draw: random.Random, _: Others) -> None:
    at, size = _place(made, draw), draw.choice((4, 64, 1000))
    size = len(made[at : at + size])
    made[at : at + size] = bytes([draw.choice((0, 255, 32))]) * size


def _repeat(made: bytearray, draw: random.Random, _: Others) -> None:
    at = _place(made, draw)
    made[at:at] = made[at : at + draw.choice((8, 100, 2000))]


def _splice(made: bytearray, draw: random.Random, others: Others) -> None:
    if others:
        other = draw.choice(others)
        at, start = _place(made, draw), draw.randrange(len(other) + 1)
        made[at : at + 1000] = other[start : start + draw.choice((16, 1000, 10**6))]


def _empty(made: bytearray, draw: random.Random, _: Others) -> None:
    if draw.random() < 0.2:
        del made[:]


WAYS: tuple[Callable[[bytearray, random.Random, Others], None], ...] = (
    *(_flip, _flip, _flip, _byte, _byte, _number, _number, _number),
    *(_cut, _drop, _insert, _blank, _repeat, _splice, _empty),
)

RAW = (
    *("null", "true", "false", "0", "-1", "1", "2", "1e999", "-1e999", "NaN", "Infinity"),
    *("1e-320", "0.1", "1e9", "2147483648", "9223372036854775808", "1" + "0" * 400, "-0.0"),
    *('""', '" "', '"../../x"', '"/etc/passwd"', '"x/y"', '"\\u0000"', '"\\ud800"', '"."'),
    *('"base"', '"[/bold]"', '"<script>"', '"CON"', '"1"', '"' + "x" * 5000 + '"'),
    *("[]", "{}", "[[]]", "[null]", "[1e999]", '{"a": {"b": {}}}', '[1, "2", [3]]'),
    *("[" * 100_000, "[" * 3000 + "]" * 3000, '{"a":' * 3000 + "1" + "}" * 3000, "", ",", "\x00"),
)
"""JSON, or what looks like it, to put in the place of a value."""


def damaged_json(text: bytes, draw: random.Random) -> bytes:
    """Damage JSON: values of other types and sizes, keys away, twice or misspelt; or its bytes."""
    if draw.random() < 0.25:
        return damaged(text, draw)
    value = json.loads(text)
    marks: dict[str, str] = {}
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        value = _changed(value, draw, marks)
    made = json.dumps(value, ensure_ascii=False)
    for mark, raw in marks.items():
        made = made.replace(f'"{mark}"', raw)
    return made.encode("utf-8", "surrogatepass")


def _changed(value: Any, draw: random.Random, marks: dict[str, str]) -> Any:
    places = list(_places(value))
    if not places:
        return value
    holder, key = draw.choice(places)
    old = holder[key]
    way = draw.random()
    if way < 0.5:
        mark = f"@{len(marks)}@"
        marks[mark] = draw.choice(RAW)
        holder[key] = mark
    elif way < 0.75:
        holder[key] = _nudged(old, draw)
    elif way < 0.85:
        del holder[key]
    elif isinstance(holder, dict):
        if way < 0.93:
            holder[draw.choice((f"{key}x", "format", "name", "__class__", ""))] = holder.pop(key)
        else:
            holder[key] = draw.choice(list(holder.values()))
    else:
        holder.insert(draw.randrange(len(holder) + 1), old)
    return value


def _places(value: Any) -> Any:
    if isinstance(value, dict):
        for key, item in value.items():
            yield value, key
            yield from _places(item)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield value, i
            yield from _places(item)


def _nudged(value: Any, draw: random.Random) -> Any:
    """A little different, and of the same type: what a bad disk or a hasty hand does."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice(
            (value + 1, value - 1, -value, value * 10, value + (1 << draw.randrange(70)))
        )
    if isinstance(value, float):
        return draw.choice((value * 1.01, -value, value * 1e10, value + 1e-3))
    if isinstance(value, str) and value:
        at = draw.randrange(len(value))
        return value[:at] + draw.choice("0a/.\\\x00é[") + value[at + 1 :]
    if isinstance(value, list):
        return draw.choice((value[:-1], value + value[:1], value[::-1]))
    return draw.choice((0, "", [], 1.5))
