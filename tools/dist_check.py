"""Install the built wheel in fresh environments outside of the checkout, and use it there.

    make dist-check        # builds first; or: python tools/dist_check.py dist

Without extras and with all of them: what a user does first (`doctor`, `example`, `fit`, `classify`,
`export`) must work, answer well, and come from the installed package. The constraints file pins
torch, so that a CPU build is taken where there is one. Exits with 1 where something fails.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEAST = 0.7
"""Share of the example's queries that must get their right label; 0.2 by chance."""


class FailedError(Exception):
    """What a user would stumble over."""


class Environment:
    """A fresh virtual environment with the wheel, and an empty folder to work in."""

    def __init__(self, folder: Path, wheel: Path, extra: str) -> None:
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        self._bin = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        venv.create(folder / "venv", with_pip=True)
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        self.python(*pip, *constraints, f"{wheel.resolve()}{extra}")
        where = Path(self.python("-c", "import polyshot; print(polyshot.__file__)").strip())
        if not where.is_relative_to(folder):
            raise FailedError(f"polyshot is imported from {where}, not from the wheel")

    def python(self, *words: str) -> str:
        """Run Python and return what it says."""
        return self._run([str(self._bin / "python"), *words], 0)

    def polyshot(self, *words: str, code: int = 0) -> str:
        """Run a command of Polyshot, which must end with this exit code."""
        return self._run([str(self._bin / "polyshot"), *words], code)

    def _run(self, command: Sequence[str], code: int) -> str:
        # Nothing of the checkout may be found by other ways.
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "POLYSHOT"))}
        child = subprocess.run(
            command, cwd=self.work, env=clean, capture_output=True, text=True, check=False
        )
        said = child.stdout + child.stderr
        if child.returncode != code or "Traceback" in said:
            line = " ".join(Path(word).name for word in command)
            raise FailedError(f"{line}: exit code {child.returncode}, not {code}\n{said}")
        return said


def check(environment: Environment, extras: bool) -> list[str]:
    """Do what a user does first; returns what to print."""
    run, told = environment.polyshot, []
    run("doctor")
    run("example", "example")
    run("fit", "example/support", "--out", "flowers.polyshot")
    asked = ("--query", "example/query", "--out", "labels.csv")
    run("classify", "--model", "flowers.polyshot", *asked)
    told.append(f"classify: {_right(environment.work):.0%} of the example's queries are right")
    if extras:
        told.append(run("export", "flowers.polyshot", "flowers.onnx").strip().splitlines()[-1])
    else:
        refused = run("export", "flowers.polyshot", "flowers.onnx", code=2)
        if "pip install 'polyshot[onnx]'" not in refused:
            raise FailedError(f"export without its extra does not say what to install: {refused}")
        told.append("export: names the extra that it needs")
    return told


def _right(work: Path) -> float:
    """Compare labels.csv with the example's answers: the share that is right."""

    def labels(file: Path) -> dict[str, str]:
        with file.open(encoding="utf-8", newline="") as lines:
            return {Path(row["path"]).name: row["label"] for row in csv.DictReader(lines)}

    found, truth = labels(work / "labels.csv"), labels(work / "example" / "answers.csv")
    share = sum(found[name] == label for name, label in truth.items()) / len(truth)
    if share < LEAST:
        raise FailedError(f"only {share:.0%} of the example's queries are right")
    return share


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the one wheel of a folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dist", type=Path, help="the folder that `make dist` has made")
    wheels = sorted(parser.parse_args(arguments).dist.glob("*.whl"))
    if len(wheels) != 1:
        print(f"There are {len(wheels)} wheels, not one: run make dist.", file=sys.stderr)
        return 1
    for extra in ("", "[all]"):
        with tempfile.TemporaryDirectory(prefix="polyshot-dist-") as folder:
            try:
                told = check(Environment(Path(folder), wheels[0], extra), bool(extra))
            except FailedError as error:
                print(f"{wheels[0].name}{extra}: {error}", file=sys.stderr)
                return 1
        for line in told:
            print(f"{wheels[0].name}{extra}: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
