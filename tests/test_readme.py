"""The README's own commands and code, run as written and in their order, in a folder with photos.

Trainings run with fewer updates: what they print is not checked here, only that they work.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import SHORTER, picture, random_pool

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


COMMANDS = [
    line.partition("#")[0].strip()
    for block in blocks("console")
    for line in block.splitlines()
    if line.startswith("polyshot ")
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    for c, name in enumerate(("cat", "dog", "owl", "yak")):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(9):
            picture(10 * c + i, (160, 120)).save(folder / "photos" / name / f"{i}.jpg")
    random_pool().save(folder / "small")
    (folder / "new").mkdir()
    for i in range(3):
        picture(100 + i, (90, 200)).save(folder / "new" / f"{i}.jpg")
    return folder


def test_the_readme_has_commands_and_code() -> None:
    assert len(COMMANDS) >= 10 and len(blocks("python")) >= 2


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_work_as_written(workplace: Path, command: str) -> None:
    more = next((extra for start, extra in SHORTER.items() if command.startswith(start)), "")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # The demo ends with a classification; the pool that ships, which is slow, is tested elsewhere.
    other = {"POLYSHOT_POOL": str(workplace / "small")} if command == "polyshot demo" else {}
    child = subprocess.run(
        command + more,
        shell=True,
        cwd=workplace,
        env=os.environ | {"PATH": path} | other,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr


@pytest.mark.parametrize("code", blocks("python"))
def test_code_works_as_written(workplace: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    exec(compile(code, "README.md", "exec"), {})


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, flags=re.M):
        assert re.search(rf"^{target}:", makefile, flags=re.M)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
