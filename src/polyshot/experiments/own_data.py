"""Measuring a pool: on packs, or on a user's own labelled images, packed for the occasion.

Of one's own images all classes are new to the pool, and the tasks are as large as they allow. What
came out is shown on a page.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from polyshot.data.importer import Imported, ImportOptions, import_source
from polyshot.data.pack import Domain, Pack, open_packs
from polyshot.data.shapes import (
    META_DATASET,
    EpisodeShape,
    VariableShape,
    fitting_classes,
    largest_shape,
)
from polyshot.data.splits import PARTS, ClassSplit
from polyshot.errors import PolyshotError, counted, join_names, unknown
from polyshot.evaluation.compare import BASELINE, rows
from polyshot.evaluation.results import Result
from polyshot.experiments.report.pages import ResultsPage
from polyshot.experiments.report.summary import calibration_table
from polyshot.experiments.sheet import contact_sheet
from polyshot.pool.pool import Pool
from polyshot.predict.rules import RULES, rule
from polyshot.util.progress import Progress
from polyshot.util.scratch import scratch_folder

ADAPTATIONS = {
    "+ head": "a linear head learned on the support set",
    "+ ridge": "a linear head in closed form, by ridge regression on the support set",
    "+ pa": "a linear map of the embeddings learned on the support set",
    "+ tsa": "a modulator of the task's own learned on the support set",
}
"""What the further adaptations do, for the page's legend."""

LARGEST = EpisodeShape()
"""What is measured where the images allow it: 5 ways, 5 shots, 10 queries."""
SHAPES = ("fixed", META_DATASET)
"""What tasks may look like: as many ways and shots in each, or Meta-Dataset's."""


@dataclass(frozen=True)
class ShapeRequest:
    """Numbers of an episode's shape that a user insists on; the others follow from the images."""

    way: int | None = None
    shot: int | None = None
    queries: int | None = None
    variable: bool = False
    """Let ways and shots vary as in Meta-Dataset; then there are no numbers to insist on."""

    @classmethod
    def of(cls, shape: str, way: int | None, shot: int | None, queries: int | None) -> Self:
        """Check the name of a shape, and that numbers go with it."""
        if shape not in SHAPES:
            raise unknown("shape", shape, SHAPES)
        if way == 1:
            raise PolyshotError("--way 1: of one class every answer is right, name two or more.")
        if shape == META_DATASET and (way, shot, queries) != (None, None, None):
            raise PolyshotError(
                f"--shape {META_DATASET} draws ways, shots and queries itself: leave out --way, "
                "--shot and --queries."
            )
        return cls(way, shot, queries, shape == META_DATASET)

    def shape(self, default: EpisodeShape = LARGEST) -> EpisodeShape:
        """Fill what is not asked for from another shape."""
        return EpisodeShape(
            default.way if self.way is None else self.way,
            default.shot if self.shot is None else self.shot,
            default.queries if self.queries is None else self.queries,
        )


@dataclass(frozen=True)
class Target:
    """One domain and the tasks that are drawn from it."""

    pack: Pack
    shape: EpisodeShape | VariableShape
    part: str
    """Of its class split."""
    drop_small: bool
    """Leave classes out that are too small for the shape."""
    remarks: tuple[str, ...] = ()
    """What a user should know: files and classes left out, tasks smaller than usual."""


def holds_packs(path: Path) -> bool:
    """Whether a folder is a pack or holds packs; anything else is taken for images."""
    return (path / "domain.json").is_file() or any(path.glob("*/domain.json"))


@contextmanager
def open_targets(
    path: Path,
    size: int,
    request: ShapeRequest | None = None,
    only: Sequence[str] = (),
    part: str | None = None,
    drop_small: bool = False,
    group_disjoint: bool = True,
    progress: Progress | None = None,
) -> Iterator[list[Target]]:
    """Open packs, or import images for as long as the context lasts.

    Args:
        path: a pack or a folder of packs; an image folder, or what else `data import` reads.
        size: the pool's, to which images are brought.
        request: what the tasks must look like.
        only: of several domains take these.
        part: of the packs' class split, ``test`` by default; of images all classes are taken.
        drop_small: of packs, leave out classes that are too small for the shape.
        group_disjoint: keep support and query from sharing a group, where there are groups.
        progress: told how many images were read.

    """
    request = request or ShapeRequest()
    if part is not None and part not in (*PARTS, "all"):
        raise unknown("part", part, (*PARTS, "all"))
    if (path / "pool.json").is_file():
        raise PolyshotError(f"{path} is a pool: name it with --pool, and the images without.")
    if holds_packs(path):
        packs = open_packs(path, list(dict.fromkeys(only)))
        shape = VariableShape() if request.variable else request.shape()
        yield [Target(pack, shape, part or "test", drop_small) for pack in packs]
        return
    options = ImportOptions(size=size, skip_bad=True, only=tuple(only))
    with scratch_folder() as folder:
        imported = import_source(path, folder, options, progress=progress)
        yield [_own(one, request, group_disjoint) for one in imported]


