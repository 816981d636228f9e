"""A classifier as an ONNX file: images in, probabilities out, nothing of Polyshot needed.

Outputs are the probabilities ``[n, W]`` and, where `none of these` was asked for, `none` and
`nearness` ``[n]``. Class names, threshold and how images are made square are in the file's
metadata.

W classes, n images.
"""

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from polyshot.classifier.answering import Answering
from polyshot.classifier.examples import Examples
from polyshot.classifier.onnx_graph import Graph
from polyshot.classifier.onnx_weights import shrink
from polyshot.errors import PolyshotError, join_names
from polyshot.models.foreign import first_line
from polyshot.predict.none_of_these import NONE
from polyshot.tasks import Queries, Table
from polyshot.util import __version__
from polyshot.util.files import check_writable, write_bytes

ROOM = {False: 1e-4, True: 0.05}
"""How far a probability may lie from PyTorch's, in half precision or not."""
MOST_CHECKED, AT_ONCE, RANDOM = 256, 16, 20
"""Images that a graph is checked on: examples, how many at once, and random ones instead."""
RESIZE = {
    "mode": "RGB",
    "orientation": "as EXIF says",
    "background": "white, where pixels are transparent",
    "crop": "the largest square in the middle",
    "filter": "bicubic, a = -0.5, as wide as the image shrinks (Pillow's BICUBIC)",
}
"""How an image becomes an input: ``PIL.ImageOps.fit(image, (side, side), BICUBIC)`` at the end."""
Pixels = Mapping[int, NDArray[np.uint8]]
"""By side length: images uint8 ``[n, 3, side, side]``."""


@dataclass(frozen=True)
class Exported:
    """What was written, and how far it answers as PyTorch does."""

    path: Path
    size: int
    """Of the file, in bytes."""
    inputs: dict[str, int]
    """By their names, the side lengths of the images that they take."""
    images: int
    """How many ONNX Runtime and PyTorch were both asked about."""
    of: str
    """What these were: ``examples`` or ``random images``."""
    difference: float
    """The largest between two probabilities."""
    same: float
    """Share of the images with the same label."""

    def __str__(self) -> str:
        return (
            f"ONNX Runtime against PyTorch on {self.images} {self.of}: probabilities differ by at "
            f"most {self.difference:.1e}, {self.same:.1%} of the labels are the same."
        )


def write_onnx(
    answering: Answering, examples: Examples | None, path: Path, half: bool = False
) -> Exported:
    """Write what answers, which is on the CPU, as an ONNX file.

    With `half` its networks compute in half precision. It is checked on the examples, or on random
    images without them: nothing is written unless ONNX Runtime answers as PyTorch does.
    """
    onnx, runtime = _libraries()
    if not all(pool.takes_images for pool in answering.pools):
        raise PolyshotError(
            "This classifier takes embeddings, so that there is no network that an ONNX file could "
            "hold: fit one on images."
        )
    if path.is_dir():
        raise PolyshotError(f"{path} is a folder: name the file to write, such as birds.onnx.")
    check_writable(path)  # tracing takes seconds
    model = _traced(answering, half)
    bases = {
        f"base{i}.{name}": tensor.numpy()
        for i, pool in enumerate(answering.pools)
        for name, tensor in pool.network(0).named_parameters()
    }
    shrink(model, onnx, half, bases)
    _describe(model, onnx, answering)
    data = model.SerializeToString()
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    pixels, of = _checked_on(answering, examples)
    difference, same = _compared(session, answering, pixels)
    if not difference <= ROOM[half]:
        raise PolyshotError(
            f"ONNX Runtime's probabilities differ from PyTorch's by {difference:.1e}, so that "
            f"nothing is written: {'go without half precision' if half else 'take another rule'}."
        )
    write_bytes(path, data)
    inputs, images = _sides(model), len(next(iter(pixels.values())))
    return Exported(path, len(data), inputs, images, of, difference, same)


# --- the graph


