"""The documentation's commands and code, run as written; links, pictures and lists are whole."""

import re
import runpy
from pathlib import Path
from types import ModuleType

import pytest
import torch
import typer

from polyshot.cli import app
from polyshot.data import importer
from polyshot.data.importer import ImportOptions, import_source
from polyshot.data.toy import draw_example
from polyshot.methods.method import METHODS, find_methods
from polyshot.pool.default import VARIABLE
from polyshot.predict.rules import RULES
from tests.helpers import (
    answers,
    embedded_tasks,
    from_table,
    picture,
    quick_default,
    random_pool,
    run_here,
    shortened,
)

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.S)


# --- the tour


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tour")
    quick_default().save(folder / "quick")
    return folder


TOUR = [line for block in blocks("tour.md", "console") for line in block.splitlines()]


@pytest.mark.parametrize("command", TOUR)
def test_the_tours_commands(command: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if command not in ("polyshot info default", "polyshot card default"):
        monkeypatch.setenv(VARIABLE, str(workplace / "quick"))
    run_here(shortened(command).replace("--set size=24", ""), workplace)


@pytest.mark.parametrize("code", blocks("tour.md", "python"))
def test_the_tours_code(
    code: str,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(VARIABLE, str(workplace / "quick"))
    monkeypatch.chdir(workplace)
    exec(compile(code, "tour.md", "exec"), {"__name__": "__main__"})
    assert "Expected accuracy" in capsys.readouterr().out


# --- a classifier to keep


@pytest.fixture(scope="module")
def photos(workplace: Path) -> Path:
    """Folders of photos: what is in the classifier, what is added, what is new."""
    for c, name in enumerate(("cat", "dog", "owl")):
        for folder in ("photos", "more", "new"):
            (workplace / folder / name).mkdir(parents=True)
            for i in range(4 if folder == "photos" else 1):
                picture(10 * c + i, (40, 30)).save(workplace / folder / name / f"{i}.jpg")
    return workplace


KEEP = blocks("keep.md", "console")[0].splitlines()


@pytest.mark.parametrize("command", KEEP)
def test_commands_of_what_is_kept(
    command: str, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(photos / "quick"))
    run_here(shortened(command), photos)


@pytest.mark.parametrize("code", blocks("keep.md", "python"))
def test_code_of_what_is_kept(code: str, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "sklearn" in code:
        pytest.importorskip("sklearn")
    monkeypatch.setenv(VARIABLE, str(photos / "quick"))
    monkeypatch.chdir(photos)
    names = {}
    for prefix, folder in (("", "photos"), ("more_", "more")):
        images = sorted(str(file) for file in Path(folder).rglob("*.jpg"))
        names[f"{prefix}images"] = images
        names[f"{prefix}labels"] = [Path(file).parent.name for file in images]
    exec(compile(code.replace("efficientnet-lite0", "default"), "keep.md", "exec"), names)
    if "classifier" in names:
        assert names["classifier"].classes_.tolist() == ["cat", "owl"]  # type: ignore[attr-defined]


# --- how to extend


def extension(mark: str, name: str) -> ModuleType:
    """Run the one piece of code of the page that holds a mark, as a module."""
    (code,) = [block for block in blocks("extend.md", "python") if mark in block]
    made = ModuleType(name)
    exec(compile(code, "extend.md", "exec"), made.__dict__)
    return made


def test_the_walk_through_any_network() -> None:
    extension("class Mlp", "walk")


def test_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = extension("def listings", "table")
    monkeypatch.setattr(importer, "READERS", (table, *importer.READERS))
    example = draw_example(tmp_path / "example", classes=3, shot=1, queries=4)
    (done,) = import_source(example.answers, tmp_path / "packs", ImportOptions(size=16, workers=1))
    assert done.pack.domain.name == "answers"
    assert done.pack.domain.class_sizes.tolist() == [4, 4, 4]


def test_the_modulator() -> None:
    extension("Kind.__args__", "properties")


def test_the_rule() -> None:
    try:
        extension("RULES[", "apart")
        pool = random_pool()
        chances = answers(pool, embedded_tasks(pool), "apart")
        torch.testing.assert_close(chances.sum(-1), torch.ones(chances.shape[:-1]))
    finally:
        RULES.pop("apart", None)


def test_the_method() -> None:
    try:
        extension("register(", "polyshot.methods.pixels")
        (method,) = find_methods(["pixels"])
        images = torch.randint(0, 256, (20, 3, 16, 16), dtype=torch.uint8)
        support, query = torch.arange(12).view(2, 3, 2), torch.arange(12, 20).view(2, 4)
        tasks = from_table(images, support, query)
        chances = method.fit(None, {}).predict(tasks)  # type: ignore[arg-type]
        assert chances.shape == (2, 4, 3)
        torch.testing.assert_close(chances.sum(-1), torch.ones(2, 4))
    finally:
        METHODS.pop("pixels", None)


# --- whole and true


def test_the_pictures_are_what_the_tool_draws() -> None:
    drawn = runpy.run_path(str(ROOT / "tools" / "draw_steps.py"))["PICTURES"]
    assert {file.stem for file in (DOCS / "pictures").glob("*.svg")} == set(drawn)
    page = (DOCS / "how.md").read_text(encoding="utf-8")
    for name, draw in drawn.items():
        assert (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8") == draw()
        assert f"](pictures/{name}.svg)" in page


def test_every_command_is_in_the_documentation() -> None:
    page = (DOCS / "commands.md").read_text(encoding="utf-8")

    def names(group: typer.core.TyperGroup, before: str) -> list[str]:
        found = []
        for name, command in group.commands.items():
            inner = isinstance(command, typer.core.TyperGroup)
            found += names(command, f"{before} {name}") if inner else [f"{before} {name}"]
        return found

    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    missing = [name for name in names(command, "polyshot") if f"`{name}" not in page]
    assert not missing


def test_every_page_is_in_the_navigation_and_every_link_leads_somewhere() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        assert f": {page.relative_to(DOCS).as_posix()}" in listed, page
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), f"{page}: {target}"