def choose_shape(
    domain: Domain, request: ShapeRequest | None = None, group_disjoint: bool = True
) -> EpisodeShape:
    """Find the largest tasks, up to 5 ways, 5 shots and 10 queries, for most of the classes.

    Two thirds of the images of a small class are support, one third queries. Refuses where fewer
    than two classes have two images each.
    """
    request = request or ShapeRequest()
    if len(domain.class_names) < 2:
        raise PolyshotError(
            f"{domain.name} has one class, '{domain.class_names[0]}': there is nothing to tell "
            "apart. Give a folder for each of two or more classes."
        )
    found = largest_shape(domain, LARGEST, group_disjoint=group_disjoint, wished=request.shape)
    if found is None:
        usable = len(fitting_classes(domain, EpisodeShape(1, 1, 1), group_disjoint=group_disjoint))
        raise PolyshotError(
            f"{domain.name}: {usable} of {len(domain.class_names)} classes have two images, at "
            "least two classes must: one image to learn from and one to ask for. Add images."
        )
    return found


def _own(imported: Imported, request: ShapeRequest, group_disjoint: bool) -> Target:
    """Describe imported images as a target, with what was left out."""
    domain = imported.pack.domain
    usual = EpisodeShape(1, 1, 1)  # one image to learn from and one to ask for
    if not request.variable:
        usual = choose_shape(domain, request, group_disjoint)
    remarks = []
    if bad := imported.skipped:
        named = join_names((f"{one.where} ({one.kind})" for one in bad), limit=3)
        files = counted(len(bad), "file is", "files are")
        remarks.append(f"{domain.name}: {files} left out: {named}.")
    kept = set(fitting_classes(domain, usual, group_disjoint=group_disjoint))
    small = [name for i, name in enumerate(domain.class_names) if i not in kept]
    if small:
        remarks.append(
            f"{domain.name}: {len(small)} of {len(domain.class_names)} classes have fewer than "
            f"{usual.shot + usual.queries} images and are left out: {join_names(small, 3)}."
        )
    if not request.variable and usual != request.shape():
        remarks.append(
            f"{domain.name}: {len(domain.labels):,} images of {len(domain.class_names)} classes "
            f"allow tasks of {usual}, fewer than the usual {LARGEST}."
        )
    everything = ClassSplit((), (), tuple(range(len(domain.class_names))), rule="target-only")
    pack = replace(imported.pack, domain=domain.with_split(everything))
    shape = VariableShape() if request.variable else usual
    return Target(pack, shape, "all", True, tuple(remarks))


# --- the page


def rules_of(pool: Pool) -> list[str]:
    """List the rules that a pool can follow on embeddings alone, the base first.

    `select` needs a selector; a rule that mixes modulators by what it sees in a task makes a
    network for each, which takes minutes on a CPU.
    """
    able: dict[str, str] = {RULES[BASELINE].name: BASELINE}
    for name in possible(pool, RULES):
        found = rule(name, pool)
        if found.mixes != "modulators" or not found.members(pool):
            able.setdefault(found.name, name)  # `auto` may be another one
    return list(able.values())


def possible(pool: Pool, names: Iterable[str]) -> list[str]:
    """Return the rules that a pool can follow: `select` needs a selector, `urt` its attention."""
    able = []
    for name in names:
        try:
            rule(name, pool)
        except PolyshotError:
            continue
        able.append(name)
    return able


def write_evaluation(
    path: Path,
    pool: Pool,
    targets: Sequence[Target],
    results: Sequence[Result],
    pool_name: str,
) -> None:
    """Write the page about a pool, called as the user did; `base` is among the methods."""
    packs = [target.pack for target in targets]
    domains = [pack.domain for pack in packs]
    fixed = [target.shape for target in targets if isinstance(target.shape, EpisodeShape)]
    ways = {shape.way for shape in fixed}  # none where they vary
    shapes = {str(target.shape) for target in targets}
    episodes = max(result.episodes for result in results)
    used = {result.method for result in results} | {f"+ {r.adaptation}" for r in results}
    known = {name: one.about for name, one in RULES.items()} | ADAPTATIONS
    ResultsPage(
        f"Polyshot on {', '.join(domain.name for domain in domains)}",
        rows(results),
        sheets={pack.domain.name: contact_sheet(pack, classes=12, examples=6) for pack in packs},
        remarks=[remark for target in targets for remark in target.remarks],
        calibration=calibration_table(results),
        chance=1 / ways.pop() if len(ways) == 1 else None,
        facts={
            "pool": pool_name,
            "members": str(len(pool.members)),
            "images": f"{sum(len(domain.labels) for domain in domains):,}",
            "classes": f"{sum(len(domain.class_names) for domain in domains):,}",
            "tasks": f"{episodes:,}",
        },
        legend={name: about for name, about in known.items() if name in used},
    ).write(path, "evaluation.html", pool_name=pool_name, episodes=episodes, shapes=shapes)
