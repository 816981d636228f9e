"""The paper's tables, figures and claims beside ours (docs/results/paper.md), made from rows.

A cell that was not measured says so, and fills in when its rows are filed (`file_results.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

from table_specs import Filter
from table_text import gap_text, markdown, percent, signed

from polyshot.evaluation import compare
from polyshot.evaluation.compare import half_widths, is_clear
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import Estimate
from polyshot.experiments.report.paper import PaperTable, paper_table, size_table

MISSING = "not measured"
NAMES = {
    "finetune": "Fine-tune",
    "protonet": "ProtoNet",
    "feat": "FEAT",
    "protomaml": "ProtoMAML",
    "simple-avg": "Simple-Avg",
    "select": "DoS",
    "select-channel": "DoS-Ch",
    "average": "DoA",
    "average-channel": "DoA-Ch",
}
"""Methods as the paper calls them, in the order of its tables."""
STAND_INS = {"aircraft": "cars", "ucf101": "actions"}
"""What we have instead of domains of the paper."""
OWN = {"table": "paper", "run": "paper", "part": "test"}
"""Rows by the faithful preset: the training that has all methods but ProtoMAML."""
SEEDS = {**OWN, "run": "paper-seeds"}
"""Two more trainings, of which the last has ProtoMAML."""
ALL = {**OWN, "run": ("paper", "paper-seeds")}


def own_rows(method: str) -> tuple[Filter, str]:
    """Return where the rows of a method are, and the mark of those of another training."""
    return (SEEDS, " †") if method == "protomaml" else (OWN, "")


class Store(Protocol):
    """What tables are made of (`tables.Store`)."""

    def find(self, wanted: Filter) -> list[Result]:
        """Return results."""

    def other(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table of other things than results."""

    used: set[str]


def by_target(store: Store, wanted: Filter) -> dict[tuple[str, int | None], Result]:
    """Find results, by target and training seed, and note their runs."""
    results = store.find(wanted)
    store.used.update(result.run for result in results)
    return compare.by_place(results)


def lead(
    store: Store, rows: Filter, protocol: str, better: Filter, worse: Filter
) -> Estimate | None:
    """Compare two methods on the targets that both have, 5-shot unless `rows` say otherwise."""
    shape = {"protocol": protocol, "seen": protocol == "seen", "shot": 5, "adaptation": "none"}
    one, other = (by_target(store, {**shape, **rows, **side}) for side in (better, worse))
    shared = {place: result for place, result in one.items() if place in other}
    return compare.difference(shared, other) if shared else None


def printed_lead(better: str, worse: str, table: str, sources: int | None = None) -> str:
    """Return by how much the paper's average of a method is above another's, if it has both."""
    block = paper_table(table, sources)
    assert block is not None
    if not all(method in block.average for method in (better, worse)):
        return ""
    return signed(block.average[better] - block.average[worse])


@dataclass(frozen=True)
class Beside:
    """A printed table of the paper: ours, and in brackets the paper's."""

    table: str
    """``seen`` or ``unseen``."""
    sources: int | None
    """Two, four or six; None: all eight, or the seven others."""
    protocol: str

    def lines(self, store: Store) -> list[str]:
        """Make the table."""
        block = paper_table(self.table, self.sources)
        assert block is not None
        methods = [method for method in NAMES if method in block.average]
        found = {
            (target, method): by_target(store, self._filter(method, STAND_INS.get(target, target)))
            for target in block.targets
            for method in methods
        }
        rows = [
            [
                self._label(target),
                *(self._cell(found, block, method, [target]) for method in methods),
            ]
            for target in block.targets
        ]
        common = [target for target in block.targets if found[target, "select"]]
        for targets, label in ((list(block.targets), "all"), (common, "those measured of DoS")):
            if targets and (label == "all" or len(targets) < len(block.targets)):
                texts = [self._cell(found, block, method, targets) for method in methods]
                rows.append([f"**average, {label}**", *texts])
        return markdown(["", *(NAMES[method] for method in methods)], rows)

    def _label(self, target: str) -> str:
        own = STAND_INS.get(target, target)
        return target if own == target else f"{target}; ours: {own}"

    def _cell(
        self,
        found: Mapping[tuple[str, str], Mapping[Any, Result]],
        block: PaperTable,
        method: str,
        targets: Sequence[str],
    ) -> str:
        """Write ours on some targets, and the paper's on the same."""
        printed = percent(fmean(block.targets[target][method] for target in targets))
        if not all(found[target, method] for target in targets):
            return f"{MISSING} ({printed})"
        ours = {(t, place): r for t in targets for place, r in found[t, method].items()}
        mean = compare.accuracy(ours)
        many = f" {half_widths(mean)}" if len(targets) > 1 else ""
        return f"{percent(mean.value)}{many} ({printed}){own_rows(method)[1]}"

    def _filter(self, method: str, target: str) -> Filter:
        how = {"method": method, "adaptation": "none", "shot": 5, "target": target}
        return {
            **own_rows(method)[0],
            "protocol": self.protocol,
            "seen": self.table == "seen",
            **how,
        }


