"""Descriptions: whatever stands in them, one line or the right thing."""

import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from polyshot.config import preset, to_dict
from polyshot.data.pack import Domain, Pack, PackWriter
from polyshot.errors import PolyshotError
from polyshot.experiments.card import card, pool_sizes
from polyshot.pool.pool import Pool
from polyshot.training.edit import listing
from polyshot.training.growth import own_config
from polyshot.util.checks import (
    CHECKSUM,
    BadValueError,
    Name,
    Range,
    build,
    check_fields,
    sealed,
    unsealed,
)
from tests.helpers import random_pool

FEW = settings(
    deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e9, 10**400, -1, 0, 10**9, 2**63]),
    st.sampled_from(["", "..", "../../x", "no", "\0", "x" * 300, "nan", "\ud800"]),
    st.just([[[]]]),
    st.lists(st.integers(-3, 3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.recursive(st.none(), st.lists, max_leaves=5),
)


def places(plain: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the way to every value inside plain data."""
    inside = plain.items() if isinstance(plain, dict) else enumerate(plain)
    found = []
    for key, item in inside:
        found.append((*path, key))
        if isinstance(item, dict | list):
            found += places(item, (*path, key))
    return found


def damaged(plain: dict[str, Any], path: tuple[Any, ...], value: Any, drop: bool) -> dict[str, Any]:
    copy = json.loads(json.dumps(plain))
    node = copy
    for key in path[:-1]:
        node = node[key]
    if drop:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return copy


def sealed_again(*damage: Any) -> dict[str, Any]:
    """Damage plain data with the right checksum: as if it had been meant."""
    return sealed(damaged(*damage))


def told_pool() -> Pool:
    """A pool that tells how it was made."""
    pool = random_pool()
    step = {"strength": 0.5, "gain": 0.1, "validation": 0.8, "best": 3}
    pool.about = {
        "config": to_dict(preset("tiny")),
        "packs": dict.fromkeys(pool.modulators, "0" * 64),
        "steps": {"base": {"validation": 0.7}, "modulator:one": step, "selector": {"labels": [1]}},
        "added": {"one": {}},
        "edited": True,
    }
    return pool


def opens_or_says_why(open_it: Callable[[], object]) -> bool:
    try:
        open_it()
    except PolyshotError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
        return False
    return True


@pytest.fixture(scope="module")
def pool_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("pools") / "pool"
    told_pool().save(folder)
    return folder, json.loads((folder / "pool.json").read_text())


@pytest.fixture(scope="module")
def pack_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("packs") / "d"
    with PackWriter(folder, 8) as writer:
        writer.append(np.zeros((6, 3, 8, 8), np.uint8))
        labels, groups = np.array([0, 0, 1, 1, 2, 2]), np.arange(6)
        writer.finish(Domain("d", ("a", "b", "c"), labels, groups), {"reader": "test"})
    return folder, json.loads((folder / "domain.json").read_text())


@FEW
@given(data=st.data(), value=HOSTILE, drop=st.booleans())
def test_no_damage_to_a_pools_description_is_a_traceback(
    pool_folder: tuple[Path, dict[str, Any]], data: st.DataObject, value: Any, drop: bool
) -> None:
    folder, plain = pool_folder
    path = data.draw(st.sampled_from(places(plain)))
    (folder / "pool.json").write_text(json.dumps(sealed_again(plain, path, value, drop)))
    if opens_or_says_why(lambda: Pool.load(folder)):
        loaded = Pool.load(folder)
        listing(loaded)
        pool_sizes(loaded)
        for use in (own_config, card):
            with suppress(PolyshotError):  # it may not say how it was trained
                use(loaded)
        assert all(math.isfinite(scale) for scale in loaded.scales)
        assert all(math.isfinite(strength) for strength in loaded.strengths.values())


@FEW
@given(data=st.data(), value=HOSTILE, drop=st.booleans())
def test_no_damage_to_a_packs_description_is_a_traceback(
    pack_folder: tuple[Path, dict[str, Any]], data: st.DataObject, value: Any, drop: bool
) -> None:
    folder, plain = pack_folder
    path = data.draw(st.sampled_from(places(plain)))
    (folder / "domain.json").write_text(json.dumps(sealed_again(plain, path, value, drop)))
    if opens_or_says_why(lambda: Pack.open(folder)):
        domain = Pack.open(folder).domain
        assert type(domain.mirror) is bool and ".." not in domain.name
        ids = domain.split.part("all")
        assert len(set(ids)) == len(ids) and set(ids) <= {0, 1, 2}


@FEW
@given(data=st.data())
def test_no_flipped_bit_in_a_description_goes_unnoticed(
    pool_folder: tuple[Path, dict[str, Any]],
    pack_folder: tuple[Path, dict[str, Any]],
    data: st.DataObject,
) -> None:
    for (folder, plain), name, open_it in (
        (pool_folder, "pool.json", lambda folder: Pool.load(folder).hash),
        (pack_folder, "domain.json", lambda folder: Pack.open(folder).domain.split),
    ):
        (folder / name).write_text(json.dumps(plain))
        before = open_it(folder)
        text = bytearray(json.dumps(plain).encode())
        text[data.draw(st.integers(0, len(text) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        (folder / name).write_bytes(text)
        if opens_or_says_why(lambda open_it=open_it, folder=folder: open_it(folder)):  # type: ignore[misc]
            # A blank that became another, or the name of the checksum: the content is the same.
            assert open_it(folder) == before


def test_all_is_well_without_damage(
    pool_folder: tuple[Path, dict[str, Any]], pack_folder: tuple[Path, dict[str, Any]]
) -> None:
    (pool_folder[0] / "pool.json").write_text(json.dumps(sealed(pool_folder[1] | {"later": 1})))
    before = {name: value for name, value in pack_folder[1].items() if name != CHECKSUM}
    (pack_folder[0] / "domain.json").write_text(json.dumps(before))  # as it was once written
    assert Pool.load(pool_folder[0]).hash == told_pool().hash
    assert Pack.open(pack_folder[0]).domain.class_names == ("a", "b", "c")


def test_a_changed_digit_is_not_an_answer(pool_folder: tuple[Path, dict[str, Any]]) -> None:
    folder, plain = pool_folder
    text = json.dumps(plain)
    scale = json.dumps(plain["scales"][0])
    assert text.count(scale) >= 1
    (folder / "pool.json").write_text(text.replace(scale, str(plain["scales"][0] + 1), 1))
    with pytest.raises(PolyshotError, match=r"damaged pool\.json: it does not match its checksum"):
        Pool.load(folder)


def test_a_checksum_is_of_the_content() -> None:
    plain = {"b": (1, 2.5), "a": {3: "ü"}, "c": None}
    text = json.dumps(sealed(sealed(plain)), ensure_ascii=False)
    assert unsealed(json.loads(text)) == {"b": [1, 2.5], "a": {"3": "ü"}, "c": None}
    other = json.loads(text.replace("2.5", "2.50").replace(": ", ":\n"))
    assert unsealed(other) == unsealed(json.loads(text))
    for wrong in (text.replace("2.5", "2.6"), text.replace("ü", "u"), text.replace("null", "0")):
        with pytest.raises(BadValueError, match="does not match its checksum"):
            unsealed(json.loads(wrong))
    assert unsealed({"of": "before"}) == {"of": "before"}
    with pytest.raises(BadValueError, match="not an object"):
        unsealed([1])


# --- the checker itself


@dataclass(frozen=True)
class Inner:
    OLD_NAMES: ClassVar[dict[str, str]] = {"before": "count"}
    count: Annotated[int, Range(1, 5)] = 1
    pair: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Outer:
    name: Name
    kind: Literal["a", "b"] = "a"
    inner: Inner = field(default_factory=Inner)
    several: tuple[Annotated[float, Range(0, 1)], ...] = ()
    table: dict[str, int] = field(default_factory=dict)
    maybe: str | None = None


def test_plain_data_becomes_what_it_says() -> None:
    plain = {"name": "x/1", "kind": "b", "inner": {"before": 3, "pair": [1, 2]}, "several": [0, 1]}
    assert build(Outer, plain) == Outer("x/1", "b", Inner(3, (1.0, 2.0)), (0.0, 1.0))
    assert build(Outer, {"name": "x", "table": {"a": 1}, "maybe": "m"}).table == {"a": 1}


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ({}, "name is missing"),
        ({"name": 3}, "name is 3, not text"),
        ({"name": "a/../b"}, "name is 'a/../b', a name that is no path is wanted"),
        ({"name": "x", "nmae": 1}, "nmae is unknown"),
        ({"name": "x", "kind": "c"}, "kind is 'c', not a, b"),
        ({"name": "x", "kind": []}, "kind is [], not a, b"),
        ({"name": "x", "inner": 1}, "inner is 1, not an object"),
        ({"name": "x", "inner": {"count": 6}}, "inner.count=6 is too large: 5 is the most"),
        ({"name": "x", "inner": {"count": 0}}, "inner.count=0 is too small: 1 is the least"),
        ({"name": "x", "inner": {"count": True}}, "inner.count is True, not a whole number"),
        ({"name": "x", "inner": {"count": 1.0}}, "inner.count is 1.0, not a whole number"),
        (
            {"name": "x", "inner": {"count": 1, "before": 1}},
            "inner.count is unknown or there twice",
        ),
        ({"name": "x", "inner": {"pair": [1]}}, "inner.pair has 1 values, not 2"),
        ({"name": "x", "several": [0, math.nan]}, "several[1] is nan, not a finite number"),
        ({"name": "x", "several": "01"}, "several is '01', not a list"),
        ({"name": "x", "several": [10**400]}, "several[0] is 1000"),
        ({"name": "x", "table": {"a": "b"}}, "table.a is 'b', not a whole number"),
        ({"name": "x", "maybe": 1}, "maybe is 1, not text"),
    ],
)
def test_what_does_not_fit_is_named(plain: dict[str, Any], says: str) -> None:
    with pytest.raises(BadValueError) as error:
        build(Outer, plain)
    assert says in str(error.value) and len(str(error.value)) < 120


def test_what_is_made_in_code_is_checked_by_the_same_words() -> None:
    check_fields(Outer("x"))
    with pytest.raises(PolyshotError, match=r"inner\.count=9 is too large: 5 is the most"):
        check_fields(Outer("x", inner=Inner(9)))


@given(st.text(max_size=30))
@example("..")
@example("a/b")
@example("a\\b")
def test_a_name_never_leads_out_of_a_folder(name: str) -> None:
    try:
        build(Name, name)
    except BadValueError:
        return
    folder = Path("/a/b")
    for path in (name, name.replace("\\", "/")):
        resolved = Path(f"{folder}/{path}.png")
        assert ".." not in resolved.parts and resolved.is_relative_to(folder)
