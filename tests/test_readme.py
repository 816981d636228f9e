"""The README's own commands and code, run as written and in their order, in a folder with photos.

Trainings run with fewer updates: what they print is not checked here, only that they work.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from polyshot.experiments import demo
from polyshot.pool.default import VARIABLE
from tests.helpers import picture, quick_default, random_pool, run_here, shortened

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


COMMANDS = [
    line.partition("#")[0].strip()
    for block in blocks("console")
    for line in block.splitlines()
    if line.startswith("polyshot ") and not line.startswith("polyshot serve")  # tests/serving
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    for c, name in enumerate(("cat", "dog", "owl", "yak")):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(6):
            picture(10 * c + i, (160, 120)).save(folder / "photos" / name / f"{i}.jpg")
    random_pool().save(folder / "small")
    quick_default().save(folder / "quick")
    (folder / "new").mkdir()
    for i in range(3):
        picture(100 + i, (90, 200)).save(folder / "new" / f"{i}.jpg")
    return folder


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_the_readme_has_commands_and_code() -> None:
    assert len(COMMANDS) >= 10 and len(blocks("python")) >= 2


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_work_as_written(
    workplace: Path, command: str, few_are_drawn: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pool that ships is slow, and tested elsewhere; so is the whole demo.
    pool = "small" if command == "polyshot demo" else "quick"
    monkeypatch.setattr(demo, "SOURCES", ("glyphs", "signs"))
    monkeypatch.setattr(demo, "UNSEEN", ("aerial",))
    monkeypatch.setenv(VARIABLE, str(workplace / pool))
    run_here(shortened(command), workplace)


def test_a_shell_finds_the_program(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    child = subprocess.run(
        "polyshot --version",
        shell=True,
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.startswith("polyshot 0.")


@pytest.mark.parametrize("code", blocks("python"))
def test_code_works_as_written(workplace: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(workplace / "quick"))
    monkeypatch.chdir(workplace)
    exec(compile(code, "README.md", "exec"), {})


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, flags=re.M):
        assert re.search(rf"^{target}:", makefile, flags=re.M)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
