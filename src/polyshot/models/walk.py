"""The one walk through any network: its own forward pass, from images or from the middle.

Nobody copies a network's forward pass: whoever wants another layer at some place (modulators that
differ from task to task, conditions, kernels of a task's own) gives the `Walk` an `Act` for that
place, and the network's own code does the rest.

Who learns on the same images again and again starts in the middle: what lies before the first layer
that learns is the same every time. `record` keeps the results of the outermost modules that end
before it; `replay` runs the forward pass again with these modules returning what they had made, in
the order of calls, so that only the code between modules runs twice. No network has to declare
stages for it.
"""

import copy
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from polyshot.errors import PolyshotError, join_names
from polyshot.models.passes import (
    Act,
    Counting,
    Keeping,
    Kept,
    Noting,
    Pass,
    Place,
    ReachedError,
    Replaying,
    version_of,
)

AnyNetwork = TypeVar("AnyNetwork", bound=nn.Module)
CLOSE = 1e-3
"""How far a replayed embedding may lie from the plain one, relative to its largest entry."""


@dataclass(frozen=True, eq=False)
class Recording:
    """What a network makes of images before the first layer that learns."""

    plan: Sequence[Kept]
    """What is kept, in the order of calls; the images themselves first."""
    tensors: Sequence[Tensor]
    called: Sequence[str]
    """Layers and norms whose acts were asked on the way."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        memory = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in self.tensors}
        return sum(each.nbytes() for each in memory.values())


def copied(network: AnyNetwork, instead: Mapping[Tensor, Tensor] | None = None) -> AnyNetwork:
    """Copy a network; some of its tensors may be replaced by others.

    Like `copy.deepcopy`, which takes most of its time for the empty lists of hooks of each module.
    """
    known: dict[int, Any] = {id(old): new for old, new in (instead or {}).items()}
    for module in network.modules():
        for value in vars(module).values():
            if not value and type(value) in (dict, OrderedDict):
                known[id(value)] = type(value)()
    return copy.deepcopy(network, known)


class Walk:
    """A network's own forward pass, with acts at some of its layers.

    It is a twin of the module tree that shares every parameter and buffer with the network, so that
    gradients reach these and nothing is copied; only the twin's forward functions are replaced. Not
    for `nn.MultiheadAttention` and others that do not call their layers: an act that was not called
    exactly once is refused. Make it after the network is on its device (`walk_through` does).

    Args:
        network: what embeds images.
        norms: by the names of layers at which acts may be, what normalises them, if anything.
    """

    def __init__(self, network: nn.Module, norms: Mapping[str, str | None]):
        self.network = copied(network, {t: t for t in (*network.parameters(), *network.buffers())})
        self._norms = norms
        self._state = _State()
        self._plans: dict[Any, list[Kept]] = {}
        acting = {}
        for layer, norm in norms.items():
            acting[self.network.get_submodule(layer)] = layer, layer, "layer"
            if norm is not None:
                acting[self.network.get_submodule(norm)] = norm, layer, "norm"
        for name, module in self.network.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):  # takes no other forward function
                self._replace(module, *acting.get(module, (name, None, "")))

    def _replace(self, module: nn.Module, name: str, key: str | None, what: str) -> None:
        leaf = next(module.children(), None) is None
        place, state = Place(name, key, what, module.forward, leaf), self._state

        @wraps(place.own)
        def forward(*given: Any, **named: Any) -> Any:
            under_way = state.under_way
            if under_way is None:
                return place.own(*given, **named)
            return under_way.call(place, given, named)

        module.forward = forward

    def __call__(self, images: Tensor, acts: Mapping[str, Act]) -> Tensor:
        """Embed images [B, 3, H, W] with acts by the names of layers: [B, d]."""
        if not acts:
            result: Tensor = self.network(images)
            return result
        under_way = Pass(acts)
        result = self._run(under_way, images)
        self._check(acts, under_way.called)
        return result

    @torch.no_grad()
    def nbytes(self, images: Tensor) -> int:
        """Measure what the innermost modules make of images [B, 3, H, W], in bytes."""
        under_way = Counting({})
        self._run(under_way, images)
        return under_way.nbytes

    @torch.no_grad()
    def record(
        self, images: Tensor, first: Collection[str], acts: Mapping[str, Act] | None = None
    ) -> Recording:
        """Run what lies before the first of some layers: all of the network where there are none.

        Images are [B, 3, H, W], perhaps those of many tasks; `acts` are of layers before the first.
        The network is in evaluation mode.
        """
        kind = images.device, images.dtype, torch.is_autocast_enabled(images.device.type)
        key = frozenset(first), images.shape[1:], kind
        if key not in self._plans:
            self._plans[key] = self._plan(images, first)
        return self._record(images, first, acts or {}, self._plans[key])

    def replay(self, recording: Recording, acts: Mapping[str, Act]) -> Tensor:
        """Run the rest, with acts by the names of layers: embeddings [B, d]."""
        under_way = Replaying(acts, recording.plan, recording.tensors)
        result: Tensor = self._run(under_way, under_way.next_tensor())
        under_way.check()
        self._check(acts, [*recording.called, *under_way.called])
        return result

    def _record(
        self, images: Tensor, first: Collection[str], acts: Mapping[str, Act], plan: Sequence[Kept]
    ) -> Recording:
        under_way = Keeping(acts, first, plan, images)
        if len(plan) > 1:  # else everything is run again
            self._run(under_way, images)
            under_way.check()
        return Recording(plan, under_way.tensors, under_way.called)

    def _plan(self, images: Tensor, first: Collection[str]) -> list[Kept]:
        """Find out on two images what to keep: only what the rest of the pass reads.

        A network for which replaying does not give the same (whose modules change what others made,
        say) is run from its images.
        """
        norms = (m for m in self.network.modules() if isinstance(m, _NormBase))
        assert not any(norm.training for norm in norms), "the trial would change statistics"
        draw = torch.Generator().manual_seed(0)
        two = torch.randn(2, *images.shape[1:], generator=draw).to(images)
        with torch.inference_mode(False), torch.no_grad(), _fast_path_off():
            two = two.clone()
            version = two._version
            expected = self.network(two.clone())
            if not bool(expected.isfinite().all()):
                raise PolyshotError(
                    "The network makes no finite numbers of images: its weights are damaged or "
                    "far too large. Take another pool."
                )
            noting = Noting(first)
            self._run(noting, two)
            if first and not noting.reached:
                self._refuse(first)
            whole = [
                Kept("", changed=two._version != version),
                *(Kept(name, changed=version_of(t) != was) for name, t, was in noting.noted),
            ]
            trial = self._record(two.clone(), first, {}, whole)
            whole, thin = self._thinned(trial)
            for plan in (thin, whole):
                found = self.replay(self._record(two.clone(), first, {}, plan), {})
                room = CLOSE * float(expected.abs().max())
                if torch.allclose(found, expected, rtol=0, atol=room, equal_nan=True):
                    return plan
        return whole[:1]

    def _thinned(self, recording: Recording) -> tuple[list[Kept], list[Kept]]:
        """Ask autograd what of a recording is read; returns its plan, corrected, and a thin one."""
        learns = [t.is_floating_point() or t.is_complex() for t in recording.tensors]
        with torch.enable_grad():
            leaves = [
                t.detach().requires_grad_(one)
                for t, one in zip(recording.tensors, learns, strict=True)
            ]
            handed = [leaf.clone() for leaf in leaves]
            versions = [t._version for t in handed]
            under_way = Replaying({}, [Kept(each.module) for each in recording.plan], handed)
            result = self._run(under_way, under_way.next_tensor())
            floats = [leaf for leaf in leaves if leaf.requires_grad]
            try:
                found = torch.autograd.grad(result.sum(), floats, allow_unused=True)
            except RuntimeError:  # no gradient flows so far: autograd cannot tell, all are kept
                found = tuple(floats)
        gradients: Iterator[Tensor | None] = iter(found)
        whole = [
            each._replace(changed=each.changed or t._version != was)
            for each, t, was in zip(recording.plan, handed, versions, strict=True)
        ]
        return whole, [
            each._replace(read=not one or next(gradients) is not None)
            for each, one in zip(whole, learns, strict=True)
        ]

    def _run(self, under_way: Pass, images: Tensor) -> Any:
        state = self._state
        state.under_way = under_way
        try:
            with _fast_path_off():
                return self.network(images)
        except ReachedError:
            under_way.reached = True
            return None
        finally:
            state.under_way = None

    def _check(self, acts: Mapping[str, Act], called: Sequence[str]) -> None:
        wanted = {*acts, *(norm for name in acts if (norm := self._norms[name]) is not None)}
        if len(called) != len(wanted) or set(called) != wanted:
            self._refuse(name for name in wanted if called.count(name) != 1)

    def _refuse(self, layers: Iterable[str]) -> NoReturn:
        raise PolyshotError(
            f"The network does not call each of its layers once in a pass, so that nothing can "
            f"act there: {join_names(sorted(layers), 3)}. Choose other sites."
        )


class _State(threading.local):
    """Of a walk: threads may share a network."""

    under_way: Pass | None = None


class _FastPath:
    """How many walks need torch's fused path of transformer layers off, and what it was."""

    lock = threading.Lock()
    users = 0
    before = True


@contextmanager
def _fast_path_off() -> Iterator[None]:
    """Let torch's transformer layers call their modules, as they do not on their fused path."""
    switch = torch.backends.mha
    with _FastPath.lock:
        if not _FastPath.users:
            _FastPath.before = switch.get_fastpath_enabled()
            switch.set_fastpath_enabled(False)
        _FastPath.users += 1
    try:
        yield
    finally:
        with _FastPath.lock:
            _FastPath.users -= 1
            if not _FastPath.users:
                switch.set_fastpath_enabled(_FastPath.before)