@dataclass(frozen=True)
class Figure:
    """A figure without numbers: ours alone, a line a target."""

    protocol: str
    shot: int

    def lines(self, store: Store) -> list[str]:
        """Make the table: with further adaptation, in brackets what that changes."""
        methods = ["base", *NAMES]
        found = {
            method: {
                how: by_target(store, self._filter(method, how)) for how in ("none", "adapted")
            }
            for method in methods
        }
        targets = sorted({t for own in found.values() for each in own.values() for t, _ in each})
        rows = [[t, *(self._cell(found[m], m, [t]) for m in methods)] for t in targets]
        common = [t for t in targets if t in {place[0] for place in found["select"]["none"]}]
        label = "average" if common == targets else "average, those measured of DoS"
        rows.append([f"**{label}**", *(self._cell(found[m], m, common) for m in methods)])
        return markdown(["", "base", *NAMES.values()], rows)

    def _filter(self, method: str, how: str) -> Filter:
        adaptations = ("none",) if how == "none" else ("head", "steps-100")
        return {
            **own_rows(method)[0],
            "protocol": self.protocol,
            "shot": self.shot,
            "method": method,
            "adaptation": adaptations,
        }

    def _cell(
        self, own: Mapping[str, Mapping[Any, Result]], method: str, targets: Sequence[str]
    ) -> str:
        plain, adapted = (
            {place: r for place, r in own[how].items() if place[0] in targets}
            for how in ("none", "adapted")
        )
        if not targets or {t for t, _ in plain} != set(targets):
            return MISSING
        text = percent(compare.accuracy(plain).value) + own_rows(method)[1]
        gap = compare.difference(adapted, plain) if len(adapted) == len(plain) else None
        return text if gap is None else f"{text} ({gap_text(gap)})"


@dataclass(frozen=True)
class Claim:
    """Something that the paper says of two of its columns."""

    words: str
    protocol: str
    better: Filter
    worse: Filter


@dataclass(frozen=True)
class Claims:
    """The paper's claims, its averages, and what our rows say, 5-way 5-shot."""

    claims: Sequence[Claim]
    rows: Mapping[str, Filter]
    """Columns: where rows are taken from."""

    def lines(self, store: Store) -> list[str]:
        """Make the table."""
        lines = [
            [each.words, each.protocol, self._paper(each), *self._ours(store, each)]
            for each in self.claims
        ]
        return markdown(["claim", "domains", "the paper", *self.rows], lines)

    def _paper(self, claim: Claim) -> str:
        """Return the paper's lead, where it prints both."""
        if "adaptation" in claim.better:
            return "in words"
        methods = (claim.better["method"], claim.worse["method"])
        return printed_lead(*methods, claim.protocol) or "has none"

    def _ours(self, store: Store, claim: Claim) -> list[str]:
        texts = []
        for rows in self.rows.values():
            gap = lead(store, rows, claim.protocol, claim.better, claim.worse)
            if gap is None:
                texts.append(MISSING)
                continue
            verdict = "holds" if gap.value > 0 else "the other way round"
            verdict = verdict if is_clear(gap) else "undecided"
            texts.append(f"{verdict}: {gap_text(gap)}")
        return texts


