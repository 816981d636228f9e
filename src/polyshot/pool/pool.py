"""The pool: base, modulators and selector, ready to embed images; on disk a folder without pickle.

``pool.json`` describes it and holds the sha256 of every other file: ``base.safetensors`` (keyed as
torchvision's ResNet-18), ``modulators/<domain>.safetensors``, ``selector.safetensors`` and
``task_statistics.safetensors``, what the selector needs when the pool grows.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from polyshot.config import FOREIGN_VIEWS, foreign_adaptation
from polyshot.errors import PolyshotError
from polyshot.models.foreign import IMAGENET_MEAN, IMAGENET_STD, Foreign, Given, as_module
from polyshot.models.heads import USUAL_SCALE, Metric
from polyshot.models.loaders import LOADERS, load_backbone
from polyshot.models.modulators import Kind
from polyshot.models.resnet import OURS
from polyshot.models.views import Views
from polyshot.pool.default import PACKAGED, default_pool, pool_path
from polyshot.pool.files import read_pool, write_pool
from polyshot.pool.members import Members
from polyshot.pool.precision import Precision, pickled, unpickled
from polyshot.pool.pretrained import find_pretrained, write_pretrained
from polyshot.util.progress import Progress

if TYPE_CHECKING:
    from polyshot.classifier.classifier import FewShotClassifier
    from polyshot.data.pack import Pack


class Pool(Members):
    """Base + modulators + selector. Member 0 is the base, member i the i-th modulator's."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle holds: weights in their smallest form, no networks made of them."""
        return pickled(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(unpickled(state))
        self.__post_init__()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Pool":
        """Copy everything as it is, not by way of a pickle."""
        made = memo[id(self)] = type(self).__new__(type(self))
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made

    def __sklearn_clone__(self) -> "Pool":
        """Be shared by the clones of scikit-learn's estimators: nobody changes it."""
        return self

    def classifier(
        self,
        rule: str = "auto",
        adaptation: str = "auto",
        none_rate: float | None = None,
        batch: int | None = None,
    ) -> "FewShotClassifier":
        """Make a classifier for images of one's own: `fit(images, labels)`, then `predict`.

        With `none_rate` it may answer `none of these`, by mistake to about this share of images;
        `batch` images are embedded at once, as suits device and network if not given.
        """
        from polyshot.classifier.classifier import FewShotClassifier  # noqa: PLC0415 (it imports the pool)

        return FewShotClassifier(self, rule, adaptation, batch, none_rate)

    def add_domain(
        self,
        pack: "Pack",
        options: Sequence[str] = (),
        work: Path | None = None,
        selector: bool = True,
        report: Progress | None = None,
    ) -> "Pool":
        """Return a pool with one more member, trained on a new domain; this one stays as it is.

        Everything but the new modulator is frozen; the selector is trained anew on what the pool
        keeps of its old tasks (`selector=False` goes without one). `options` override the pool's
        config: ``["modulator.steps=500"]``. An interrupted training goes on in the folder `work`.
        """
        from polyshot.training.growth import add_domain  # noqa: PLC0415 (it imports the pool)

        return add_domain(self, pack, options, work, selector, report)

    def remove(self, domain: str) -> "Pool":
        """Return a pool without the members of a domain; this one stays as it is."""
        from polyshot.training.edit import remove  # noqa: PLC0415 (it imports the pool)

        return remove(self, domain)

    def save(self, path: Path | str, precision: Precision = "full") -> None:
        """Write the pool as a folder, in one rename; replaces a pool, refuses anything else.

        `precision` of the networks' kernels: ``full`` loads to the bit; ``half`` (16 bits) and
        ``eight`` are a half and a quarter of its size, rounded, and leave out the weights of
        modulators of strength 0.
        """
        write_pool(self, Path(path), precision)

    def save_pretrained(
        self,
        folder: Path | str,
        precision: Precision = "full",
        card: str | None = None,
        licence: str | None = None,
    ) -> None:
        """Write the pool in the layout of the Hugging Face Hub, ready to be uploaded.

        That is `save` with a README.md: what the Hub reads (`licence`, such as ``apache-2.0``,
        tags, datasets, what was measured), then the card, a text such as `polyshot card` makes.
        """
        write_pretrained(self, Path(folder), precision, card, licence)

    @classmethod
    def from_pretrained(
        cls,
        name: Path | str,
        device: torch.device | str = "cpu",
        network: Any = None,
        revision: str | None = None,
        download: bool = False,
    ) -> "Pool":
        """Load a pool of the Hugging Face Hub by its id, or from a folder.

        An id needs the extra ``[hub]``. `download` allows to fetch it, and a base that it names;
        without, it has to be in the Hub's local cache. `revision` is a branch, a tag or a commit.
        """
        return cls.load(find_pretrained(name, revision, download), device, network, download)

    @classmethod
    def default(cls, device: torch.device | str = "cpu") -> "Pool":
        """Load the pool that ships with Polyshot (or the one that ``POLYSHOT_POOL`` names)."""
        return cls.load(default_pool(), device)

    @classmethod
    def named(
        cls, name: str | Path, device: torch.device | str = "cpu", sites: Sequence[str] = ()
    ) -> "Pool":
        """Load what a user named: a pool's folder, ``default``, or a backbone without modulators.

        A folder goes first; ``./default`` and the like are folders in any case. `sites` are names
        or patterns of a backbone's layers at which modulators act.
        """
        if str(name).partition(":")[0] in (OURS, *LOADERS) and not Path(name).exists():
            return cls.from_backbone(name, sites=sites, device=device)
        if sites:
            raise PolyshotError(
                f"{name} is a pool, which has its own sites: name a backbone, such as "
                "efficientnet-lite0, or leave sites out."
            )
        return cls.load(pool_path(name), device)

    @classmethod
    def load(
        cls,
        path: Path | str,
        device: torch.device | str = "cpu",
        network: Any = None,
        download: bool = False,
    ) -> "Pool":
        """Read a pool, checking format, hashes and shapes.

        A base from elsewhere is loaded by its name and checked; one that has none, since the user
        made it, is given as `network`. One that lies elsewhere now is given as its new name
        (``transformers:/new/place``), which the pool takes over. `download` allows to fetch it.
        """
        return cls(**read_pool(Path(path), network, download)).to(device)

    @classmethod
    def from_backbone(
        cls,
        network: Any,
        size: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        *,
        sites: Sequence[str] = (),
        views: Views = FOREIGN_VIEWS,
        metric: Metric = "cosine",
        kind: Kind = "conv1x1",
        download: bool = False,
        device: torch.device | str = "cpu",
    ) -> "Pool":
        """Make a pool of a network from elsewhere, without modulators: these can be added.

        Args:
            network: a module or function, images [B, 3, size, size] -> embeddings [B, d]; a module
                is copied and frozen, yours stays as it is. Or the name of one (`models.loaders`),
                such as ``efficientnet-lite0``; ``resnet18`` is the base of the pool that ships.
            size: side length of the images that it sees; 224 unless its name knows better.
            mean: of pixels from 0 to 1, by channel, ImageNet's where it is not given; a name
                brings its own.
            std: likewise.
            sites: names or patterns of the layers at which modulators act.
            views: how often it looks at an image.
            metric: how embeddings are compared with prototypes.
            kind: of the modulators that it may get.
            download: whether a named network that is not there may be fetched.
            device: where to put it.

        """
        if network == OURS:
            if (size, mean, std, *sites) != (None, None, None):
                raise PolyshotError(f"'{OURS}' brings its own size, mean, std and sites.")
            return cls.load(PACKAGED, device).base_alone()
        if not isinstance(network, str):
            mean = IMAGENET_MEAN if mean is None else mean
            std = IMAGENET_STD if std is None else std
            side = 224 if size is None else size
            base = Foreign(as_module(network), side, mean, std, sites=sites)
        elif mean is None and std is None:
            base = load_backbone(network, size, sites, download)
        else:
            raise PolyshotError(f"'{network}' brings its own mean and std: leave them out.")
        base.check_kind(kind)
        return cls._of_base(base, metric, kind, views).to(device)

    def base_alone(self) -> "Pool":
        """Return the pool of the base, without modulators and what was learned for them."""
        none: dict[str, Any] = {"modulators": {}, "strengths": {}, "statistics": {}}
        return replace(self, **none, scales=self.scales[:1], selector=None, urt=None)

    @classmethod
    def from_embeddings(
        cls, dim: int, metric: Metric = "cosine", device: torch.device | str = "cpu"
    ) -> "Pool":
        """Make a pool without a network, for who has embeddings of `dim` entries already.

        Its classifiers take float arrays or tensors [n, dim] where others take images. What runs
        networks on images, `blend` and `tsa`, is refused.
        """
        return cls._of_base(Given(dim), metric, "conv1x1", "one").to(device)

    @classmethod
    def _of_base(cls, base: Foreign, metric: Metric, kind: Kind, views: Views) -> "Pool":
        config = base.config
        return cls(
            *(config, config.size, kind, metric, base),
            scales=[USUAL_SCALE] if metric == "cosine" else [],
            adaptation=foreign_adaptation(config.name),
            views=views,
        )
