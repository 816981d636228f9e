"""Every tool, benchmark and example starts: what they import is there."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(
    script
    for folder in ("tools", "benchmarks", "examples")
    for script in (ROOT / folder).glob("*.py")
)


@pytest.mark.parametrize(
    "script", SCRIPTS, ids=lambda script: f"{script.parent.name}/{script.name}"
)
def test_what_a_script_imports_of_polyshot_is_there(script: Path) -> None:
    tree = ast.parse(script.read_text(encoding="utf-8"))
    wanted = [
        (node.module, alias.name)
        for node in tree.body  # what functions import, they may need elsewhere alone
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polyshot")
        for alias in node.names
    ]
    for module, name in wanted:
        found = importlib.import_module(module or "")
        if not hasattr(found, name):  # then it is a module itself
            importlib.import_module(f"{module}.{name}")