@dataclass(frozen=True)
class Against:
    """How far DoS and DoA are ahead of every rival, on seen and on unseen domains, 5-shot."""

    adaptation: str

    def lines(self, store: Store) -> list[str]:
        """Make the table; in brackets the paper's lead, where it prints one."""
        columns = [(ours, kind) for kind in ("seen", "unseen") for ours in ("select", "average")]
        plain = self.adaptation == "none"
        names = {**NAMES, "base": "base + prototypes"} if plain else NAMES
        rows = []
        for rival in (*RIVALS, "base") if plain else RIVALS:
            texts = [names[rival]]
            for ours, kind in columns:
                # Fine-tune is a head and nothing else, and has the same rows in both tables.
                its = {"adaptation": "none"} if rival == "finetune" else {}
                own = {**ALL, "adaptation": self.adaptation}
                gap = lead(store, own, kind, {"method": ours}, {"method": rival, **its})
                printed = printed_lead(ours, rival, kind) if plain else ""
                text = MISSING if gap is None else gap_text(gap)
                texts.append(f"{text} ({printed})" if printed else text)
            rows.append(texts)
        return markdown(["", *(f"{NAMES[ours]}, {kind}" for ours, kind in columns)], rows)


@dataclass(frozen=True)
class Trainings:
    """Each training by itself, and all together: eight seen domains, without adaptation."""

    leads: Mapping[str, tuple[Filter, Filter]]
    """Label -> whose lead, over whom."""

    def lines(self, store: Store) -> list[str]:
        """Make the table."""
        rows = []
        for shot in (5, 1):
            where = {"protocol": "seen", "seen": True, "shot": shot, "adaptation": "none"}
            base = by_target(store, {**ALL, **where, "method": "base"})
            mean = compare.accuracy(base)
            texts = [percent(value) for _, value in sorted(mean.by_training)]
            whole = f"{percent(mean.value)} {half_widths(mean)}"
            rows.append([f"{shot}-shot, base + prototypes", *texts, whole])
            for label, sides in self.leads.items():
                gap = lead(store, {**ALL, "shot": shot}, "seen", *sides)
                by_seed = dict(gap.by_training) if gap else {}
                texts = [
                    signed(by_seed[seed]) if seed in by_seed else MISSING
                    for seed, _ in sorted(mean.by_training)
                ]
                whole = MISSING if gap is None else gap_text(gap)
                rows.append([f"{shot}-shot, {label}", *texts, whole])
        seeds = [f"seed {seed}" for seed, _ in sorted(mean.by_training)]
        return markdown(["", *seeds, "all"], rows)


@dataclass(frozen=True)
class Sources:
    """Leads with two, four, six and all sources, 5-shot; in brackets the paper's."""

    pairs: Sequence[tuple[str, str, str]]
    """Whose lead, over whom, on seen or unseen domains."""

    def lines(self, store: Store) -> list[str]:
        """Make the table."""
        rows = []
        for better, worse, kind in self.pairs:
            names = (NAMES.get(method, "base + prototypes") for method in (better, worse))
            texts = [f"{' - '.join(names)}, {kind}"]
            for count in (2, 4, 6, None):
                own = {**OWN, "protocol": f"sources-{count}"} if count else OWN
                gap = lead(store, own, kind, {"method": better}, {"method": worse})
                text = MISSING if gap is None else gap_text(gap)
                printed = printed_lead(better, worse, kind, count)
                texts.append(f"{text} ({printed})" if printed else text)
            rows.append(texts)
        return markdown(["", "two sources", "four", "six", "all"], rows)


@dataclass(frozen=True)
class Growing:
    """The same targets with two, four, six and eight sources, 5-shot, without adaptation."""

    targets: Mapping[str, Sequence[str]]
    """Label -> targets that are seen by, or unseen by, all of the trainings."""

    def lines(self, store: Store) -> list[str]:
        """Make the table."""
        rows = []
        for label, targets in self.targets.items():
            for method in ("base", "select", "average"):
                texts = [label, NAMES.get(method, "base + prototypes")]
                for count in (2, 4, 6, 8):
                    protocols = (f"sources-{count}",) if count < 8 else ("seen", "unseen")
                    how = {"method": method, "adaptation": "none", "shot": 5}
                    where = {"protocol": protocols, "target": tuple(targets)}
                    found = by_target(store, {**OWN, **where, **how})
                    done = {target for target, _ in found} == set(targets)
                    texts.append(percent(compare.accuracy(found).value) if done else MISSING)
                rows.append(texts)
        return markdown(["", "", "two sources", "four", "six", "eight"], rows)


