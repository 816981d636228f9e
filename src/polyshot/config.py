"""Every choice of a training, as data: presets, and options that override single fields.

`tiny` trains in minutes on two cores, `paper` is faithful to the paper's text, `strong` is the same
network trained the way that measurements on real images recommend.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from polyshot.data.augment import PLAIN, STRONG, WEAK, Augment
from polyshot.data.shapes import EpisodeShape
from polyshot.errors import PolyshotError, unknown
from polyshot.models.heads import Metric
from polyshot.models.loaders import LITE0, LITE2
from polyshot.models.modulators import RANK, Kind
from polyshot.models.resnet import OURS, ResNetConfig
from polyshot.models.views import Views
from polyshot.util.checks import Count, Range, Share, build, check_fields, replaced

Optimiser = Literal["adam", "sgd"]
Course = Literal["cosine", "constant"]
"""How a learning rate goes after its warm-up: down to zero along a cosine, or nowhere."""
Layer = Literal["linear", "cosine"]
Rate = Annotated[float, Range(0, 1000)]
Clip = Annotated[float, Range(0, 1e9)]

MOST = 10**7
"""Of what is held in memory at once."""


@dataclass(frozen=True)
class BaseConfig:
    """Step 1: supervised learning over all training classes of all sources."""

    steps: Count = 4000
    """Updates; 0 keeps the weights it starts from."""
    batch: Annotated[int, Range(2, MOST)] = 1024
    """Images of one update."""
    optimiser: Optimiser = "sgd"
    """`sgd` is Nesterov with momentum 0.9."""
    learning_rate: float = 0.4
    """Its peak, to which it warms up linearly."""
    warm_up: Count = 200
    """Updates until the peak."""
    schedule: Course = "cosine"
    """How it goes on from there."""
    weight_decay: float = 5e-4
    """On the weights of convolutions and the classifier, not on biases and batch norm."""
    classifier: Layer = "linear"
    """What is thrown away after the training: `cosine` compares directions, as prototypes do."""
    label_smoothing: Share = 0.1
    """Share of the target's mass that is spread over all classes."""
    augment: Augment = STRONG
    """Augmentation of most of the training."""
    mix: Share = 0.5
    """Share of the batches whose images are mixed by CutMix or mixup, within their domain."""
    cool_down: Share = 0.2
    """Share of the updates, at the end, with weak augmentation and no mixing."""
    sampling: float = 0.5
    """A source of n images is drawn from with weight n to this power."""
    clip: Clip = 5.0
    """Largest norm of the gradient; 0 lets it be as large as it is."""
    validate_every: int = 500
    """Updates between two looks at the validation classes; the best state is kept."""


