"""The report page of one evaluation: a pool on some targets, often a user's own images."""

from collections.abc import Sequence
from pathlib import Path

from polyshot.errors import PolyshotError
from polyshot.evaluation.compare import BASELINE, rows
from polyshot.evaluation.results import Result
from polyshot.experiments.calibration_tables import calibration_section
from polyshot.experiments.own_data import Target
from polyshot.experiments.page import write_page
from polyshot.experiments.sheet import contact_sheet
from polyshot.pool.pool import Pool
from polyshot.predict.rules import RULES, rule

ADAPTATIONS = {
    "+ head": "a linear head learned on the support set",
    "+ pa": "a linear map of the embeddings learned on the support set",
    "+ tsa": "a modulator of the task's own learned on the support set",
}
"""What the further adaptations do, for the page's legend."""


def rules_of(pool: Pool) -> list[str]:
    """List the rules that a pool can follow on embeddings alone, the base first.

    `select` needs a selector; a rule that mixes modulators makes a network of its own for each
    task, which takes minutes on a CPU.
    """
    able = [BASELINE]
    for name in RULES:
        try:
            found = rule(name, pool)
        except PolyshotError:
            continue  # measured are those that can be
        if found.mixes != "modulators":
            able.append(name)
    return list(dict.fromkeys(able))


def write_evaluation(
    path: Path,
    pool: Pool,
    targets: Sequence[Target],
    results: Sequence[Result],
    pool_name: str,
    commands: Sequence[str] = (),
) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        pool: what was measured.
        targets: on these.
        results: all of them, `base` among the methods.
        pool_name: as the user called it.
        commands: what to type next.

    """
    names = [target.pack.domain.name for target in targets]
    shapes = {str(target.shape) for target in targets}
    ways = {target.shape.way for target in targets}
    episodes = max(result.episodes for result in results)
    used = {result.method for result in results} | {f"+ {r.adaptation}" for r in results}
    known = {name: one.about for name, one in RULES.items()} | ADAPTATIONS
    legend = {name: about for name, about in known.items() if name in used}
    write_page(
        path,
        f"Polyshot on {', '.join(names)}",
        [
            f"The pool {pool_name} was shown {episodes:,} tasks of each domain: "
            f"{'; '.join(sorted(shapes))} a task. All classes are new to it; what it knows of them "
            "it learned from the examples of each task.",
        ],
        rows(results),
        {
            target.pack.domain.name: contact_sheet(target.pack, classes=12, examples=6)
            for target in targets
        },
        None,
        [
            *(remark for target in targets for remark in target.remarks),
            "Intervals cover the choice of tasks among these images. With few images the same ones "
            "come again in many tasks: other images of the same classes may do better or worse.",
        ],
        calibration=calibration_section(results),
        baseline=BASELINE,
        chance=1 / ways.pop() if len(ways) == 1 else None,
        facts={
            "pool": pool_name,
            "members": str(len(pool.members)),
            "images": f"{sum(len(target.pack.domain.labels) for target in targets):,}",
            "classes": f"{sum(len(target.pack.domain.class_names) for target in targets):,}",
            "tasks": f"{episodes:,}",
        },
        legend=legend,
        commands=commands,
    )
