"""What users hand a classifier: labels, and embeddings where they bring these."""

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyshot.classifier.estimate import Label
from polyshot.errors import join_names
from polyshot.util.checks import BadValueError


def check_labels(labels: Sequence[Label] | None, images: int) -> list[Any]:
    """Return labels as plain text or numbers, one an image; refuses what is no labelling."""
    if images == 0:
        raise BadValueError("There are no images: give at least one of each class.")
    if labels is None:
        raise BadValueError("Labels are missing: give one for each image.")
    listed: list[Any]
    if hasattr(labels, "__array__") and not isinstance(labels, Tensor):
        listed = list(np.asarray(labels))
    elif isinstance(labels, str) or not isinstance(labels, Iterable):
        listed = [labels]
    else:
        listed = list(labels)
    values = [one.item() if getattr(one, "ndim", None) == 0 else one for one in listed]
    if len(values) != images:
        raise BadValueError(
            f"There are {len(values)} labels for {images} images: give one for each image."
        )
    # NaN, a table's empty cell, differs from itself.
    empty = [
        i
        for i, one in enumerate(values)
        if one is None
        or (isinstance(one, str) and not one.strip())
        or (isinstance(one, Real) and one != one)  # noqa: PLR0124
    ]
    if empty:
        raise BadValueError(f"Labels are missing for images[{join_names(map(str, empty))}].")
    strange = {type(one).__name__ for one in values if not isinstance(one, str | Real)}
    if strange or len({isinstance(one, str) for one in values}) > 1:
        what = join_names(sorted(strange)) if strange else "both"
        raise BadValueError(f"Labels are all text or all numbers, not {what}.")
    return values


def find_classes(labels: Sequence[Any]) -> tuple[NDArray[Any], Tensor]:
    """Return the sorted classes and each label's place among them; there are at least two."""
    classes, indices = np.unique(np.asarray(labels), return_inverse=True)
    if len(classes) < 2:
        raise BadValueError(
            f"All images have the label '{classes[0]}', which is one class: give images of at "
            "least two."
        )
    return classes, torch.from_numpy(indices.astype(np.int64))


def embedding_length(given: Any) -> int:
    """Tell the length of embeddings ``[n, d]`` that come without a pool that knows it."""
    made = _as_tensor(given, "d")
    if made.ndim != 2:
        raise BadValueError(
            f"Embeddings are one array of floats [n, d], not {list(made.shape)}. Reshape your data."
        )
    if not made.shape[1]:
        raise BadValueError(
            f"Embeddings have 0 feature(s) (shape={tuple(made.shape)}) while a minimum of 1 is "
            "required."
        )
    return made.shape[1]


def _as_tensor(given: Any, dim: object) -> Tensor:
    if hasattr(given, "tocsr"):
        raise BadValueError(
            f"Sparse matrices are not supported: give dense embeddings [n, {dim}], .toarray()."
        )
    try:
        if isinstance(given, list | tuple) and given and isinstance(given[0], Tensor):
            given = torch.stack(list(given))
        if isinstance(given, Tensor):
            return given
        array = np.asarray(given)
        if array.dtype == object:
            if not array.ndim:
                raise TypeError("no rows")
            array = array.astype(np.float32)
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError, RuntimeError):  # paths, pictures, rows of many lengths
        raise BadValueError(
            f"This pool takes embeddings, one array of floats [n, {dim}], not a "
            f"{type(given).__name__} of something else."
        ) from None


def check_embeddings(given: Any, dim: int) -> Tensor:
    """Return embeddings ``[n, d]`` as float32; refuses what are none of this length."""
    made = _as_tensor(given, dim)
    made = made.unsqueeze(0) if made.ndim == 1 and len(made) == dim else made
    if made.is_complex():
        raise BadValueError(f"Complex data not supported: embeddings are floats [n, {dim}].")
    if made.ndim != 2 or made.shape[1] != dim or made.dtype == torch.bool:
        raise BadValueError(
            f"This pool takes embeddings [n, {dim}], not {list(made.shape)} of "
            f"{str(made.dtype).removeprefix('torch.')}."
        )
    made = made.detach().float()
    if not len(made):
        raise BadValueError("There are no embeddings: give at least one.")
    if strange := (~made.isfinite().all(1)).nonzero().flatten().tolist():
        raise BadValueError(
            f"Embeddings are finite numbers, but not those of rows {join_names(strange)} (NaN or "
            "inf)."
        )
    return made
