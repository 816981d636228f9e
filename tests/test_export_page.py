"""docs/export.md: its commands and code, run as written."""

import re
from pathlib import Path

import pytest

from polyshot.pool.default import VARIABLE
from tests.helpers import quick_default, run_here

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.S)


COMMANDS = [
    line
    for block in blocks("console")
    for line in block.splitlines()
    if line.startswith("polyshot ")
]
CODE = blocks("python")


@pytest.mark.slow  # README's export is tested with its other commands
def test_commands_and_code_work_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    quick_default().save(tmp_path / "quick")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "quick"))
    monkeypatch.chdir(tmp_path)
    assert len(COMMANDS) == 3 and len(CODE) == 2
    quick = {"polyshot fit": " --rule base --adaptation ridge"}  # one network is enough here
    for command in COMMANDS:
        more = next((more for start, more in quick.items() if command.startswith(start)), "")
        run_here(command + more, tmp_path)
    for code in CODE:
        exec(compile(code, "export.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.count("ONNX Runtime against PyTorch on 25 examples") == 2
    assert (tmp_path / "flowers-half.onnx").is_file() and (tmp_path / "hub" / "README.md").is_file()


def test_the_scripts_and_commands_that_it_names_are_there() -> None:
    for name in re.findall(r"(?:examples|benchmarks)/[\w./]+\w", PAGE):
        assert (ROOT / name).exists(), name
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([\w-]+)`", PAGE):
        assert re.search(rf"^{target}:", makefile, flags=re.M)
