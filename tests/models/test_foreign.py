"""Networks from elsewhere as backbones: what they see, where modulators act, what is refused."""

from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyshot.classifier import FewShotClassifier
from polyshot.errors import PolyshotError
from polyshot.models.backbone import sites_of
from polyshot.models.foreign import Foreign, as_module
from polyshot.models.modulators import Modulator, fold
from polyshot.models.views import normalise
from polyshot.pool.pool import Pool
from tests.helpers import randomised

SIDE = 16


class Net(nn.Module):
    """Layers of every sort: with a norm, a bias or neither, depthwise, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.blocks = nn.ModuleList([self._block(bias) for bias in (False, True)])
        self.shared = nn.Conv2d(8, 8, 1)

    @staticmethod
    def _block(bias: bool) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(8, 8, 3, 1, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=bias),
            nn.ReLU(),
            nn.Conv2d(8, 8, 1, bias=bias),
            nn.ReLU(),
        )

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.shared(self.shared(x)).mean((2, 3))


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return randomised(Net())


def pixels(count: int = 4, side: int = SIDE) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)


def test_it_sees_its_own_normalisation_and_size() -> None:
    mean, std = (0.1, 0.5, 0.7), (0.2, 0.3, 0.4)
    network = net()
    pool = Pool.from_backbone(network, SIDE, mean, std, views="one")
    images = pixels()
    shaped = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std))
    own, spread = shaped
    with torch.no_grad():
        known = network((images / 255 - own) / spread)
    torch.testing.assert_close(pool.embed(images)[0], known, rtol=1e-4, atol=1e-5)
    larger = images.repeat_interleave(2, -1).repeat_interleave(2, -2)
    assert pool.embed(larger).shape == (1, 4, 8)


@pytest.mark.parametrize("as_given", [tuple, list, torch.tensor, lambda v: torch.tensor(v).numpy()])
def test_a_normalisation_may_be_any_three_numbers(as_given: Callable[[Any], Any]) -> None:
    config = Foreign(net(), SIDE, as_given((0.5, 0.25, 0.5)), as_given((0.5, 1, 2))).config
    assert (config.mean, config.std) == ((0.5, 0.25, 0.5), (0.5, 1.0, 2.0))


HALF, UNIT = (0.5,) * 3, (1.0,) * 3


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ((0.5,), UNIT),
        (HALF, (1.0, 1.0)),
        (HALF, (1.0, 0.0, 1.0)),
        (HALF, (1.0, -1.0, 1.0)),
        ((0.5, 0.5, float("nan")), UNIT),
        (0.5, 0.5),
        (("a", "b", "c"), UNIT),
    ],
)
def test_a_normalisation_that_is_none_is_refused(mean: Any, std: Any) -> None:
    with pytest.raises(PolyshotError, match="three means and three positive spreads"):
        Pool.from_backbone(net(), SIDE, mean, std)


@pytest.mark.parametrize("size", [0, -3, 7, 5000, 16.0, "16", (16, 16), True])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    with pytest.raises(PolyshotError, match="one side length from 8 to 4096"):
        Pool.from_backbone(net(), size)


def test_a_name_brings_its_own_normalisation() -> None:
    with pytest.raises(PolyshotError, match="brings its own mean and std"):
        Pool.from_backbone("efficientnet-lite0", mean=HALF)


Output = namedtuple("Output", "pooled")
NORM = nn.BatchNorm2d(3)  # as it is made, in training mode
BAD: dict[str, tuple[Any, str]] = {
    "maps": (lambda x: x, r"makes \[2, 3, 16, 16\] of images"),
    "one vector": (lambda x: x.mean((0, 2, 3)), r"makes \[3\] of images"),
    "no entries": (lambda x: x[:, :0].mean((2, 3)), r"makes \[2, 0\]"),
    "a tuple": (lambda x: (x.mean((2, 3)),), "makes a tuple"),
    "an output": (lambda x: Output(x.mean((2, 3))), "makes a Output"),
    "a dict": (lambda x: {"pooled": x.mean((2, 3))}, "makes a dict"),
    "NaN": (lambda x: x.mean((2, 3)) * float("nan"), "not finite"),
    "integers": (lambda x: x.mean((2, 3)).long(), "not finite"),
    "batch norm": (lambda x: NORM(x).mean((2, 3)), "depends on the other images"),
    "batch norm of vectors": (
        lambda x: nn.BatchNorm1d(3)(x.mean((2, 3))),  # raises on one image
        "depends on the other images",
    ),
    "chance": (lambda x: nn.functional.dropout(x).mean((2, 3)), "or on chance"),
    "its size": (nn.Sequential(nn.Flatten(), nn.Linear(3 * 24 * 24, 4)), r"16 x 16 pixels .*size="),
    "always the same": (lambda x: torch.ones(len(x), 5), "same embedding of two unlike images"),
    "an error": (lambda x: x.nothing, "cannot embed images"),
    "half precision": (nn.Sequential(nn.Conv2d(3, 4, 3)).half(), r"float16: .*network.float"),
    "bfloat16": (nn.Sequential(nn.Conv2d(3, 4, 3)).bfloat16(), r"bfloat16: .*network.float"),
    "a number": (7, "a module or a function"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_backbone_is_refused_in_one_line(name: str) -> None:
    network, message = BAD[name]
    with pytest.raises(PolyshotError, match=message) as told:
        Pool.from_backbone(network, SIDE)
    assert "\n" not in str(told.value)


# --- sites


def names(base: Foreign) -> list[str]:
    return [site.layer.removeprefix("network.") for site in sites_of(base)]


def test_sites_by_the_rule_and_by_patterns() -> None:
    assert names(Foreign(net(), SIDE)) == ["blocks.0.0", "blocks.1.0", "blocks.1.4"]
    assert names(Foreign(net(), SIDE, sites=["blocks.1.*"])) == [
        *("blocks.1.0", "blocks.1.2", "blocks.1.4")  # a depthwise one, with a bias
    ]
    # 2 and 4 of the first block have neither bias nor norm: they are left out.
    assert names(Foreign(net(), SIDE, sites=["blocks.0.*"])) == ["blocks.0.0"]
    assert names(Foreign(net(), SIDE, sites="blocks.0.0")) == ["blocks.0.0"]


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        (["blocks.7.*"], "'blocks.7.*': sites are names or patterns .* such as blocks.0.0"),
        (["blocks.0.*", "blokcs.1.0"], "No layer of the network is called 'blokcs.1.0'"),
        (["blocks.0.4"], "'blocks.0.4': a layer there has neither a bias nor a batch norm"),
        (["stem"], "neither a bias nor a batch norm"),
        (["shared"], "No layer .* that it calls once"),  # it is called twice
        (["blocks.1.2"], "no map added.*kind='channel'"),
    ],
)
def test_sites_that_are_none_are_refused(sites: list[str], message: str) -> None:
    with pytest.raises(PolyshotError, match=message.replace(".*'", r"\.\*'")) as told:
        Pool.from_backbone(net(), SIDE, sites=sites)
    assert "\n" not in str(told.value)


def test_a_function_has_no_sites() -> None:
    with pytest.raises(PolyshotError, match="this one has none"):
        Pool.from_backbone(lambda x: x.mean((2, 3)), SIDE, sites=["*"])


def test_channels_can_be_scaled_at_a_depthwise_layer() -> None:
    pool = Pool.from_backbone(net(), SIDE, sites=["blocks.1.2"], kind="channel")
    modulator = Modulator(sites_of(pool.base), "channel")
    holder = modulator.holders["network.blocks.1.2"]
    holder.scale.data.fill_(2.0)  # type: ignore[operator, union-attr]
    images = normalise(pixels())
    with torch.no_grad():
        assert not torch.allclose(fold(pool.base, modulator)(images), pool.base(images))


def test_a_norm_without_numbers_of_its_own_is_no_norm() -> None:
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.AdaptiveAvgPool2d(1)]
    network = randomised(nn.Sequential(*layers, nn.Flatten()))
    pool = Pool.from_backbone(network, SIDE)
    (site,) = sites_of(pool.base)
    assert site.norm is None
    classifier = pool.classifier(adaptation="tsa").fit(pixels(6), [0, 0, 0, 1, 1, 1])
    assert classifier.predict(pixels(2)).shape == (2,)


# --- on disk


def test_a_network_of_ones_own_is_brought_along(tmp_path: Path) -> None:
    pool = Pool.from_backbone(net(), SIDE, sites=["blocks.*"])
    pool.save(tmp_path / "pool")
    again = Pool.load(tmp_path / "pool", network=net())
    assert torch.equal(again.embed(pixels()), pool.embed(pixels())) and again.hash == pool.hash
    with pytest.raises(PolyshotError, match=r"Pool.load\(path, network=...\)"):
        Pool.load(tmp_path / "pool")
    with pytest.raises(PolyshotError, match="other weights than those"):
        Pool.load(tmp_path / "pool", network=net(seed=1))
    with pytest.raises(PolyshotError, match="other weights than those"):
        Pool.load(tmp_path / "pool", network=lambda x: x.mean((2, 3)))
    with pytest.raises(PolyshotError, match="other weights than those"):
        Pool.load(tmp_path / "pool", network=net().bfloat16())


def test_a_network_stays_its_owners() -> None:
    """Who goes on training the network that was given does not change the pool, nor it theirs."""
    mine = net().train()
    pool = Pool.from_backbone(mine, SIDE)
    before, its_hash = pool.embed(pixels()), pool.hash
    assert mine.training and all(each.requires_grad for each in mine.parameters())
    assert not any(each.requires_grad for each in pool.base.parameters())
    with torch.no_grad():
        for each in mine.parameters():
            each.mul_(-3)
    assert torch.equal(Pool.from_backbone(net(), SIDE).embed(pixels()), before)
    assert torch.equal(pool.embed(pixels()), before) and pool.hash == its_hash
    mine.extra = (line for line in "ab")  # what cannot be copied
    with pytest.raises(PolyshotError, match=r"cannot be copied .*: give a function that calls it"):
        Pool.from_backbone(mine, SIDE)
    with pytest.raises(PolyshotError, match=r"not the class Net: call it first, as Net\(...\)"):
        Pool.from_backbone(Net, SIDE)


def test_a_function_is_known_by_what_it_makes(tmp_path: Path) -> None:
    """It has no weights that a hash could tell from another's."""

    def means(x: Tensor) -> Tensor:
        return x.mean((2, 3))

    Pool.from_backbone(means, SIDE).save(tmp_path / "pool")
    images = [*pixels(4)]
    made = Pool.from_backbone(means, SIDE).classifier().fit(images, [0, 0, 1, 1])
    made.save(tmp_path / "made")
    for load in (
        lambda network: Pool.load(tmp_path / "pool", network=network),
        lambda network: FewShotClassifier.load(tmp_path / "made", backbone=network),
    ):
        load(means)
        load(lambda x: x.mean((2, 3)) * (1 + 1e-6))  # as another machine may round
        with pytest.raises(PolyshotError, match="is another function than it was made with"):
            load(lambda x: x.amax((2, 3)))
        with pytest.raises(PolyshotError, match="was made with: dim 6 instead of 3"):
            load(lambda x: x.mean((2, 3)).repeat(1, 2))


