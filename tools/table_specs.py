"""What the tables of README.md and docs/ are made of: data for `tables.py`.

A filter names fields of results and the value, or the values, that they must have; `table` is the
file in results/.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Filter = Mapping[str, Any]
PAIR = ("run", "target", "train_seed", "shot", "shape", "protocol", "part", "seen")
BASE = {"method": "base", "adaptation": "none"}
OPTIONAL = ("paper",)
"""Tables that nothing may have been filed in yet."""


@dataclass(frozen=True)
class Grid:
    """Lines and columns are filters; a cell averages over the targets and trainings it finds.

    `show` says what of it is shown: `gain` 81.2 (+0.4 ±0.1), and of the base 80.8 ±0.2;
    `plain gain` the same without the base's interval; `both` 81.2 ±0.2 (+0.4 ±0.1); `value` 81.2;
    `difference` +0.4 ±0.1; `calibration` the calibration error; `cost` multiply-adds and time;
    `sameness` whether all answers are the same; `budget` episodes of training. A line's or a
    column's own `show` and `against` go first.
    """

    rows: Filter
    lines: Mapping[str, Filter]
    columns: Mapping[str, Filter]
    show: str = "gain"
    bold: str = "columns"
    """Whether the best of each `columns` or `lines` is set in bold, or nothing."""
    digits: int = 1
    corner: str = ""
    against: Filter = field(default_factory=lambda: BASE)
    """What the others are compared with, at the same place."""
    pair: tuple[str, ...] = PAIR
    """Fields that are alike in two results that are compared."""
    but: Mapping[tuple[str, str], Filter] = field(default_factory=dict)
    """What else single cells ask for."""
    missing: str = ""
    """What stands where there are no rows."""


@dataclass(frozen=True)
class Tried:
    """What was tried to answer a question (`tried.parquet`)."""

    question: str
    lines: Mapping[str, str]
    """Label -> variant; the first is what others are compared with."""
    columns: Mapping[str, str]
    """Label -> target."""
    gain: bool = False
    bold: bool = False
    corner: str = ""


@dataclass(frozen=True)
class Added:
    """Domains that were added to a pool, under some rules."""

    rows: Filter
    domains: tuple[str, ...]
    rules: tuple[str, ...]
    head: tuple[str, ...]


PLAIN_OR_HEAD = ("none", "head", "steps-100")
SEEN_SHOTS: Mapping[str, Filter] = {
    "5-shot": {"shot": 5, "adapted": False},
    "5-shot, adapted": {"shot": 5, "adapted": True},
    "1-shot": {"shot": 1, "adapted": False},
    "1-shot, adapted": {"shot": 1, "adapted": True},
}
BUDGET: Mapping[str, Filter] = {"training episodes": {"show": "budget"}}


def methods(*names: str, **labels: str) -> dict[str, Filter]:
    """Make a line for each method, with a head or without, under its name or a label."""
    return {
        labels.get(name.replace("-", "_"), name): {"method": name, "adaptation": PLAIN_OR_HEAD}
        for name in names
    }


PAPER_NAMES = {"select": "select (DoS)", "average": "average (DoA)"}
STRONG: Filter = {"table": "rivals", "run": "strong"}
"""Every method of one training of `strong`, rivals with as many episodes as all modulators."""
TRAININGS: Filter = {"table": "rivals", "run": ("strong-now", "strong", "strong-single")}
"""The same with three more trainings, of which some methods were measured."""
SINGLE: Filter = {"table": "rivals", "run": "strong-single", "protocol": "unseen"}
"""The last of them: `tsa` learns from single images, and fine-tuning goes on for longer."""
RULES = ("auto", "select", "average", "base", "soft", "loo", "sum", "sur", "urt", "blend")
LEFT_OUT = ("gtsrb", "cars", "plankton", "dtd")
SHIPPED = "src/polyshot/pools/default; five"
"""The note of rows of the pool that ships."""
SIX = ("actions", "cars", "cifar100", "flowers", "gtsrb", "plankton")
VALIDATED = ("actions", "cifar100", "flowers", "omniglot")
"""Left out to choose by, and reported by no table as unseen."""
SEEN = ("actions", "cars", "cifar100", "flowers", "gtsrb", "imagenet", "omniglot", "plankton")


RIVAL_LINES: Mapping[str, Filter] = {
    **methods("base", "finetune", "finetune-all", "feat", "tadam", "select", "average", "auto",
              **PAPER_NAMES),
    "base + tsa": {"method": "base", "adaptation": "tsa"},
    "auto + tsa": {"method": "auto", "adaptation": "tsa"},
}  # fmt: skip


def rivals(protocol: str, *targets: str) -> Grid:
    """Make a table of every method of the training `strong`."""
    rows = {**STRONG, "protocol": protocol, **({"target": targets} if targets else {})}
    return Grid(rows, RIVAL_LINES, {**BUDGET, **SEEN_SHOTS})


SINGLE_LINES: Mapping[str, Filter] = {
    **{
        PAPER_NAMES.get(name, name): {"method": name, "adaptation": "none"}
        for name in ("base", "finetune", "select", "average", "auto", "feat")
    },
    "feat + head": {"method": "feat", "adaptation": "head"},
    "protonet": {"method": "protonet", "adaptation": "none"},
    "protonet + head": {"method": "protonet", "adaptation": "head"},
    "finetune-all, 100 steps": {"method": "finetune-all"},
    "base + tsa": {"method": "base", "adaptation": "tsa"},
    "auto + tsa": {"method": "auto", "adaptation": "tsa"},
}


def by_training(domains: Mapping[str, Filter], seeds: Sequence[int]) -> dict[str, Filter]:
    """Make lines of shots and domains, one for each training and one for all."""
    return {
        f"{name}{label}": {**own, **which}
        for name, own in domains.items()
        for label, which in (
            *((f", seed {n}", {"train_seed": n, "show": "plain gain"}) for n in seeds),
            (", all", {}),
        )
    }


def tsa(**settings: float) -> Filter:
    """Filter what learned on the support set with some settings."""
    return {"adaptation": "tsa", "settings": settings}


SEEDS: Mapping[str, Filter] = {
    "base": {"method": "base"},
    "select (DoS)": {"method": "select"},
    "average (DoA)": {"method": "average"},
    "auto": {"method": "auto", "adaptation": "none"},
    "auto + tsa": {"method": "auto", "adaptation": "tsa"},
}
SEEDS_COLUMNS: Mapping[str, Filter] = {
    "5-shot": {"shot": 5, "adapted": False},
    "5-shot, adapted": {"shot": 5, "adapted": True},
    "1-shot": {"shot": 1},
}


def seeds(protocol: str, **rows: Any) -> Grid:
    """Make a table of three seeds."""
    return Grid({"table": "seeds", "protocol": protocol, **rows}, SEEDS, SEEDS_COLUMNS)


def views(shot: int) -> dict[str, Filter]:
    """Make the two lines of a shot: one view, and five."""
    return {
        f"{shot}-shot, one view": {"run": "views-one", "shot": shot},
        f"{shot}-shot, five views": {"run": "views-five", "shot": shot},
    }


DOMAINS: Mapping[str, Filter] = {
    f"{name}, {protocol}": {"target": name, "protocol": protocol}
    for protocol, names in (("seen", SEEN), ("unseen", LEFT_OUT))
    for name in names
}

BASE_TSA: Filter = {
    "table": "rules",
    "run": "seeds",  # of the first of the three trainings
    "method": "base",
    "adaptation": "tsa",
    "against": {"table": "seeds"},
}
README_LINES: Mapping[str, Filter] = {
    "eight seen domains, new classes": {"protocol": "seen"},
    "four unseen domains": {"protocol": "unseen"},
    "three of them, without gtsrb": {"protocol": "unseen", "target": LEFT_OUT[1:]},
    "three domains added later": {
        "run": "strong",
        "protocol": "added",
        "grown_by_target": True,
        "against": {"seen": False, "target": LEFT_OUT[:3], "run": "strong"},
    },
}
README_COLUMNS: Mapping[str, Filter] = {
    "base + prototypes": BASE,
    "select (DoS)": {"method": "select", "adaptation": "none"},
    "average (DoA)": {"method": "average", "adaptation": "none"},
    "auto": {"method": "auto", "adaptation": "none"},
    "auto + tsa, the default": {"method": "auto", "adaptation": "tsa"},
    "base + tsa": {"method": "base", "adaptation": "tsa"},
    "FEAT*": {"method": "feat", "adaptation": "head"},
    "TADAM": {"method": "tadam", "adaptation": "head"},
    "fine-tune every layer, 25 steps": {"method": "finetune-all", "run": "strong"},
}


def soup(method: str, times: str, factor: float = 1.0) -> Filter:
    """Return the rows of a rule on Lite0 with modulators of three sources (run `choose-soup`)."""
    note = f"runs/L/pool; queries seen {times}; strengths x {factor}"
    return {"method": method, "note": note}


def lite0_tsa(sites: str, rate: str, more: str = "") -> Filter:
    """Find what was tried of `tsa` on Lite0, by the words of the try."""
    words = f'tsa_share=1.0 tsa_sites=["{sites}"] rates=[{rate}]{more}'
    return {"note": f"efficientnet-lite0; three; {words}"}


def snapshots(words: str) -> Filter:
    """Find what was tried of snapshots and of weights of crops (run `choose-snapshots`)."""
    return {"note": f"lite0; three; queries one; 128 px; left out; {words}"}


def read_after(updates: str) -> Filter:
    """Find which states of `tsa` were read out."""
    return snapshots(f'read out {updates}; tsa_snapshots=["4","7","10","6-10"]')


def centred(much: str) -> Filter:
    """Find what was tried of single images less what a source's have in common."""
    return {"note": f"{SHIPPED}; centre_single={much}"}


