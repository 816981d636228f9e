"""An embedder as a transformer of scikit-learn: images in, embeddings out."""

from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray

from polyshot.classifier.estimator import Estimator, Pools
from polyshot.data.images import Images, load_images
from polyshot.errors import PolyshotError, unknown
from polyshot.models.foreign import NO_IMAGES
from polyshot.pool.pool import Pool
from polyshot.util.progress import Progress

if TYPE_CHECKING:
    from sklearn.utils import Tags


class ImageEmbedder(Estimator):
    """Embeds images by one member of a pool; there is nothing to fit.

    `make_pipeline(ImageEmbedder("efficientnet-lite0"), LogisticRegression())` is a classifier of
    images, `make_pipeline(ImageEmbedder(), FewShotClassifier("embeddings"))` one of ours.
    """

    def __init__(
        self,
        pool: Pools = "default",
        member: str = "base",
        unit: bool = True,
        batch: int | None = None,
    ) -> None:
        """Choose what embeds.

        Args:
            pool: a pool, or the name of one; not several.
            member: ``base``, or a domain of the pool.
            unit: whether embeddings are scaled to unit norm, as classifiers compare them.
            batch: images that are embedded at once; as suits device and network if not given.

        """
        self.pool = pool
        self.member, self.unit, self.batch = member, unit, batch

    def fit(self, images: Images | None = None, labels: Any = None) -> Self:  # noqa: ARG002
        """Do nothing but check the pool: the embedder is fitted already."""
        self._network()
        return self

    def transform(self, images: Images, report: Progress | None = None) -> NDArray[np.float32]:
        """Embed images: ``[n, d]``; `data.images.load_sizes` says what images may be."""
        pool, member = self._network()
        pixels = load_images(images, pool.size, report)
        (made,) = pool.embed(pixels, [member], self.batch)
        return (F.normalize(made, dim=-1) if self.unit else made).numpy()

    def fit_transform(self, images: Images, labels: Any = None) -> NDArray[np.float32]:
        """Embed images."""
        return self.fit(images, labels).transform(images)

    def get_feature_names_out(self, _: Any = None) -> NDArray[Any]:
        """Name the entries of an embedding."""
        dim = self._network()[0].config.dim
        return np.asarray([f"embedding{i}" for i in range(dim)], dtype=object)

    def _network(self) -> tuple[Pool, int]:
        pools = self.pools
        if len(pools) > 1:
            raise PolyshotError("An embedder takes one pool, not several: name one of them.")
        (pool,) = pools
        if not pool.takes_images:
            raise PolyshotError(NO_IMAGES)
        if self.member not in pool.members:
            raise unknown("member", self.member, pool.members)
        return pool, pool.members.index(self.member)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> "Tags":
        from sklearn.utils import TransformerTags  # noqa: PLC0415 (an extra)

        tags = super().__sklearn_tags__()
        tags.estimator_type = "transformer"
        tags.transformer_tags = TransformerTags(preserves_dtype=[])
        tags.requires_fit = False
        return tags