def test_our_base_has_a_name(tmp_path: Path) -> None:
    pool = Pool.named("resnet18")
    assert pool.members == ("base",) and pool.hash == Pool.default().base_alone().hash
    assert torch.equal(pool.embed(pixels(2, 72)), Pool.default().embed(pixels(2, 72), [0]))
    with pytest.raises(PolyshotError, match="'resnet18' brings its own size"):
        Pool.from_backbone("resnet18", 64)


def test_what_is_no_pool_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "vit").mkdir()
    (tmp_path / "vit" / "config.json").write_text("{}")
    (tmp_path / "a.polyshot").touch()
    for name, said in (
        (tmp_path / "vit", "looks like a model of transformers, name it transformers:"),
        (tmp_path / "a.polyshot", "it is a file, and a pool is a folder"),
        ("nosuch", "nosuch is no pool: there is no such folder. Name one, default"),
    ):
        with pytest.raises(PolyshotError, match=said):
            Pool.named(name)


def test_a_function_is_a_backbone(tmp_path: Path) -> None:
    def means(x: Tensor) -> Tensor:
        return x.mean((2, 3))

    pool = Pool.from_backbone(means, SIDE)
    images = pixels()
    labels = [0, 0, 1, 1]
    chosen = pool.classifier().fit(images, labels)
    assert chosen.adaptation_ == "ridge" and chosen.predict(images).shape == (4,)
    mapped = pool.classifier(adaptation="tsa").fit(images, labels)  # a map of the embedding alone
    assert mapped.predict(images).shape == (4,)
    pool.save(tmp_path / "pool")
    again = Pool.load(tmp_path / "pool", network=means)
    assert torch.equal(again.embed(images), pool.embed(images))
    assert as_module(means)(normalise(images)).shape == (4, 3)