@dataclass(frozen=True)
class Selected:
    """How often the selector chose the member of a target's own domain."""

    lines_of: Mapping[str, Filter]
    """Label -> fields of rows of `shares`."""
    targets: Sequence[str]

    def lines(self, store: Store) -> list[str]:
        """Make the table."""
        rows = []
        for label, wanted in self.lines_of.items():
            found = {}
            for row in store.other("shares"):
                asked = all(row[key] == value for key, value in wanted.items())
                if asked and row["target"] in row["members"]:
                    own = row["members"].index(row["target"])
                    found[row["target"]] = row["shares"][own]
                    store.used.add(row["run"])
            texts = [f"{100 * found[t]:.1f} %" if t in found else MISSING for t in self.targets]
            rows.append([label, *texts])
        return markdown(["", *self.targets], rows)


@dataclass(frozen=True)
class Members:
    """How the members of averaging methods answer (the paper's figure of contributions)."""

    runs: Mapping[str, str]
    """Label -> run."""

    def lines(self, store: Store) -> list[str]:
        """Make the table: over all targets, 40 episodes of 50 queries each."""
        head = ["", "method", "right of 50, a member", "best member", "two most frequent best"]
        rows = []
        for label, run in self.runs.items():
            for method in ("simple-avg", "average"):
                own = [
                    row
                    for row in store.other("contributions")
                    if (row["run"], row["method"]) == (run, method)
                ]
                store.used.update(row["run"] for row in own)
                texts = _contributions(own) if own else [MISSING, "", ""]
                rows.append([label, NAMES[method], *texts])
        return markdown(head, rows)


