"""Protocols as data: who is trained on what; and settings of methods."""

import pytest

from polyshot.config import preset
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.errors import PolyshotError
from polyshot.experiments import protocols
from polyshot.experiments.protocols import (
    PROTOCOLS,
    SHAPES,
    Trial,
    default_episodes,
    find_protocols,
    part_sources,
    settings_of,
    shapes_of,
    shipped,
    split_options,
)
from polyshot.experiments.request import methods_of
from polyshot.methods.method import find_methods
from tests.helpers import pack_of

SIZES = {"a": 30, "b": 50, "c": 20, "d": 40, "e": 60, "f": 10, "g": 5}
SOURCES = [pack_of([count], name) for name, count in SIZES.items()]
OTHERS = [pack_of([100], "never")]


def named(trials: list[Trial]) -> list[tuple[str, str]]:
    def joined(packs: tuple[Pack, ...]) -> str:
        return " ".join(pack.domain.name for pack in packs)

    return [(joined(trial.sources), joined(trial.targets)) for trial in trials]


def trials(
    name: str, sources: list[Pack] = SOURCES[:3], others: list[Pack] = OTHERS
) -> list[Trial]:
    return PROTOCOLS[name].trials(sources, others)


def test_seen_tests_every_source() -> None:
    assert named(trials("seen")) == [("a b c", "a b c")]


def test_unseen_leaves_each_source_out_and_adds_what_is_never_one() -> None:
    left_out = [("b c", "a"), ("a c", "b"), ("a b", "c")]
    assert named(trials("unseen")) == [*left_out, ("a b c", "never")]
    assert named(trials("unseen", others=[])) == left_out
    with pytest.raises(PolyshotError, match="at least two sources"):
        trials("unseen", SOURCES[:1])


def test_joint_trains_pools_alone_on_all_sources_and_tests_all_domains() -> None:
    assert named(trials("joint")) == [("a b c", "a b c never")]
    config = PROTOCOLS["joint"].config(preset("tiny"))
    assert config.joint and not preset("tiny").joint
    measured = methods_of(PROTOCOLS["joint"], find_methods(["base", "protonet", "select"]))
    assert [method.name for method in measured] == ["base", "select"]


@pytest.mark.parametrize(("count", "largest"), [(2, "b e"), (4, "a b d e"), (6, "a b c d e f")])
def test_the_largest_sources_are_tested_on_all_domains(count: int, largest: str) -> None:
    assert named(trials(f"sources-{count}", SOURCES)) == [(largest, "a b c d e f g never")]
    with pytest.raises(PolyshotError, match=f"trains on {count} sources, there are 1"):
        trials(f"sources-{count}", SOURCES[:1])


def test_contributions_and_parameters() -> None:
    assert named(trials("contributions")) == [("a b c", "a b c never")]
    assert trials("parameters") == []


def test_the_shapes_are_the_papers() -> None:
    assert (EpisodeShape(5, 5, 10), EpisodeShape(5, 1, 10)) == SHAPES
    assert tuple(shapes_of(["5", "1"])) == SHAPES
    assert shapes_of(["3", "3"]) == [EpisodeShape(5, 3, 10)]
    for wrong in ([], ["five"], ["-1"], ["1.5"]):
        with pytest.raises(PolyshotError, match="numbers of shots"):
            shapes_of(wrong)
    with pytest.raises(PolyshotError, match="at least 1"):
        shapes_of(["0"])


def test_episodes_by_preset() -> None:
    assert default_episodes("tiny") == (100, 5)
    assert default_episodes("strong") == (600, None)


def test_protocols_are_found_by_name() -> None:
    assert [each.name for each in find_protocols(["unseen", "seen", "unseen"])] == [
        "unseen",
        "seen",
    ]
    with pytest.raises(PolyshotError, match=r"no protocol 'unsen'.*Did you mean 'unseen'"):
        find_protocols(["unsen"])
    with pytest.raises(PolyshotError, match="Name what to reproduce: seen"):
        find_protocols([])


def test_sources_are_the_named_ones_in_the_order_of_the_packs() -> None:
    packs = [*SOURCES, *OTHERS]
    chosen, rest = part_sources(packs, ["c", "a"])
    assert [pack.domain.name for pack in chosen] == ["a", "c"]
    assert [pack.domain.name for pack in rest] == ["b", "d", "e", "f", "g", "never"]
    with pytest.raises(PolyshotError, match="Did you mean 'never'"):
        part_sources(packs, ["nevr"])
    with pytest.raises(PolyshotError, match="no training classes"):
        part_sources(packs, [])


# --- settings


def test_options_of_methods_and_of_the_config_are_told_apart() -> None:
    own, others = split_options(
        ["base.steps=5", "protonet.learning_rate=1e-3", "size=24", "protomaml.steps=2.0"]
    )
    assert own == {"protonet": {"learning_rate": 0.001}, "protomaml": {"steps": 2}}
    assert isinstance(own["protomaml"]["steps"], int)
    assert others == ["base.steps=5", "size=24"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("protonet.learning_rat=1", "Did you mean 'learning_rate'"),
        ("protonet.learning_rate", "needs a number"),
        ("protonet.learning_rate=fast", "needs a number"),
        ("average-channel.steps=1", "names no setting of average-channel"),
    ],
)
def test_wrong_settings_are_refused(option: str, message: str) -> None:
    with pytest.raises(PolyshotError, match=message):
        split_options([option])


def test_the_command_line_wins_over_tuning_over_the_methods_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (protonet,) = find_methods(["protonet"])
    chosen = {"tiny": {"protonet": {"settings": {"learning_rate": 7.0}}}}
    monkeypatch.setattr(protocols, "shipped", lambda _: chosen)
    own = protonet.settings["learning_rate"]
    assert settings_of(protonet, "paper", {})["learning_rate"] == own
    assert settings_of(protonet, "tiny", {})["learning_rate"] == 7.0
    overridden = settings_of(protonet, "tiny", {"protonet": {"learning_rate": 8.0}})
    assert overridden == {**protonet.settings, "learning_rate": 8.0}


def test_the_committed_outcome_of_tuning_fits_the_methods() -> None:
    methods = {method.name: method for method in find_methods()}
    for entries in shipped("tuned.json").values():
        for name, entry in entries.items():
            assert set(entry["settings"]) <= set(methods[name].settings)
            tried = [point["settings"] for point in entry.get("tried", [])]
            assert entry["settings"] in tried or entry["why"]  # by numbers, or by the paper