@dataclass(frozen=True)
class ModulatorConfig:
    """Step 2: episodic prototype learning on one source, the base frozen."""

    kind: Kind = "conv1x1"
    """`conv1x1` or `channel`."""
    rank: Annotated[int, Range(0, 65536)] = RANK
    """Of `conv1x1` maps beside pointwise and linear layers, which ResNet-18 has none of; 0 takes
    full maps there, too."""
    steps: Count = 400
    """Updates of each modulator."""
    episodes: Annotated[int, Range(1, MOST)] = 10
    """Episodes of one update."""
    shape: EpisodeShape = field(default_factory=EpisodeShape)
    """Shape of the training episodes."""
    loss_metric: Metric = "euclidean"
    """How the loss compares queries with prototypes: by the squared distance over the root of d, as
    in the paper, or by the cosine, as prediction does (Meta-Baseline, Chen et al., 2021)."""
    learning_rate: float = 1e-3
    """Adam's."""
    schedule: Course = "cosine"
    """How it goes on from there."""
    channel_learning_rate: float = 3e-3
    """The same for `channel` modulators: their few numbers want more."""
    weight_decay: float = 0.0
    """Decoupled, towards the identity."""
    augment: Augment = WEAK
    """Augmentation of support and query images."""
    clip: Clip = 5.0
    """Largest norm of the gradient; 0 lets it be as large as it is."""
    validate_every: int = 100
    """Updates between two looks at the validation classes; the best state is kept."""
    strengths: tuple[Annotated[float, Range(-100, 100)], ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Candidates for the factor lambda on the trained modulator; 0 is the base itself."""
    strength_shots: tuple[Annotated[int, Range(1, MOST)], ...] = ()
    """Support images a class with which they are compared on the validation episodes, on average;
    none means all that these have."""
    members: Annotated[int, Range(0, MOST)] = 1
    """Modulators of each source, one for each cluster of its training classes; 0 looks how many
    clusters there are."""

    @property
    def rate(self) -> float:
        """Learning rate of the kind."""
        return self.channel_learning_rate if self.kind == "channel" else self.learning_rate


@dataclass(frozen=True)
class SelectorConfig:
    """Step 3: which member is best for a task, told from its support set."""

    steps: Count = 800
    """Updates."""
    tasks: Annotated[int, Range(1, MOST)] = 300
    """Training tasks of each source."""
    batch: Annotated[int, Range(1, MOST)] = 64
    """Tasks of one update."""
    hidden: Annotated[int, Range(1, 65536)] = 128
    """Width of the hidden layer."""
    dropout: Share = 0.3
    """On the hidden layer."""
    learning_rate: float = 1e-3
    """AdamW's."""
    schedule: Course = "cosine"
    """How it goes on from there."""
    weight_decay: float = 0.05
    """Decoupled."""
    standardise: bool = True
    """Scale the task representation to unit norm, then to zero mean and unit variance."""
    clip: Clip = 5.0
    """Largest norm of the gradient; 0 lets it be as large as it is."""
    validate_every: int = 100
    """Updates between two looks at the validation classes; the best state is kept."""


@dataclass(frozen=True)
class AdaptationConfig:
    """Further adaptation, learned on the support set.

    The first five are those of `head`, a linear head on frozen embeddings, the last three those of
    `ridge`, such a head in closed form; the others those of `pa`, a linear map of embeddings, and
    `tsa`, a modulator of the task's own with such a map. `centre_single` is of prototypes and of
    `ridge`.
    """

    OLD_NAMES: ClassVar[Mapping[str, str]] = {
        "tsa_turns": "tsa_rotate_crops",
        "tsa_apart": "tsa_leave_self_out",
        "tsa_sharpness": "tsa_inverse_temperature",
        "familiar_sharpness": "familiar_inverse_temperature",
    }
    """Of fields, as options and files of before have them."""

    start: Literal["prototypes", "random"] = "prototypes"
    """`random` is a fresh linear layer, as in *A Closer Look at Few-shot Classification*;
    `prototypes` starts at the classifier of the prototypes of unit embeddings and is pulled towards
    it."""
    head_optimiser: Optimiser = "sgd"
    """Of a random start: `sgd` in batches of four as in *A Closer Look*, or `adam` on the whole
    support set at once. From prototypes it is always Adam."""
    steps: Count = 100
    """Updates on the support set; of SGD, passes over it."""
    learning_rate: Rate = 1e-2
    """Of the head."""
    pull: Rate = 1e-3
    """Weight of the squared distance from the start (weight decay of a random start)."""
    updates: Count = 40
    """Updates of `pa` and `tsa`."""
    rates: tuple[Rate, ...] = (0.5,)
    """Adadelta's learning rates of a modulator; of a map twice as much. Every task takes the first,
    unless its own halves do clearly better with another, or without learning."""
    familiar_rate: Rate = 0.05
    """Instead of a single rate, that of `tsa` where a task is like those of the pool's sources."""
    least_shots: Annotated[int, Range(1, MOST)] = 2
    """Images that some class must have for `pa` and `tsa` to learn; 1 lets them learn always."""
    tsa_single_rate: Rate = 0.0
    """Learning rate of `tsa` where no class has two images and the task is unlike those of the
    pool's sources; 0: nothing is learned there, unless `least_shots` says so."""
    tsa_single_share: Share = 1.0
    """Weight of what was learned so in the answer."""
    tsa_single_inverse_temperature: float = 1.0
    """Factor on the logarithms of the probabilities that come out of it."""
    tsa_start: Literal["rule", "base", "selected"] = "rule"
    """Where `tsa` starts: from the modulators blended by the rule's weights (with `base` that is
    alpha_0, with `select` the selected one), from alpha_0, or from the heaviest member."""
    tsa_share: float = 0.3
    """Weight of what `tsa` has learned in the answer; the rest is the rule's own, without it."""
    tsa_inverse_temperature: float = 0.4
    """Factor on the logarithms of the probabilities that come out: learning makes them too sure."""
    familiar_inverse_temperature: float = 0.6
    """The same where a task is like those of the pool's sources."""
    tsa_rotate_crops: bool = True
    """Whether updates of `tsa` take crops of the images in turn, instead of whole images always."""
    tsa_leave_self_out: bool = True
    """Whether an image learns from the prototype of its class without itself, not with itself as in
    the paper of `tsa`."""
    tsa_rates: Literal["choose", "average"] = "choose"
    """With several rates: `choose` takes the first unless a task's halves clearly prefer another,
    `average` learns with each of them and takes the mean of their answers."""
    tsa_readout: Literal["prototypes", "ridge"] = "prototypes"
    """What compares queries with the support set, behind what `tsa` has learned and without it."""
    tsa_strength: Share = 1.0
    """How far the network goes from its start towards what `tsa` has learned, in weights: between
    them lie networks that are better on queries (WiSE-FT, Wortsman et al., 2022)."""
    tsa_sites: tuple[str, ...] = ("all",)
    """At which of the pool's sites `tsa` learns: `all`, `late` (the later half in the order of the
    forward pass), and names or patterns of sites, such as ``layer4.*``; a site that any of them
    names learns, the others stay as the start has them. What lies before the first is computed once
    a crop. None: the map alone."""
    centre_single: Share = 0.0
    """How much of the direction that tasks of the nearest source have in common is taken from
    single images, under the rule `auto`: with one image a class it is most of an embedding."""
    ridge_lambda: Annotated[float, Range(1e-6, 1e6)] = 1.0
    """Penalty of `ridge` on its weights."""
    ridge_power: Annotated[float, Range(0.01, 10)] = 1.0
    """Power of the embeddings' entries, which `ridge` raises them to first."""
    ridge_scale: Annotated[float, Range(1e-3, 1e6)] = 12.0
    """Inverse temperature of `ridge`: logits are this times its scores, which are 0 to 1 or so."""

    def __post_init__(self) -> None:
        for name in (
            "tsa_inverse_temperature",
            "familiar_inverse_temperature",
            "tsa_single_inverse_temperature",
        ):
            if getattr(self, name) <= 0:  # that would turn answers round
                raise PolyshotError(f"adaptation.{name}={getattr(self, name)} must be above 0.")
        if not 0 <= self.tsa_share <= 1:
            raise PolyshotError(f"adaptation.tsa_share={self.tsa_share} must be from 0 to 1.")

    def learns_from(self, shots: int) -> bool:
        """Whether `tsa` may learn from tasks whose largest class has so many images."""
        return shots >= self.least_shots or (shots == 1 and self.tsa_single_rate > 0)


FOREIGN = AdaptationConfig(
    updates=10,
    rates=(0.05, 0.1, 0.3),
    tsa_rates="average",
    tsa_readout="ridge",
    tsa_share=0.5,
    tsa_inverse_temperature=1.0,
    ridge_lambda=0.3,
    ridge_scale=11.0,
)
"""On networks from elsewhere, which have seen the world (docs/backbones.md)."""
POWERS = {LITE0: 0.5, LITE2: 0.5}
"""Of `ridge` on those of them on which it was measured."""
FOREIGN_VIEWS: Views = "three"
"""How often these look at an image."""


ONE_NETWORK: Mapping[str, Any] = {
    "tsa_share": 1.0,
    "tsa_strength": 0.5,
    "tsa_readout": "ridge",
    "tsa_inverse_temperature": 0.56,
    "familiar_inverse_temperature": 0.85,
    "tsa_single_rate": 0.5,
    "tsa_single_share": 1.0,
    "tsa_single_inverse_temperature": 1.2,
}
"""Of `AdaptationConfig`: `tsa` that answers by one network, where time counts."""


@dataclass(frozen=True)
class Config:
    """A whole training."""

    preset: str = "strong"
    """Where the values came from, before single ones were overridden."""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    """Another seed, another training; 0 or more."""
    size: Annotated[int, Range(8, 4096)] = 72
    """Side length of the images in pixels; packs must have it."""
    backbone: str = OURS
    """The base (see `on_backbone`): `resnet18` is trained here, a name of `models.loaders` is taken
    as it is. Such a one takes packs of any one size, and brings images to its own."""
    sites: tuple[str, ...] = ()
    """Names or patterns of the layers of a base from elsewhere at which modulators act."""
    model: ResNetConfig = field(default_factory=ResNetConfig)
    """Architecture of a ResNet-18."""
    metric: Metric = "cosine"
    """Distance of embeddings from prototypes."""
    views: Views = "one"
    """How often networks look at an image, moved and zoomed, before they embed it."""
    base: BaseConfig = field(default_factory=BaseConfig)
    modulator: ModulatorConfig = field(default_factory=ModulatorConfig)
    selector: SelectorConfig = field(default_factory=SelectorConfig)
    adaptation: AdaptationConfig = field(default_factory=AdaptationConfig)
    shape: EpisodeShape = field(default_factory=EpisodeShape)
    """Shape of validation episodes, and of the selector's tasks."""
    validation_episodes: Annotated[int, Range(2, MOST)] = 300
    """Validation episodes of each source; choices are made on them."""
    joint: bool = False
    """Whether base and modulators are trained together, instead of one after the other."""

    def __post_init__(self) -> None:
        check_fields(self)
        modulator = self.modulator
        if not modulator.strengths:
            raise PolyshotError("modulator.strengths is empty: name at least one factor, as [1.0].")
        if not self.adaptation.rates:
            raise PolyshotError("adaptation.rates is empty: name at least one rate, as [0.05].")
        if self.joint and modulator.members != 1:
            raise PolyshotError(
                "Clusters need a trained base, joint training has none: take joint or "
                "modulator.members."
            )
        if self.joint and self.foreign:
            raise PolyshotError(
                f"Joint training changes the base, but '{self.backbone}' is taken as it is: leave "
                f"joint out, or take backbone={OURS}."
            )

        if self.sites and not self.foreign:
            raise PolyshotError(
                f"sites are those of a base from elsewhere, {OURS} has its own: leave them out, or "
                "name its backbone, too."
            )

    @property
    def foreign(self) -> bool:
        """Whether the base is from elsewhere."""
        return self.backbone != OURS


PRESETS: dict[str, Config] = {
    "tiny": Config(
        preset="tiny",
        size=40,
        model=ResNetConfig(width=16, stem="small/2"),
        base=BaseConfig(
            steps=900, batch=128, learning_rate=0.1, warm_up=50, mix=0.25, validate_every=150
        ),
        modulator=ModulatorConfig(steps=60, episodes=2, validate_every=20),
        selector=SelectorConfig(steps=300, tasks=150),
        validation_episodes=100,
    ),
    "paper": Config(
        preset="paper",
        metric="euclidean",
        base=BaseConfig(
            steps=1600,  # without augmentation it knows the training images by then
            validate_every=200,
            optimiser="adam",
            learning_rate=1e-3,
            warm_up=0,
            schedule="constant",
            weight_decay=0.0,
            label_smoothing=0.0,
            augment=PLAIN,
            mix=0.0,
            cool_down=0.0,
            sampling=1.0,  # one large dataset: every image alike
            clip=0.0,
        ),
        modulator=ModulatorConfig(
            strengths=(1.0,),
            channel_learning_rate=1e-3,
            schedule="constant",
            augment=PLAIN,
            clip=0.0,
        ),
        selector=SelectorConfig(
            dropout=0.0, weight_decay=0.0, standardise=False, schedule="constant", clip=0.0
        ),
        adaptation=AdaptationConfig(
            start="random", head_optimiser="adam", learning_rate=1e-3, pull=0.0
        ),
    ),
    "strong": Config(
        preset="strong",
        views="five",
        modulator=ModulatorConfig(
            loss_metric="cosine",
            shape=EpisodeShape(shot=1),
            augment=STRONG,
            strength_shots=(1, 5),
        ),
        adaptation=AdaptationConfig(
            ridge_power=0.7,
            centre_single=1.0,
            tsa_single_rate=0.1,
            tsa_single_share=0.7,
            tsa_single_inverse_temperature=0.95,
        ),
    ),
}


def preset(name: str) -> Config:
    """Look a preset up."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


def override(config: Config, options: Sequence[str]) -> Config:
    """Apply options like ``base.steps=100`` or ``modulator.kind=channel``."""

    def name_of(option: str) -> str:
        return option.partition("=")[0].strip()

    # The backbone first: single settings then change what it brings along.
    for option in sorted(options, key=lambda each: name_of(each) != "backbone"):
        if "=" not in option:
            raise PolyshotError(f"The option '{option}' must look like base.steps=100.")
        text = option.partition("=")[2].strip()
        if name_of(option) == "backbone":
            config = on_backbone(config, text)
        else:
            config = replaced(config, name_of(option).split("."), text, option)
    return config


def on_backbone(config: Config, name: str) -> Config:
    """Return a config for another base.

    One from elsewhere comes with its own views and settings of adaptation, as in
    `Pool.from_backbone`, and with modulators by the paper's loss and weak augmentation: a preset's
    are made for our base.
    """
    config = replace(config, backbone=name)
    if not config.foreign:
        return config
    modulator = replace(
        config.modulator,
        loss_metric="euclidean",
        shape=config.shape,
        augment=WEAK,
        strength_shots=(),
    )
    own = foreign_adaptation(name)
    return replace(config, adaptation=own, views=FOREIGN_VIEWS, modulator=modulator)


def foreign_adaptation(backbone: str) -> AdaptationConfig:
    """Return the settings on a network from elsewhere."""
    return replace(FOREIGN, ridge_power=POWERS.get(backbone, 1.0))


def to_dict(config: Config) -> dict[str, Any]:
    """Turn a config into plain data for JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return plain


LATER: Mapping[str, Any] = {
    "schedule": "cosine",
    "head_optimiser": "sgd",
    "backbone": OURS,
    "rank": RANK,
    "sites": (),
    "tsa_rates": "choose",
    "tsa_readout": "prototypes",
    "tsa_sites": ("all",),
    "tsa_strength": 1.0,
    "tsa_single_rate": 0.0,
    "tsa_single_share": 1.0,
    "tsa_single_inverse_temperature": 1.0,
    "centre_single": 0.0,
    "ridge_lambda": 1.0,
    "ridge_power": 1.0,
    "ridge_scale": 12.0,
    "loss_metric": "euclidean",
    "strength_shots": (),
}
"""Fields that came later, by name, with the values that mean what was before."""


def for_hash(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Bring plain data to the form that hashes were made of at first, so that they never change.

    Fields have the names that they had then, and those that came later are left out unless they
    say something new.
    """
    old = {new: name for name, new in AdaptationConfig.OLD_NAMES.items()}
    return {
        old.get(name, name): for_hash(item) if isinstance(item, dict) else item
        for name, item in plain.items()
        if name not in LATER or (tuple(item) if isinstance(item, list) else item) != LATER[name]
    }


def from_dict(plain: Mapping[str, Any]) -> Config:
    """Read a config back from plain data."""
    made = build(Config, plain)
    assert isinstance(made, Config)
    return made


def differences(one: Config, other: Config) -> list[str]:
    """List the fields in which two configs differ: ``base.steps: 100 and 200``."""
    return [f"{name}: {a} and {b}" for name, a, b in changes(to_dict(one), to_dict(other))]


def changes(one: Any, other: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """List the fields in which plain data differ: ``base.steps`` and both values."""
    if isinstance(one, dict):
        return [each for key in one for each in changes(one[key], other[key], f"{path}.{key}")]
    return [] if one == other else [(path[1:], one, other)]
