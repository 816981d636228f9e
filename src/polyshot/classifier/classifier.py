"""A classifier for a user's own images, from a handful of examples; scikit-learn's verbs.

The user's examples are a batch of one task, so that what `evaluate` measures is what runs here. W
classes, S images of the largest class, n images to classify, d entries an embedding.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np
import torch

from polyshot.classifier import saved
from polyshot.classifier.answering import Kept, as_kept, weigh
from polyshot.classifier.estimator import Estimator, Pools
from polyshot.classifier.examples import (
    Examples,
    Label,
    check_labels,
    embedding_length,
    find_classes,
)
from polyshot.classifier.onnx import Exported, write_onnx
from polyshot.classifier.saved import OPTIONS, Saved
from polyshot.classifier.steps import StepByStep
from polyshot.data.images import Images
from polyshot.errors import PolyshotError, unknown
from polyshot.pool.pool import Pool
from polyshot.predict import none_of_these
from polyshot.predict.ensemble import AUTO, check_ensemble
from polyshot.predict.predict import check_adaptation
from polyshot.predict.rules import rule as find_rule
from polyshot.tasks import Tasks
from polyshot.util.progress import Progress

if TYPE_CHECKING:
    from sklearn.utils import Tags


class FewShotClassifier(StepByStep, Estimator):
    """Learns classes from a few images of each, by a pool, a rule and an adaptation.

    Several pools, each on a backbone of its own, answer together (`predict.ensemble`).

    After `fit`: `classes_` (the labels, sorted), `weights_` (one a member of the pool, or of all
    pools one after the other, sum 1), `adaptation_` (what `auto` chose, or the one that was asked
    for; of several pools that of the first), `adapted_` (whether it is used: `pa` is not with one
    image a class, nor is `tsa` where such a task is familiar), `diverged_` (whether learning
    diverged, so that it is not used) and `threshold_` (below which an image is none of these; None
    where that was not asked for).
    """

    def __init__(
        self,
        pool: Pools = "default",
        rule: str = "auto",
        adaptation: str = AUTO,
        batch: int | None = None,
        none_rate: float | None = None,
        precision: Kept = "auto",
    ) -> None:
        """Choose how to classify.

        Args:
            pool: what embeds the images: a pool, several that answer together, or their names, as
                on the command line; ``embeddings`` where users bring these.
            rule: how members are weighed: one of `predict.rules.RULES`, or ``member:<domain>``.
            adaptation: `none` compares with prototypes, `head` learns a linear head, `ridge` one in
                closed form, `pa` a linear map of the embedding, `tsa` a network for these classes,
                which takes longest; `auto` is `tsa` up to 60 examples (5,000 on a GPU), and `ridge`
                with more, with one of each, on a base without layers to act at, on a network from
                elsewhere without a GPU, or where a GPU's memory is too small for `tsa`.
            batch: images that are embedded at once; as suits device and network if not given.
            none_rate: with it, images that are far from every class are answered `none of these`;
                the share of images of the classes themselves that may be, by mistake. 0.05 needs
                19 examples that have another of their class (`polyshot.predict.none_of_these`).
            precision: of the weights, from `fit` on, so that a saved classifier answers as before:
                `full`, `half`, `eight` or `six` bits; `auto` leaves a pool of ours as it is, rounds
                networks from elsewhere that the file has to hold to half precision
                (EfficientNet-Lite to eight bits), and what `pa` and `tsa` learn to six bits.

        """
        self.pool = pool
        self.rule, self.adaptation, self.batch = rule, adaptation, batch
        self.none_rate, self.precision = none_rate, precision
        if isinstance(pool, Pool | list | tuple):  # a name is loaded when it is needed
            self._check_options(self.pools)

    def _check_options(self, pools: Sequence[Pool]) -> None:
        check_adaptation(self.adaptation, (AUTO,))
        none_of_these.check_rate(self.none_rate)
        if self.batch is not None and (type(self.batch) is not int or self.batch < 1):
            raise PolyshotError(f"batch is a number of images, 1 or more, not {self.batch!r}.")
        if self.precision not in get_args(Kept):
            raise unknown("precision", self.precision, get_args(Kept))
        check_ensemble(pools)
        for each in pools:
            mixes = find_rule(self.rule, each).mixes  # refuses a name that the pool does not know
            if not each.takes_images and (self.adaptation == "tsa" or mixes == "modulators"):
                what = self.adaptation if self.adaptation == "tsa" else self.rule
                raise PolyshotError(
                    f"'{what}' runs networks on images, but this pool takes embeddings: take "
                    "another rule or adaptation."
                )

    def fit(self, images: Images, labels: Sequence[Label], report: Progress | None = None) -> Self:
        """Learn from examples: paths, PIL images, arrays or tensors of any size.

        Labels are one an image, text or numbers (`data.images.load_sizes` says what images may
        be); at least two are different. `report` is told how many images were read, and how `tsa`
        comes along. A pool of embeddings takes these instead, here and everywhere: floats ``[n,
        d]``.
        """
        given = self.pools_for(images)
        self._check_options(given)
        pools = [as_kept(pool, self.precision) for pool in given]
        items = self._items(pools, images)
        classes, indices = find_classes(check_labels(labels, len(items)))
        if self.none_rate is not None:
            none_of_these.check_classes(classes)
        tables, pictures, names = self._tables(pools, items, report)
        rules = [find_rule(self.rule, pool) for pool in pools]
        tasks = [Tasks.of_examples(table, indices) for table in tables]
        says = [
            weigh(pool, own, rule, self.adaptation)
            for pool, own, rule in zip(pools, tasks, rules, strict=True)
        ]
        examples = Examples(indices, names, [], pictures)
        self._learn(classes, says, rules[0].mixes, tasks, examples, report)
        return self

    def pools_for(self, images: Any) -> list[Pool]:
        """Return the pools that learn from images, or from embeddings of their length."""
        if not (isinstance(self.pool, str | Path) and self.takes_embeddings):
            return self.pools
        return [Pool.from_embeddings(embedding_length(images))]

    def score(
        self, images: Images, labels: Sequence[Label], sample_weight: Sequence[float] | None = None
    ) -> float:
        """Return the share of images that get their label, weighted where weights are given."""
        found = self.predict(images)
        wanted = np.asarray(check_labels(labels, len(found)))
        return float(np.average(found == wanted, weights=sample_weight))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "classes_")

    def __sklearn_tags__(self) -> "Tags":
        from sklearn.utils import ClassifierTags  # noqa: PLC0415 (an extra)

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        tags.target_tags.required = True
        return tags

    def save(self, path: Path | str, examples: bool = True) -> None:
        """Write the classifier as one file, which needs neither the examples nor the pool.

        With `examples`, their embeddings and small images are kept in it, so that one can go on
        from it: `add`, `forget`, `relabel`, `suspects`. What it needs to be loaded, and what is
        promised about the file, is in docs/keep.md.
        """
        self._check_fitted()
        if self.can_estimate:
            self.estimate()  # once, for all who load it
        saved.write(Path(path), self._saved(examples))

    @classmethod
    def load(
        cls,
        path: Path | str,
        device: torch.device | str = "cpu",
        backbone: Any = None,
        download: bool = False,
    ) -> Self:
        """Read a classifier that `save` wrote; it answers to the bit as it did.

        A network of a user's own, which is not in the file, is given as `backbone`; likewise the
        new name of one that its library loads (``timm:...``), which `download` allows to fetch.
        """
        return cls._of(saved.read(Path(path), device, backbone, download))

    def export(self, path: Path | str, half: bool = False) -> Exported:
        """Write the classifier as an ONNX file, for programs without Polyshot or PyTorch.

        It takes images uint8 ``[n, side, side, 3]`` and gives probabilities ``[n, classes]``; what
        else is in it, and how it is used, is in docs/export.md. With `half` its networks compute in
        half precision. It is written only where ONNX Runtime answers as PyTorch does: how far they
        lie apart on the examples (or on random images, where none were kept) is returned.
        """
        self._check_fitted()
        own: FewShotClassifier = self
        if self._answering.pools[0].device.type != "cpu":
            own = type(self).__new__(type(self))
            own.__setstate__(self.__getstate__())  # what a pickle holds is on the CPU
        return write_onnx(own._answering, own._examples, Path(path), half)

    def _saved(self, examples: bool) -> Saved:
        self._check_fitted()
        options = {name: getattr(self, name) for name in OPTIONS}
        kept = self._examples if examples else None
        return Saved(options, self._answering, self._estimate, kept)

    @classmethod
    def _of(cls, kept: Saved) -> Self:
        made = cls.__new__(cls)  # a pool without its selector would be refused by some rules
        pools = kept.answering.pools
        made.pool = pools[0] if len(pools) == 1 else pools
        for name, value in kept.options.items():
            setattr(made, name, value)
        made._take(kept.answering, kept.examples, kept.estimate)
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle holds: the file, and the networks that it does not hold."""
        if not hasattr(self, "classes_"):
            return dict(self.__dict__)
        kept = self._saved(examples=True)
        return {"file": saved.as_bytes(kept), "networks": saved.networks_beside(kept)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "file" not in state:
            self.__dict__.update(state)
            return
        kept = saved.read(state["file"], "cpu", state["networks"], download=False)
        self.__dict__.update(self._of(kept).__dict__)

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """Copy the classifier; networks and what was learned never change, and are shared."""
        return copy.copy(self)

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made