def learned_with(augmentation: str) -> Filter:
    """Find what pools did whose modulators learned with an augmentation."""
    where = {"weak": "runs/weak/pool", "strong": "src/polyshot/pools/default"}[augmentation]
    return {"note": f"{where}; five"}


PAPER_COLUMNS = {
    "Fine-tune": "finetune",
    "ProtoNet": "protonet",
    "FEAT": "feat",
    "Simple-Avg": "simple-avg",
    "DoS": "select",
    "DoS-Ch": "select-channel",
    "DoA": "average",
    "DoA-Ch": "average-channel",
}
TABLES: Mapping[str, Grid | Tried | Added] = {
    "readme": Grid(
        {**TRAININGS, "shot": 5},
        README_LINES,
        README_COLUMNS,
        bold="lines",
        corner="5-way 5-shot, real images",
        pair=("run", "target", "train_seed", "shot", "protocol", "part"),
        but={
            ("three domains added later", "base + prototypes"): {
                "grown_by_target": False,
                "seen": False,
                "target": LEFT_OUT[:3],
            },
        },
    ),
    "paper-domains": Grid(
        {"table": "paper", "run": "paper", "shot": 5, "adaptation": "none"},
        {
            **DOMAINS,
            "**seen**": {"protocol": "seen"},
            "**seen, without gtsrb**": {
                "protocol": "seen",
                "target": tuple(name for name in SEEN if name != "gtsrb"),
            },
            "**unseen**": {"protocol": "unseen", "target": LEFT_OUT},
            "**unseen, without gtsrb**": {"protocol": "unseen", "target": LEFT_OUT[1:]},
        },
        {
            "base + prototypes": {**BASE, "show": "value"},
            **{name: {"method": method} for name, method in PAPER_COLUMNS.items()},
        },
        show="difference",
        bold="",
        missing="not measured",
    ),
    "backbones": Grid(
        {"table": "backbones", "run": ("backbones", "lite0", "lite0-power", "full", "full-20")},
        {
            "ours, left out": {"note": "left-out"},
            "Lite0": {"note": "efficientnet-lite0", "adaptation": "ridge"},
            "Lite0, queries seen once": {
                "note": "efficientnet-lite0:query-one",
                "run": "backbones",
            },
            "the same, ridge on roots": {"run": "lite0-power"},
            "Lite0 + tsa": {"note": "efficientnet-lite0", "adaptation": "tsa"},
            "Lite0 + ours": {"note": "efficientnet-lite0,left-out", "adaptation": "ridge"},
            "Lite0 + ours, both by tsa": {
                "note": "efficientnet-lite0,left-out",
                "adaptation": "auto",
            },
            "`fast`: a soup on Lite0, queries seen once": {"note": "lite0:query-one"},
            "the soup, learning as `auto` does": {"note": "lite0"},
            "Lite2": {"note": "efficientnet-lite2"},
            "`full` on a CPU: the soup and Lite2": {"note": "full", "adaptation": "ridge"},
            "`full` on a GPU: the soup learns by tsa": {"note": "full", "adaptation": "tsa"},
        },
        {f"{shot}-shot": {"shot": shot} for shot in (1, 2, 5, 20)},
        show="both",
        against={"note": "efficientnet-lite0", "adaptation": "ridge"},
        pair=("target", "shot", "part"),
        corner="mean of cars, dtd, gtsrb, plankton",
    ),
    "backbones-soup": Grid(
        {"table": "choices", "run": "choose-soup", "adaptation": "ridge"},
        {
            "Lite0": soup("base", "once"),
            "sum of four members' scores": soup("sum", "once"),
            **{f"soup, strengths times {s}": soup("soup", "once", s) for s in (0.4, 0.7, 1.0, 1.4)},
            "Lite0, queries seen three times": soup("base", "three times"),
            "soup, queries seen three times": soup("soup", "three times"),
        },
        {f"{shot}-shot": {"shot": shot} for shot in (1, 5)},
        show="both",
        against=soup("base", "once"),
        corner="validation classes of actions, cifar100, flowers, omniglot",
    ),
    "backbones-lite2": Grid(
        {"table": "choices", "run": "choose-lite2"},
        {
            "the soup on Lite0": {"note": "lite0; left out"},
            "with Lite2 beside it": {"note": "lite0,efficientnet-lite2; left out"},
        },
        {f"{shot}-shot": {"shot": shot} for shot in (1, 5)},
        show="both",
        against={"note": "lite0; left out", "run": "choose-lite2"},
        pair=("target", "shot", "part"),
        corner="validation classes of actions, cifar100, flowers, omniglot, ridge",
    ),
    "backbones-rates": Grid(
        {"table": "backbones", "run": "choose-lite0-tsa"},
        {
            "rate 0.05": lite0_tsa("all", "0.05"),
            "rate 0.1": lite0_tsa("all", "0.1"),
            "rate 0.1, 20 updates": lite0_tsa("all", "0.1", " updates=20"),
            "rate 0.3": lite0_tsa("all", "0.3"),
            "rate 0.3, later half of the sites": lite0_tsa("late", "0.3"),
        },
        {name: {"target": name} for name in ("actions", "cifar100", "flowers", "omniglot")},
        show="value",
        bold="",
        against=lite0_tsa("all", "0.1"),
        corner="validation classes, 5-shot, 40 episodes each",
    ),
    "backbones-snapshots": Grid(
        {"table": "choices", "run": "choose-snapshots"},
        {
            "after 10 updates, as it is": {**read_after("10"), "show": "value"},
            "mean of the answers after 7 and 10": read_after("7+10"),
            "mean of the answers after 4, 7 and 10": read_after("4+7+10"),
            "mean of the weights after 6 to 10": read_after("6-10"),
            "after 7 alone": read_after("7"),
            "after 4 alone": read_after("4"),
            "crops weighed": snapshots("tsa_crop_weights=1.0"),
        },
        {name: {"target": name} for name in ("actions", "cifar100", "flowers", "omniglot")}
        | {"mean": {}},
        show="difference",
        bold="",
        digits=2,
        against=read_after("10"),
        corner="validation classes, 5-shot, 8 episodes each",
    ),
    "rivals-seen": rivals("seen"),
    "rivals-unseen": rivals("unseen", *LEFT_OUT),
    "rivals-unseen-three": rivals("unseen", *LEFT_OUT[1:]),
    **{f"rivals-{name}": rivals("unseen", name) for name in LEFT_OUT},
    "rivals-trainings": Grid(
        {**TRAININGS, "protocol": "seen", "adaptation": "none"},
        by_training({f"{shot}-shot": {"shot": shot} for shot in (5, 1)}, (0, 1, 2, 3)),
        {
            PAPER_NAMES.get(name, name): {"method": name}
            for name in ("base", "feat", "select", "average", "auto")
        },
        bold="lines",
    ),
    "rivals-unseen-trainings": Grid(
        {**TRAININGS, "protocol": "unseen"},
        by_training(
            {
                "5-shot": {"shot": 5, "target": LEFT_OUT},
                "5-shot, without gtsrb": {"shot": 5, "target": LEFT_OUT[1:]},
                "1-shot": {"shot": 1, "target": LEFT_OUT},
            },
            (2, 3),
        ),
        {
            **{
                PAPER_NAMES.get(name, name): {"method": name, "adaptation": "none"}
                for name in ("base", "feat", "select", "average", "auto")
            },
            **{f"{name} + tsa": {"method": name, "adaptation": "tsa"} for name in ("base", "auto")},
        },
        bold="lines",
        but={
            (f"1-shot{label}", f"{name} + tsa"): {"shot": 0}  # nothing was learned at one shot then
            for label in (", seed 2", ", all")
            for name in ("base", "auto")
        },
    ),
    "rivals-single": Grid(
        SINGLE,
        SINGLE_LINES,
        {
            f"{shot}-shot, {label}": {"shot": shot, "target": targets}
            for shot in (1, 5)
            for label, targets in (("the four", LEFT_OUT), ("without dtd", LEFT_OUT[:3]))
        },
        but={
            (line, f"{shot}-shot, the four"): {"shot": 0}  # dtd was not measured
            for line in ("finetune-all, 100 steps", "protonet", "protonet + head")
            for shot in (1, 5)
        },
    ),
    "rivals-single-domains": Grid(
        {**SINGLE, "shot": 1},
        SINGLE_LINES,
        {name: {"target": name} for name in LEFT_OUT},
    ),
    "choose-single": Grid(
        {"table": "choices", "run": "choose-single", "shot": 1, "seen": False},
        {
            **{
                f"rate {rate:g}, share {share:g}": tsa(rate=rate, share=share, ridge=0.0)
                for rate in (0.02, 0.05, 0.1, 0.2, 0.5)
                for share in (0.3, 0.7, 1.0)
            },
            **{
                f"rate {rate:g}, half of the way, ridge": tsa(rate=rate, ridge=1.0)
                for rate in (0.02, 0.05, 0.1, 0.2, 0.5)
            },
        },
        {name: {"target": name} for name in VALIDATED} | {"mean": {}},
        show="difference",
        bold="",
        against={**BASE, "settings": {}},
        corner="base + tsa, validation classes, 1-shot, 100 episodes each",
    ),
    "choose-finetune": Grid(
        {"table": "choices", "run": "choose-meta", "seen": False, "method": "finetune-all"},
        {
            f"rate {rate:g}, {steps} steps": {
                "settings": {"learning_rate": rate, "steps": steps}
            }
            for rate in (1e-5, 3e-5, 1e-4, 3e-4)
            for steps in (12, 25, 50, 100)
        },
        {f"{shot}-shot": {"shot": shot} for shot in (1, 5)},
        show="difference",
        bold="",
        against={**BASE, "settings": {"meta_steps": 0}},
        corner="fine-tuning every layer, validation classes, 24 episodes each",
    ),
    "choose-meta": Grid(
        {"table": "choices", "run": "choose-meta", "method": "base"},
        {
            f"{shot}-shot episodes, rate {rate:g}": {"settings": {"rate": rate, "shot": shot}}
            for shot, rate in ((1, 1e-5), (1, 3e-5), (1, 1e-4), (5, 3e-5))
        },
        {
            f"{shot}-shot, {label}": {"shot": shot, "seen": seen}
            for label, seen in (("left out", False), ("sources", True))
            for shot in (1, 5)
        },
        show="difference",
        bold="",
        against={**BASE, "settings": {"meta_steps": 0}},
        corner="base that ends with episodes, validation classes",
    ),
    "choose-centre": Grid(
        {"table": "choices", "run": "choose-centre", "shot": 1},
        {"nothing is taken": centred("0"), "half": centred("0.5"), "all": centred("1.0")},
        {name: {"target": name} for name in SIX} | {"mean": {}},
        bold="",
        against=centred("0"),
        corner="`auto`, validation classes, 1-shot, 300 episodes each",
    ),
    "choose-centre-ridge": Grid(
        {"table": "choices", "run": "choose-augment", "shot": 1, "adaptation": "ridge"},
        {
            "the mean of the support set": centred("0"),
            "what is common, if familiar": centred("1.0"),
        },
        {name: {"target": name} for name in SIX} | {"mean": {}},
        bold="",
        against=centred("0"),
        corner="`auto` + ridge less ..., validation classes, 1-shot, 300 episodes each",
    ),
    "choose-augment": Grid(
        {"table": "choices", "run": "choose-augment", "adaptation": "none"},
        {name: {"target": name} for name in SIX} | {"mean": {}},
        {
            f"{shot}-shot, {augmentation}": {"shot": shot, **learned_with(augmentation)}
            for shot in (1, 5)
            for augmentation in ("weak", "strong")
        },
        bold="",
        against=learned_with("weak"),
        corner="`auto`, validation classes, 300 episodes each",
    ),
    "choose-mixed": Grid(
        {"table": "choices", "run": "choose-mixed", "shot": 20},
        {
            "all members, answers weighed (`full`)": {"method": "auto", "note": SHIPPED},
            "all members, answers alike": {"method": "average"},
            "mixed into one network (`fast`)": {"note": f"{SHIPPED}; one_network"},
            "the base alone": {"method": "base"},
        },
        {name: {"target": name} for name in SIX}
        | {"mean": {}, "dtd, test": {"table": "default_pool", "run": "one-network"}},
        bold="",
        against={"method": "auto", "note": SHIPPED},
        corner="ridge, validation classes, 20-shot, 100 episodes each",
    ),
    "choose-elsewhere": Grid(
        {"table": "choices", "run": "choose-elsewhere", "shot": 5, "method": "auto"},
        {
            **{
                f"rate {rate:g}, share {share:g}": tsa(rate=rate, share=share, turns=1, apart=1)
                for rate in (0.05, 0.1, 0.2, 0.5, 1.0)
                for share in (0.3, 1.0)
            },
            "rate 0.5, share 0.3, whole images": tsa(rate=0.5, share=0.3, turns=0, apart=1),
            "rate 0.5, share 0.3, with itself": tsa(rate=0.5, share=0.3, turns=1, apart=0),
        },
        {
            **{name: {"target": name} for name in ("actions", "cifar100", "flowers")},
            "mean": {},
        },
        show="difference",
        bold="",
        corner="auto + tsa, validation classes, 5-shot, 100 episodes each",
    ),
    "calibration": Grid(
        {"shot": 5, "table": "seeds"},
        {
            "1-shot, auto, the pool that ships": {
                "table": "default_pool",
                "run": "default-pool",
                "shot": 1,
                "method": "auto",
                "adaptation": "none",
            },
            "5-shot, base": {"method": "base"},
            "5-shot, auto": {"method": "auto", "adaptation": "none"},
            "5-shot, auto + tsa": {"method": "auto", "adaptation": "tsa"},
        },
        {"seen": {"seen": True}, "unseen": {"seen": False}},
        show="calibration",
    ),
    "rules": Grid(
        {"table": "rules", "run": "rules"},
        {name: {"method": name} for name in RULES},
        {
            f"{protocol}, {adaptation}": {"protocol": protocol, "adaptation": adaptation}
            for protocol in ("seen", "unseen")
            for adaptation in ("none", "head", "pa", "tsa")
        },
        show="difference",
        bold="",
    ),
    "rule-costs": Grid(
        {"table": "rules", "run": "rules", "target": "actions"},
        {
            **{name: {"method": name} for name in ("base", "select", "blend", "auto")},
            "the others": {"method": ("average", "soft", "loo", "sum", "sur", "urt")},
        },
        {name: {"adaptation": name} for name in ("none", "head", "pa", "tsa")},
        show="cost",
    ),
    "seeds-seen": seeds("seen"),
    "seeds-unseen": seeds("unseen", target=LEFT_OUT),
    "seeds-domains": Grid(
        {"table": "seeds"},
        DOMAINS,
        {
            "base, 5-shot": {"shot": 5, "method": "base", "show": "value"},
            "auto": {"shot": 5, "method": "auto", "adaptation": "none"},
            "auto + tsa": {"shot": 5, "method": "auto", "adaptation": "tsa"},
            "base, 1-shot": {"shot": 1, "method": "base", "show": "value"},
            "auto, 1-shot": {"shot": 1, "method": "auto", "adaptation": "none"},
        },
        bold="",
    ),
    "unseen-tsa": Grid(
        {"table": "seeds", "protocol": "unseen", "shot": 5},
        {
            **{name: {"target": name} for name in LEFT_OUT},
            "**mean of the four**": {"target": LEFT_OUT},
            "**without gtsrb**, the best one": {"target": LEFT_OUT[1:]},
        },
        {
            "base": {"method": "base"},
            "auto + tsa": {"method": "auto", "adaptation": "tsa", "show": "difference"},
            "base + tsa, one training": {**BASE_TSA, "show": "difference"},
            "auto + tsa less base + tsa, the same": {
                "method": "auto",
                "adaptation": "tsa",
                "train_seed": 0,
                "show": "difference",
                "against": {"table": "rules", "method": "base", "adaptation": "tsa"},
            },
        },
        bold="",
    ),
    "added": Added(
        {**STRONG, "shot": 5, "adaptation": "none"},
        ("gtsrb", "cars", "plankton"),
        ("select", "auto"),
        ("added", "rule", "base without it", "pool before", "after", "with it from the start",
         "gap closed", "old domains", "dtd", "time"),
    ),
    "growth": Tried(
        "added",
        {
            "500 updates, weak augmentation, as before": "500 updates",
            "1,500 updates, weak": "1,500",
            "**1,500, strong**": "1,500, strong augmentation",
            "1,500, weak, 20 ways": "1,500, 20 ways",
            "1,500, strong, 20 ways": "1,500, 20 ways, strong",
            "the same, learning rate 2e-3 instead of 1e-3": "1,500, 20 ways, strong, rate 2e-3",
        },
        {"gtsrb": "gtsrb", "cars": "cars"},
        bold=True,
    ),
    "one-source": Grid(
        {"table": "one_source"},
        {
            "omniglot, which has most images | 7 clusters, as found | all 0": {
                "run": "one-source-omniglot"
            },
            "imagenet | 1 cluster, as found | 0": {"run": "one-source-imagenet"},
            "imagenet | 4 clusters, as asked for | all 0": {"run": "one-source-imagenet-four"},
        },
        {
            "base on the eight others": {"method": "base", "show": "value"},
            "select, average, auto": {"show": "sameness"},
        },
        bold="",
        corner="source | members | strengths",
    ),
    "recipe": Tried(
        "base",
        {
            "as it is": "as it is",
            "Adam 1e-3 without weight decay instead of SGD 0.4 with 5e-4": "Adam 1e-3",
            "weak augmentation": "weak augmentation",
            "all batches mixed instead of half": "all batches mixed",
            "sources by their number of images instead of its root": "images alike",
            "no cool-down": "no cool-down",
            "no label smoothing": "no label smoothing",
            "no mixing": "no mixing",
            "weight decay 1e-3": "weight decay 1e-3",
            "cool-down of 40 % instead of 20 %": "longer cool-down",
            "cosine classifier": "cosine classifier",
            "sources alike": "sources alike",
        },
        {"validation": ""},
        gain=True,
    ),
    "views": Grid(
        {"table": "views"},
        {**views(5), **views(1)},
        {
            **{name: {"target": name, "show": "value"} for name in SEEN},
            "mean": {"show": "plain gain"},
        },
        bold="",
        against={"run": "views-one"},
        pair=tuple(name for name in PAIR if name != "run"),
    ),
    "meta-dataset": Grid(
        {"table": "meta_dataset"},
        {
            **{f"{name}, {'unseen' if name == 'dtd' else 'seen'}": {"target": name}
               for name in sorted((*SEEN, "dtd"))},
            "eight seen domains": {"target": SEEN},
        },
        {
            "base": {**BASE, "show": "both"},
            **{
                name: {"method": name, "adaptation": "none"}
                for name in ("select", "average", "auto")
            },
            "base + head": {"method": "base", "adaptation": "head"},
            "auto + head": {"method": "auto", "adaptation": "head"},
        },
        show="gain",
        bold="lines",
        pair=tuple(name for name in PAIR if name != "run"),
    ),
}  # fmt: skip
"""By the name that a page gives them."""

CARD: tuple[Filter, ...] = ({"table": "default_pool", "run": "default-pool"},)
"""Rows of the card of the pool that ships."""
