"""The weights of an ONNX graph, stored once and small; a runtime expands them as it loads the file.

Members of a pool differ by a pointwise map beside each kernel, that is by one of its taps, and the
weights of a pool that ships are multiples of a step, 31 or 127 of them up to the largest of a row.
Both still hold after batch norm was folded in, since that scales whole rows. So a kernel like an
earlier one is stored as the difference of its tap, and weights that are multiples of a step as
int8. What is left of them in the graph, a few operations on constants, runtimes compute once.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALL = 1024
"""Numbers of a tensor up to which it stays as it is."""
STEPS = (31, 127)
"""Of six- and eight-bit weights (`pool.precision`)."""
CLOSE = 0.02
"""How far from a multiple of its step a weight may lie: rounding alone is far below."""
ROUNDING = 1e-6
"""How far weights may lie apart that count as equal, relative to the largest of their row."""

Floats = NDArray[np.float32]


def shrink(
    model: Any, onnx: Any, half: bool = False, bases: Mapping[str, Floats] | None = None
) -> None:
    """Store the weights of a model small, in place; with `half`, what is left of them in 16 bits.

    `bases` are kernels that others may be stored as the difference to, though no network of the
    graph has them. Notes on where operations came from, paths among them, are left out.
    """
    graph = model.graph
    for node in graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for part in (*graph.input, *graph.output, graph):
        del part.metadata_props[:]
    del graph.value_info[:]
    work = _Work(onnx, half)
    for name, values in (bases or {}).items():
        work.offer(name, values)
    for tensor in graph.initializer:
        work.add(tensor)
    used = [node.input for node in graph.node]
    for names in used:
        for i, name in enumerate(names):
            names[i] = work.same.get(name, name)
    nodes = [*work.nodes, *graph.node]
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(work.tensors)
    graph.node.extend(nodes)


@dataclass
class _Work:
    """What becomes of the tensors, one after the other."""

    onnx: Any
    half: bool
    tensors: list[Any] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    """What makes weights from stored tensors."""
    same: dict[str, str] = field(default_factory=dict)
    """By the name of a tensor: an equal one."""
    known: dict[bytes, str] = field(default_factory=dict)
    """By their content, all tensors so far."""
    kernels: dict[tuple[int, ...], dict[str, Floats]] = field(default_factory=dict)
    """By their shapes and names, those that others may be stored as the difference to."""
    offered: dict[str, Floats] = field(default_factory=dict)
    """Those of them that nothing needs so far."""

    def offer(self, name: str, values: Floats) -> None:
        """Take note of a kernel; only where it is small itself, storing it can pay."""
        if values.ndim == 4 and values.size > SMALL and _as_steps(values) is not None:
            self.known.setdefault(_content(values), name)
            self.kernels.setdefault(values.shape, {})[name] = self.offered[name] = values

    def add(self, tensor: Any) -> None:
        """Store a tensor, or what makes it."""
        name, values = tensor.name, self.onnx.numpy_helper.to_array(tensor)
        equal = self.known.setdefault(_content(values), name)
        if equal != name:
            self.same[name] = self._needed(equal)
        elif values.dtype != np.float32 or values.ndim < 2 or values.size <= SMALL:
            self.tensors.append(tensor)
        else:
            others = self.kernels.setdefault(values.shape, {})
            taps = ((other, _only_tap(values, others[other])) for other in others)
            other, tap = next(((one, tap) for one, tap in taps if tap is not None), ("", None))
            if tap is not None:
                self._beside(name, self._needed(other), tap, values - others[other])
            else:
                others[name] = values
                self._weights(name, values)

    def _needed(self, name: str) -> str:
        if name in self.offered:
            self._weights(name, self.offered.pop(name))
        return name

    def _beside(self, name: str, other: str, tap: tuple[int, int], apart: Floats) -> None:
        """Make a kernel of another one and what a single tap differs by."""
        height, width = apart.shape[2:]
        own = np.ascontiguousarray(apart[:, :, tap[0], tap[1], None, None])
        before, after = tap, (height - 1 - tap[0], width - 1 - tap[1])
        pads = np.array([0, 0, *before, 0, 0, *after], dtype=np.int64)
        self._weights(f"{name}.tap", own)
        self._constant(f"{name}.pads", pads)
        self._node("Pad", [f"{name}.tap", f"{name}.pads"], f"{name}.around")
        self._node("Add", [other, f"{name}.around"], name)

    def _weights(self, name: str, values: Floats) -> None:
        found = _as_steps(values)
        if found is not None:
            steps, factor = found
            self._constant(f"{name}.steps", steps)
            self._constant(f"{name}.factor", factor)
            self._node("Cast", [f"{name}.steps"], f"{name}.whole", to=self.onnx.TensorProto.FLOAT)
            self._node("Mul", [f"{name}.whole", f"{name}.factor"], name)
        elif self.half:
            self._constant(f"{name}.half", values.astype(np.float16))
            self._node("Cast", [f"{name}.half"], name, to=self.onnx.TensorProto.FLOAT)
        else:
            self._constant(name, values)

    def _constant(self, name: str, values: NDArray[Any]) -> None:
        self.tensors.append(self.onnx.numpy_helper.from_array(values, name))

    def _node(self, kind: str, inputs: list[str], output: str, **options: int) -> None:
        make: Callable[..., Any] = self.onnx.helper.make_node
        self.nodes.append(make(kind, inputs, [output], name=f"{output}.{kind}", **options))


def _content(values: NDArray[Any]) -> bytes:
    return hashlib.sha256(f"{values.dtype} {values.shape} ".encode() + values.tobytes()).digest()


def _only_tap(one: Floats, other: Floats) -> tuple[int, int] | None:
    """Find the tap that two kernels [out, in, h, w] differ by, where it is only one.

    Batch norms that were folded in by different ways leave differences of rounding.
    """
    if one.ndim != 4 or one.shape[2:] == (1, 1):
        return None
    room = ROUNDING * np.abs(other).max((1, 2, 3), keepdims=True)
    places = np.argwhere((np.abs(one - other) > room).any((0, 1)))  # in [h, w]
    if len(places) > 1:
        return None
    return (int(places[0][0]), int(places[0][1])) if len(places) else (0, 0)


def _as_steps(values: Floats) -> tuple[NDArray[np.int8], Floats] | None:
    """Write weights [out, ...] as int8 times a factor [out, 1, ...], where they are multiples."""
    rows = values.reshape(len(values), -1)
    largest = np.abs(rows).max(1, keepdims=True)
    for most in STEPS:
        factor = (largest / most).astype(np.float32)
        steps = rows / np.maximum(factor, np.finfo(np.float32).tiny)
        whole = steps.round()
        if np.abs(steps - whole).max() <= CLOSE:
            shape = (-1, *[1] * (values.ndim - 1))
            return whole.astype(np.int8).reshape(values.shape), factor.reshape(shape)
    return None