def _contributions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Average over targets: right answers of a member, of the best, and how often two lead."""
    means, best, leading = [], [], []
    for target in dict.fromkeys(row["target"] for row in rows):
        own = [row["correct"] for row in rows if row["target"] == target]
        episodes = list(zip(*own, strict=True))
        means.append(sum(map(sum, own)) / sum(map(len, own)))
        best.append(max(sum(each) / len(each) for each in own))
        first = [[i for i, n in enumerate(each) if n == max(each)] for each in episodes]
        counts = sorted(range(len(own)), key=lambda i: -sum(i in each for each in first))[:2]
        leading.append(sum(any(i in counts for i in each) for each in first) / len(first))
    count = len(means)
    return [
        f"{sum(means) / count:.1f}",
        f"{sum(best) / count:.1f}",
        f"{100 * sum(leading) / count:.0f} % of episodes",
    ]


@dataclass(frozen=True)
class Joint:
    """Base and modulators trained together, beside the three steps, 5-way 5-shot."""

    def lines(self, store: Store) -> list[str]:
        """Make the table."""
        rows = []
        for label, protocol, targets in (
            ("eight seen domains", "seen", SEEN),
            ("dtd, unseen", "unseen", ("dtd",)),
        ):
            both = [{**OWN, "protocol": own, "target": targets} for own in (protocol, "joint")]
            for method in ("base", "select", "average"):
                how = {"method": method, "shot": 5, "adaptation": "none"}
                steps, joint = (by_target(store, {**rows_of, **how}) for rows_of in both)
                gap = compare.difference(joint, steps) if joint else None
                texts = [MISSING, MISSING]
                if gap is not None:
                    one, other = (percent(compare.accuracy(own).value) for own in (steps, joint))
                    texts = [one, f"{other} ({gap_text(gap)})"]
                rows.append([label, NAMES.get(method, "base + prototypes"), *texts])
            sides = ({"method": "select"}, {"method": "average"})
            gaps = (lead(store, rows_of, protocol, *sides) for rows_of in both)
            texts = [MISSING if gap is None else gap_text(gap) for gap in gaps]
            rows.append([label, "DoS - DoA", *texts])
        return markdown(["", "", "three steps", "joint"], rows)


@dataclass(frozen=True)
class Sizes:
    """The table of parameters, which nothing is measured for."""

    def lines(self, store: Store) -> list[str]:  # noqa: ARG002
        """Make the table."""
        table = size_table()
        return markdown(list(table.head), [list(row) for row in table.rows])


def _versus(ours: str, protocol: str, words: str, *rivals: str, **names: str) -> list[Claim]:
    return [
        Claim(f"{words} {names.get(r, NAMES.get(r, r))}", protocol, {"method": ours}, {"method": r})
        for r in rivals
    ]


RIVALS = ("finetune", "protonet", "feat", "protomaml", "simple-avg")
SEEN = ("actions", "cars", "cifar100", "flowers", "gtsrb", "imagenet", "omniglot", "plankton")
RUNS: Mapping[str, Filter] = {
    "ours, `paper`": ALL,
    "the same, one shot": {**ALL, "shot": 1},
    "`strong`": {"table": "rivals", "run": "strong", "part": "test"},
}
PAPER_TABLES: Mapping[str, Any] = {
    "paper-seen": Beside("seen", None, "seen"),
    "paper-unseen": Beside("unseen", None, "unseen"),
    **{
        f"paper-{count}-{kind}": Beside(kind, count, f"sources-{count}")
        for count in (2, 4, 6)
        for kind in ("seen", "unseen")
    },
    **{
        f"paper-figure-{protocol}-{shot}": Figure(protocol, shot)
        for shot in (5, 1)
        for protocol in ("seen", "unseen")
    },
    "paper-claims": Claims(
        [
            *_versus("select", "seen", "DoS beats", "average"),
            *_versus("average", "unseen", "DoA beats", "select"),
            *_versus("select", "seen", "DoS beats", *RIVALS),
            *_versus("average", "unseen", "DoA beats", *RIVALS),
            *_versus("select", "seen", "DoS is ahead of", "select-channel"),
            *_versus("average-channel", "unseen", "DoA-Ch is ahead of", "average"),
            *(
                Claim(
                    f"{NAMES[method]} gains by further adaptation",
                    protocol,
                    {"method": method, "adaptation": "head"},
                    {"method": method},
                )
                for method, protocol in (("select", "seen"), ("average", "unseen"))
            ),
            *_versus("select", "seen", "DoS beats", "base", base="base + prototypes"),
            *_versus("average", "unseen", "DoA beats", "base", base="base + prototypes"),
        ],
        RUNS,
    ),
    "paper-trainings": Trainings(
        {
            "DoS - base": ({"method": "select"}, {"method": "base"}),
            "DoA - base": ({"method": "average"}, {"method": "base"}),
            "DoS - DoA": ({"method": "select"}, {"method": "average"}),
            "DoS - ProtoMAML": ({"method": "select"}, {"method": "protomaml"}),
            "DoS + head - DoS": ({"method": "select", "adaptation": "head"}, {"method": "select"}),
        }
    ),
    "paper-against": Against("none"),
    "paper-against-head": Against("head"),
    "paper-leads-sources": Sources(
        [
            ("select", "average", "seen"),
            ("select", "finetune", "seen"),
            ("select", "base", "seen"),
            ("select", "select-channel", "seen"),
            ("average", "base", "seen"),
            ("average", "select", "unseen"),
            ("average", "finetune", "unseen"),
            ("average", "base", "unseen"),
            ("average-channel", "average", "unseen"),
        ]
    ),
    "paper-growing": Growing(
        {"cifar100 and imagenet, seen": ("cifar100", "imagenet"), "dtd, unseen": ("dtd",)}
    ),
    "paper-selected": Selected(
        {
            **{
                f"{NAMES[method]}, `paper`": {"run": "paper", "protocol": "seen", "method": method}
                for method in ("select", "select-channel")
            },
            **{
                f"DoS, `paper`, seed {seed}": {
                    "run": "paper-seeds",
                    "protocol": "seen",
                    "method": "select",
                    "train_seed": seed,
                }
                for seed in (1, 2)
            },
            "DoS, `paper`, joint training": {"run": "paper", "protocol": "joint"},
        },
        SEEN,
    ),
    "paper-contributions": Members({"`paper`": "paper"}),
    "paper-sizes": Sizes(),
    "paper-joint": Joint(),
}
"""By the name that a page gives them."""
