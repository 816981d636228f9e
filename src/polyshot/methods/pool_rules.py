"""select, average: the paper's DoS and DoA (Choi et al., 2019), and what came after them.

Every rule over the pool is a method; those of the paper with either kind of modulator.
"""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from polyshot.config import AdaptationConfig
from polyshot.data.shapes import EpisodeShape
from polyshot.methods.method import BEYOND, Fitted, Method, Settings, register
from polyshot.models.backbone import parameter_count
from polyshot.models.modulators import Kind
from polyshot.pool.pool import Pool
from polyshot.predict.predict import predict_tasks
from polyshot.predict.rules import RULES, rule
from polyshot.tasks import Tasks
from polyshot.training.training_run import TrainingRun

STEP = 7 / 3
"""Passes that an update of `tsa` costs an image: forwards 1, with the modulator 10/9; backwards as
much again for the images and 1/9 for the modulator, since the base's kernels need no gradient."""


@dataclass(eq=False)
class PoolWithRule(Fitted):
    """A pool whose members are weighed by a rule."""

    pool: Pool
    rule: str
    note: str = ""
    diverged: int = 0

    def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        """Weigh the members' answers: probabilities [E, Q, W]."""
        answers = predict_tasks(self.pool, tasks, [rule(self.rule, self.pool)], adaptation)
        self.diverged += int(answers.diverged.sum())
        return answers.probabilities[0]

    def member_probabilities(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        """Return each member's own probabilities: [M, E, Q, W]."""
        names = ["base", *(f"member:{domain}" for domain in self.pool.modulators)]
        rules = [rule(name, self.pool) for name in names]
        return predict_tasks(self.pool, tasks, rules, adaptation).probabilities

    def weights(self, tasks: Tasks) -> Tensor:
        """Return the weights that the rule gives to the members: [E, M]."""
        return rule(self.rule, self.pool).weights(self.pool, tasks)

    def member_names(self) -> tuple[str, ...]:
        """Name the pool's members."""
        return tuple(self.pool.members)

    def selections(self, tasks: Tasks) -> Tensor | None:
        """Return which member `select` chooses: [E, M]."""
        return self.weights(tasks) if self.rule == "select" else None

    def parameters(self) -> int:
        """Count base, modulators and, where the rule asks them, the selector and the attention."""
        parts: list[nn.Module] = [self.pool.base, *self.pool.modulators.values()]
        if rule(self.rule, self.pool).selector and self.pool.selector is not None:
            parts.append(self.pool.selector)
        if self.rule == "urt":
            parts.append(self.pool.check_urt())
        return parameter_count(*parts)

    def passes(self, shape: EpisodeShape, adaptation: str = "none") -> float:
        """Count embedding by all members that the rule asks, and learning on the support set.

        Selecting and blending embed the support set twice, averaging all images with every member.
        """
        support, queries = shape.way * shape.shot, shape.way * shape.queries
        found = rule(self.rule, self.pool)
        members = len(found.members(self.pool))
        if found.name == "select":
            plain = 2 * support + queries
        elif found.mixes == "modulators":
            plain = (members + 1) * support + queries
        else:
            plain = members * (support + queries)
        learning = self.learning_passes(shape, adaptation)
        return plain + learning + queries if learning else plain

    def learning_passes(self, shape: EpisodeShape, adaptation: str = "none") -> float:
        """Count what `tsa` learns by."""
        config = self.pool.adaptation
        if adaptation != "tsa" or not config.learns_from(shape.shot):
            return 0.0
        # Each rate is tried on both halves, each half of the images; then the best learns from all.
        times = 1 + (len(config.rates) if len(config.rates) > 1 else 0)
        return times * config.updates * STEP * shape.way * shape.shot


_DEFAULT = AdaptationConfig()
LEARNING = {
    "steps": _DEFAULT.updates,
    "rate": _DEFAULT.rates[0],
    "familiar_rate": _DEFAULT.familiar_rate,
    "from_base": int(_DEFAULT.tsa_start == "base"),
    "share": _DEFAULT.tsa_share,
    "turns": int(_DEFAULT.tsa_rotate_crops),
    "apart": int(_DEFAULT.tsa_leave_self_out),
    "sharpness": _DEFAULT.tsa_inverse_temperature,
    "familiar_sharpness": _DEFAULT.familiar_inverse_temperature,
    "shots": _DEFAULT.least_shots,
}
"""Settings of methods that can learn on the support set by `pa` or `tsa`."""


def with_learning(pool: Pool, settings: Settings) -> Pool:
    """Return the pool with the `LEARNING` that a method's settings say."""
    config = replace(
        pool.adaptation,
        updates=int(settings["steps"]),
        rates=(settings["rate"],),
        familiar_rate=settings["familiar_rate"],
        tsa_start="base" if settings["from_base"] else "rule",
        tsa_share=settings["share"],
        tsa_rotate_crops=bool(settings["turns"]),
        tsa_leave_self_out=bool(settings["apart"]),
        tsa_inverse_temperature=settings["sharpness"],
        familiar_inverse_temperature=settings["familiar_sharpness"],
        least_shots=int(settings["shots"]),
    )
    return replace(pool, adaptation=config)


def modulator_episodes(run: TrainingRun, _: Settings) -> int:
    """Count the episodes of all modulators of a run; joint training has none."""
    own = run.config.modulator
    return 0 if run.config.joint else len(run.packs) * own.steps * own.episodes


def _method(name: str, rule_name: str, kind: Kind, about: str, paper: str) -> Method:
    learns = kind == "conv1x1"  # what `tsa` learns is such a modulator

    def fit(run: TrainingRun, settings: Settings) -> PoolWithRule:
        pool = run.pool(kind)
        return PoolWithRule(with_learning(pool, settings) if settings else pool, rule_name)

    return Method(
        name,
        paper,
        about,
        fit,
        ("none", "head", *BEYOND) if learns else ("none", "head", "ridge"),
        slow=("tsa",) if learns else (),
        settings=LEARNING if learns else {},
        beyond=paper != _CHOI,
        pool=kind,
        training_episodes=modulator_episodes,
        shared=lambda run, _: run.trainings(kind),
    )


_CHOI = "Learning Disparate Modulators (Choi et al., 2019)"
_PAPERS: tuple[tuple[str, str, Kind, str], ...] = (
    ("select", "select", "conv1x1", "DoS: the member that the selector chooses"),
    ("average", "average", "conv1x1", "DoA: the average of all members"),
    ("select-channel", "select", "channel", "DoS-Ch: select, modulators by channel"),
    ("average-channel", "average", "channel", "DoA-Ch: average, modulators by channel"),
)
for _name, _rule, _kind, _about in _PAPERS:
    register(_method(_name, _rule, _kind, _about, _CHOI))
for _name in ("soft", "loo", "sum", "sur", "urt", "blend", "soup", "auto"):
    _about, _, _paper = RULES[_name].about.rpartition("; ")
    register(_method(_name, _name, "conv1x1", _about, _paper))
