r"""Keep what was measured: JSON lines, or a grid folder, become rows of a table in results/.

    python tools/file_results.py grid seeds --run seeds
    python tools/file_results.py default-pool.jsonl default_pool --run default-pool \
        --command 'polyshot evaluate packs --shot 5 --out default-pool.jsonl'

Rows that the table has of that run are replaced (`--add` keeps them), and `runs.json` says where
the new ones come from: commit, clean or not, commands, packs and machine, of a grid's own notes,
else of this checkout, so file lines where and when they were measured; `--commit` names it where
the machine had no git. A cell that was measured twice, on more episodes the second time, is kept
once. What a grid notes of selections and contributions goes to `shares` and `contributions`. Then
`make tables`.
"""

import argparse
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from polyshot.errors import PolyshotError
from polyshot.evaluation.results import (
    Result,
    Run,
    read_results,
    read_runs,
    read_table,
    write_results,
    write_table,
)
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
    parser.add_argument("--commit", default="", help="a clean one, of the code that measured")
    parser.add_argument("--add", action="store_true", help="keep the rows that the run has")
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
    about = {**about, "code": given.commit} if given.commit else about
    file, register = given.results / f"{given.table}.parquet", given.results / "runs.json"
    before = read_results(file) if file.exists() else []
    runs = read_runs(register) if register.exists() else {}
    run = run_of(about, [*about.get("commands", []), *given.command], packs, given.note)
    if given.add and (known := runs.get(given.run)):
        if known.commit != run.commit:
            raise PolyshotError(f"'{given.run}' is of commit {known.commit}: take another --run.")
        rows = longest([*(r for r in before if r.run == given.run), *rows])
        commands = list(dict.fromkeys([*known.commands, *run.commands]))
        run = replace(run, commands=commands, packs={**known.packs, **run.packs})
    runs[given.run] = run
    write_results(file, [*(r for r in before if r.run != given.run), *rows])
    if notes.is_file():
        _file_notes(given)
    write_json(register, {name: asdict(run) for name, run in runs.items()})
    print(f"{file}: {len(rows)} rows of '{given.run}', commit {runs[given.run].commit}")
    return 0


def _file_notes(given: argparse.Namespace) -> None:
    """Keep what a grid notes besides results: how members were selected and how they answered."""
    for table, rows in (
        ("shares", share_rows(given.source, given.run)),
        ("contributions", contribution_rows(given.source, given.run)),
    ):
        file = given.results / f"{table}.parquet"
        if not rows:
            continue
        before = read_table(file) if file.exists() else []
        new = {_where(row) for row in rows}
        kept = [
            row
            for row in before
            if row["run"] != given.run or (given.add and _where(row) not in new)
        ]
        write_table(file, [*kept, *rows])
        print(f"{file}: {len(rows)} rows of '{given.run}'")


def _where(row: dict[str, Any]) -> tuple[Any, ...]:
    """Tell what a row of shares or contributions is of."""
    names = ("run", "protocol", "preset", "train_seed", "method", "part", "target", "member")
    return (*(row.get(name) for name in names), *row["sources"])


def share_rows(grid: Path, run: str) -> list[dict[str, Any]]:
    """Return how often the selector chose each member, a row a target."""
    rows = []
    for file in sorted((grid / "shares").glob("*.json")):
        about = read_json(file)
        own = {"run": run, **{key: about[key] for key in ("protocol", "preset")}}
        seed = re.search(r"-seed(\d+)-", file.name)
        own |= {
            "train_seed": int(seed[1]) if seed else None,
            "method": about.get("method", "select"),
            "part": about.get("part", "test"),
            "sources": about.get("sources", []),
        }
        for target, shares in zip(about["targets"], about["shares"], strict=True):
            rows.append({**own, "target": target, "members": about["members"], "shares": shares})
    return rows


def contribution_rows(grid: Path, run: str) -> list[dict[str, Any]]:
    """Return the right answers of each member in each episode, a row a member."""
    names = ("protocol", "preset", "train_seed", "sources", "target", "queries")
    rows = []
    for file in sorted((grid / "contributions").glob("*.json")):
        about = read_json(file)
        own = {"run": run, **{name: about[name] for name in names}}
        for method, counts in about["methods"].items():
            each = zip(counts["members"], zip(*counts["correct"], strict=True), strict=True)
            for member, correct in each:
                rows.append({**own, "method": method, "member": member, "correct": list(correct)})
    return rows


def run_of(about: dict[str, Any], commands: list[str], packs: dict[str, str], note: str) -> Run:
    """Describe a run by what its folder or this machine says."""
    commit = str(about.get("code", ""))
    clean = None if not commit else "-dirty" not in commit
    machine = {name: about[name] for name in MACHINE if name in about}
    return Run(
        commit.replace("-dirty", ""),
        clean,
        commands,
        packs,
        about.get("not_mirrored"),
        machine,
        note,
    )


def longest(results: list[Result]) -> list[Result]:
    """Keep of a cell (another note, another cell) measured twice the row with more episodes."""
    found: dict[tuple[Any, ...], Result] = {}
    for r in results:
        where = (r.preset, r.protocol, r.target, r.way, r.shot, r.part, r.draw, r.seen)
        how = (r.method, r.adaptation, str(r.settings), r.train_seed, r.pool, r.added, r.note)
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
