"""Nonsense in options: one line before any work, and nothing is written."""

import shutil
from pathlib import Path

import pytest

from polyshot.classifier import FewShotClassifier
from polyshot.data.toy import draw_example, draw_packs
from polyshot.errors import PolyshotError
from tests.commands import polyshot
from tests.helpers import SIZE, examples, random_pool

HUGE = 10**20
LONG = "n" * 300


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("options")
    random_pool().save(root / "pool")
    draw_packs(root / "packs", ["signs"], size=SIZE, per_class=2)
    draw_example(root / "example", classes=2, shot=1, queries=1)
    (root / "example" / "support").rename(root / "photos")
    shutil.rmtree(root / "example")
    return root


TRAIN = ("train", "packs", "--preset", "tiny", "--out", "run", "--set", f"size={SIZE}")
GRID = ("reproduce", "seen", "--preset", "tiny", "--out", "new")
"""Of embedded domains, which are drawn."""
EVALUATE = ("evaluate", "packs", "--pool", "pool")
NONSENSE: list[tuple[tuple[object, ...], str]] = [
    ((*TRAIN, "--set", "selector.dropout=7"), "selector.dropout=7.0 is too large: 1 is the most"),
    ((*TRAIN, "--set", f"base.batch={10**14}"), "is too large"),
    ((*TRAIN, "--set", f"shape.way={HUGE}"), "at most 100,000 ways, shots or queries"),
    ((*TRAIN, "--set", "base.learning_rate=NaN"), "wrong kind"),
    ((*TRAIN, "--members-per-source", "0"), "take 1 or more, or auto"),
    ((*EVALUATE, "--shot", HUGE), "at most 100,000 ways, shots or queries"),
    ((*EVALUATE, "--way", HUGE), "at most 100,000 ways, shots or queries"),
    ((*EVALUATE, "--queries", HUGE), "at most 100,000 ways, shots or queries"),
    ((*EVALUATE, "--episodes", HUGE), "Invalid value"),
    ((*EVALUATE, "--page", ""), "--page is empty"),
    ((*EVALUATE, "--page="), "--page is empty"),
    (("card", "default", "--out", "/"), "cannot be written"),
    (("card", "default", "--out", LONG), "too long"),
    (("data", "import", "photos", "--out", "new", "--name", LONG), "is empty or too long"),
    (("data", "import", "packs", "--out", ""), "--out is empty"),
    (("data", "import", " ", "--out", "new"), "An argument is empty"),
    (("data", "toy", "--out", "new", "--size", 10**6), "1024 at most"),
    (("data", "toy", "--out", "new", "--per-class", 10**9), "Invalid value"),
    (("example", "new", "--queries", 10**9), "Invalid value"),
    (("example", "new", "--shot", 10**9), "Invalid value"),
    (("example", "new", "--classes", 10**9), "can show 2 to"),
    (("example", LONG), "too long"),
    (("train", "packs", "--out", ""), "--out is empty"),
    (("demo", "--out", ""), "--out is empty"),
    (("pool", "remove", "pool", "one", "--out", ""), "--out is empty"),
    (("fit", "photos", "--out="), "--out is empty"),
    (("serve", "--folder", ""), "--folder is empty"),
    ((*EVALUATE, "--sites", "layer4.*"), "pool is a pool, which has its own sites"),
    (("fit", "photos", "--out", "new", "--pool", "fast", "--sites", "a"), "'fast' has its own"),
    (("fit", "photos", "--out", "new", "--pool", "resnet18", "--sites", "a"), "brings its own"),
    ((*EVALUATE, "--methods", ","), "',' names nothing"),
    ((*TRAIN, "--sources", " , "), "' , ' names nothing"),
    ((*GRID, "--methods", ","), "',' names nothing"),
    ((*GRID, "--methods", "feet"), "Did you mean 'feat'"),
    ((*GRID, "--targets", "birds"), "no target 'birds'"),
    ((*GRID, "--sources", "birds"), "no domain 'birds'"),
    ((*GRID, "--adaptations", "hed"), "an adaptation 'hed'"),
    ((*GRID, "--seeds", 0), "at least 1"),
    (("tune", "urt", "--preset", "tiny", "--out", "new"), "nothing to tune"),
    (("tune", "--preset", "tiny", "--out", "new", "--sources", "birds"), "no domain 'birds'"),
    ((*TRAIN, "--sites", "layer4.*"), "sites are those of a base from elsewhere"),
]


@pytest.mark.parametrize(("command", "said"), NONSENSE)
def test_nonsense_is_refused_before_any_work(
    command: tuple[object, ...], said: str, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world)
    outcome = polyshot(*command)
    assert outcome.code == 2, outcome.out
    assert any(each in outcome.err for each in said.split("|")), outcome.err
    assert "Traceback" not in outcome.err
    assert sorted(path.name for path in world.iterdir()) == ["packs", "photos", "pool"]


def test_a_setting_that_is_no_number(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)
    out = ("--out", "grid", "--preset", "tiny", "--methods", "finetune")
    for value in ("NaN", "inf", "x"):
        changed = ("--set", f"finetune.learning_rate={value}")
        assert polyshot("reproduce", "seen", "--data", "packs", *out, *changed).code == 2
    assert sorted(path.name for path in world.iterdir()) == ["packs", "photos", "pool"]


def test_what_is_no_option_in_python() -> None:
    pool = random_pool()
    images, labels = examples(2, 2)
    for wrong, said in [
        ({"none_rate": "a"}, "not 'a'"),
        ({"none_rate": True}, "not True"),
        ({"none_rate": float("nan")}, "not nan"),
        ({"rule": None}, "not by None"),
        ({"adaptation": None}, "no adaptation 'None'"),
        ({"precision": None}, "no precision 'None'"),
        ({"batch": 0}, "1 or more, not 0"),
        ({"batch": "many"}, "not 'many'"),
    ]:
        with pytest.raises(PolyshotError, match=said):
            FewShotClassifier(pool, **wrong)  # type: ignore[arg-type]
    for labelled in (3, None, 2.5, object()):
        with pytest.raises(PolyshotError):
            pool.classifier().fit(images, labelled)  # type: ignore[arg-type]
    assert pool.classifier(batch=3).batch == 3
    assert pool.classifier("base", "none", batch=1).fit(images, labels).predict(images[0]).size == 1
