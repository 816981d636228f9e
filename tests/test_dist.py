"""What an index is told about the package; `make dist-check` installs and uses the wheel itself."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
FOR_DEVELOPERS = {"dev", "docs", "all"}


def pins() -> dict[str, str]:
    """Versions of constraints.txt, by the names of packages."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def test_the_extra_all_is_every_one_for_users() -> None:
    (everything,) = (Requirement(line) for line in EXTRAS["all"])
    assert everything.name == "polyshot"
    assert everything.extras == set(EXTRAS) - FOR_DEVELOPERS


def test_what_is_pinned_fits_what_is_declared() -> None:
    lines = [*PROJECT["dependencies"], *(line for own in EXTRAS.values() for line in own)]
    known = pins()
    for wanted in map(Requirement, lines):
        if wanted.name != "polyshot" and canonicalize_name(wanted.name) in known:
            assert known[canonicalize_name(wanted.name)] in wanted.specifier, wanted


@pytest.mark.parametrize("version", ["2.11.0", "2.12.1", "2.13.0"])
def test_torch_is_declared_as_far_as_it_is_tested(version: str) -> None:
    (torch,) = (r for r in map(Requirement, PROJECT["dependencies"]) if r.name == "torch")
    assert version in torch.specifier
    assert "2.10.2" not in torch.specifier and "2.14.0" not in torch.specifier


def test_pythons_are_declared_as_far_as_they_are_tested() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert named == ["3.11", "3.12"] and PROJECT["requires-python"] == ">=3.11"


def test_every_file_of_the_package_is_package_data() -> None:
    source = ROOT / "src" / "polyshot"
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["polyshot"]
    covered = {file for pattern in patterns for file in source.glob(pattern) if file.is_file()}
    there = {
        file
        for file in source.rglob("*")
        if file.is_file() and file.suffix != ".py" and "__pycache__" not in file.parts
    }
    assert there - covered == set()
    for folder in {file.parent for file in source.rglob("*.py")}:
        assert (folder / "__init__.py").is_file(), f"{folder.name} would be left out"


def test_a_source_distribution_has_what_its_makefile_runs() -> None:
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").split()
    for name in ("tests", "tools", "docs", "results", "constraints.txt", "Makefile", "mkdocs.yml"):
        assert name in manifest and (ROOT / name).exists()