def _traced(answering: Answering, half: bool) -> Any:
    """Return the graph as ONNX's own object."""
    graph = Graph(answering, half).eval()
    sample = tuple(torch.zeros(2, side, side, 3, dtype=torch.uint8) for side in graph.sides)
    number, names = torch.export.Dim("n"), join_names([pool.backbone for pool in answering.pools])
    try:
        with torch.no_grad(), _quiet():
            graph(*sample)
            program = torch.onnx.export(
                graph,
                sample,
                input_names=list(graph.inputs),
                output_names=graph.outputs,
                dynamic_shapes=(tuple({0: number} for _ in sample),),
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # whatever networks of anybody and their translation raise
        raise PolyshotError(
            f"ONNX cannot express what {names} computes ({first_line(_deepest(error))}): take "
            "another backbone or rule."
        ) from None
    assert program is not None
    model = program.model_proto
    if not all(each.type.tensor_type.shape.dim[0].dim_param for each in model.graph.input):
        raise PolyshotError(
            f"What {names} computes depends on the number of images, so that an ONNX file could "
            "only take as many as it was made with: take another backbone or rule."
        )
    return model


def _deepest(error: BaseException) -> BaseException:
    """Return what an error came from: what libraries say about it themselves is long and vague."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


@contextmanager
def _quiet() -> Iterator[None]:
    """Let nothing be said about packages that are not there, and about what will change one day."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


def _libraries() -> tuple[Any, Any]:
    """Import onnx and ONNX Runtime; PyTorch itself imports onnxscript."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise PolyshotError(
            f"To export, {join_names(missing)} must be installed: pip install 'polyshot[onnx]'."
        )
    return import_module("onnx"), import_module("onnxruntime")


# --- what the file says about itself, and what it answers


def _describe(model: Any, onnx: Any, answering: Answering) -> None:
    """Put into the metadata what a program needs to use the file."""
    about: dict[str, Any] = {
        "polyshot": __version__,
        "classes": answering.classes.tolist(),
        "resize": RESIZE | {"sides": _sides(model)},
        "adaptation": answering.adaptations,
        "backbones": [pool.backbone.partition(":")[0] for pool in answering.pools],
    }
    if (threshold := answering.threshold) is not None:
        about |= {"none": NONE, "threshold": threshold.value, "none_rate": threshold.rate}
    plain = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in about.items()
    }
    onnx.helper.set_model_props(model, plain)
    model.doc_string = (
        "A few-shot classifier by Polyshot. Inputs: images uint8 [n, side, side, 3], RGB. Outputs: "
        f"{', '.join(output.name for output in model.graph.output)}. The metadata has the classes, "
        "in the order of the probabilities, and how images are made square."
    )


def _sides(model: Any) -> dict[str, int]:
    """Tell the side lengths of images by the names of inputs."""
    return {i.name: i.type.tensor_type.shape.dim[1].dim_value for i in model.graph.input}


def _checked_on(answering: Answering, examples: Examples | None) -> tuple[Pixels, str]:
    """Return images to ask both about, and what they are."""
    sides = [pool.size for pool in answering.pools]
    if examples is not None:
        rows = np.linspace(0, len(examples) - 1, min(len(examples), MOST_CHECKED)).astype(int)
        return {side: examples.images[side].pixels[rows] for side in sides}, "examples"
    coarse = np.random.default_rng(0).integers(0, 256, (RANDOM, 6, 6, 3), dtype=np.uint8)
    squares = {
        side: [Image.fromarray(one).resize((side, side)) for one in coarse] for side in sides
    }
    return {
        side: np.stack([np.asarray(one).transpose(2, 0, 1) for one in own])
        for side, own in squares.items()
    }, "random images"


def _compared(session: Any, answering: Answering, pixels: Pixels) -> tuple[float, float]:
    """Ask both about images: the largest difference of probabilities, and the share of labels."""
    count = len(next(iter(pixels.values())))
    queries = []
    for pool in answering.pools:
        table = Table.of(pixels[pool.size], pool.device, pool.views)
        every = Queries(table, torch.arange(count).unsqueeze(0))
        queries.append(every.viewed(pool.query_views or pool.views))
    expected, none = answering.probabilities(queries), answering.none(queries)
    parts: list[list[NDArray[Any]]] = []
    for start in range(0, count, AT_ONCE):
        given = {
            each.name: np.ascontiguousarray(
                pixels[each.shape[1]][start : start + AT_ONCE].transpose(0, 2, 3, 1)
            )
            for each in session.get_inputs()
        }
        parts.append(session.run(None, given))
    found = [np.concatenate(each) for each in zip(*parts, strict=True)]
    same = found[0].argmax(1) == expected.argmax(1)
    if none is not None:
        same &= found[1] == none
    return float(np.abs(found[0] - expected).max()), float(same.mean())
