"""The README's own commands and code, run as written in a folder with photos."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import picture

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


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
    return folder


def test_the_readme_has_commands_and_code() -> None:
    assert len(COMMANDS) >= 5 and len(blocks("python")) >= 1


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_work_as_written(workplace: Path, command: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    child = subprocess.run(
        command,
        shell=True,
        cwd=workplace,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr


@pytest.mark.parametrize("code", blocks("python"))
def test_code_works_as_written(workplace: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    namespace: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), namespace)
    episodes, some = namespace["episodes"], namespace["some"]
    assert (episodes.support[250:300] == some.support).all()  # type: ignore[attr-defined]


def test_make_targets_exist() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, flags=re.M):
        assert re.search(rf"^{target}:", makefile, flags=re.M)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target
