r"""Keep what was measured: JSON lines, or a grid folder, become rows of a table in results/.

    python tools/file_results.py grid seeds --run seeds
    python tools/file_results.py default-pool.jsonl default_pool --run default-pool \
        --command 'polyshot evaluate packs --shot 5 --out default-pool.jsonl'

Rows that the table has of that run are replaced, and `runs.json` says where the new ones come from:
commit, clean or not, commands, packs and machine, of a grid's own notes, else of this checkout, so
file lines where and when they were measured. A cell that was measured twice, on more episodes the
second time, is kept once. Then `make tables`.
"""

import argparse
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from polyshot.errors import PolyshotError
from polyshot.evaluation.results import Result, Run, read_results, read_runs, write_results
from polyshot.training.folder import environment
from polyshot.util.device import best_device
from polyshot.util.files import read_json, write_json

ROOT = Path(__file__).parents[1]
MACHINE = ("device", "torch", "numpy", "python", "platform", "threads", "processes", "polyshot")


def main(words: list[str] | None = None) -> int:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("source", type=Path, help="a file of JSON lines, or a grid folder")
    parser.add_argument("table", help="the name of a file in results/, without its ending")
    parser.add_argument("--run", required=True, help="a key of runs.json")
    parser.add_argument("--command", action="append", default=[], help="how it was measured")
    parser.add_argument("--note", default="")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    given = parser.parse_args(words)
    try:
        return _run(given)
    except PolyshotError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(given: argparse.Namespace) -> int:
    notes = given.source / "environment.json"
    folder = given.source / "results" if notes.is_file() else given.source
    rows = [replace(result, run=given.run) for result in longest(read_results(folder))]
    if not rows:
        raise PolyshotError(f"{given.source} has no results.")
    about = read_json(notes) if notes.is_file() else {**environment(best_device()), "code": code()}
    packs = {result.target: result.pack for result in rows} | about.get("packs", {})
    file, register = given.results / f"{given.table}.parquet", given.results / "runs.json"
    before = read_results(file) if file.exists() else []
    runs = read_runs(register) if register.exists() else {}
    runs[given.run] = run_of(about, [*about.get("commands", []), *given.command], packs, given.note)
    write_results(file, [*(r for r in before if r.run != given.run), *rows])
    write_json(register, {name: asdict(run) for name, run in runs.items()})
    print(f"{file}: {len(rows)} rows of '{given.run}', commit {runs[given.run].commit}")
    return 0


def run_of(about: dict[str, Any], commands: list[str], packs: dict[str, str], note: str) -> Run:
    """Describe a run by what its folder or this machine says."""
    commit = str(about.get("code", ""))
    clean = None if not commit else "-dirty" not in commit
    machine = {name: about[name] for name in MACHINE if name in about}
    return Run(commit.replace("-dirty", ""), clean, commands, packs, machine, note)


def longest(results: list[Result]) -> list[Result]:
    """Keep of a cell that was measured twice the row with more episodes."""
    found: dict[tuple[Any, ...], Result] = {}
    for r in results:
        where = (r.preset, r.protocol, r.target, r.way, r.shot, r.part, r.draw, r.seen)
        how = (r.method, r.adaptation, str(r.settings), r.train_seed, r.pool, r.added)
        key = (*where, *how, *r.sources)
        if key not in found or r.episodes > found[key].episodes:
            found[key] = r
    return list(found.values())


def code() -> str:
    """Name the commit of this checkout, with -dirty where it was changed."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
