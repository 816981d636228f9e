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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from polyshot.errors import PolyshotError, join_names

CLOSE = 1e-3
"""How far a replayed embedding may lie from the plain one, relative to its largest entry."""


class Act:
    """What happens at a site instead of its layer and its norm; this one changes nothing."""

    def layer(self, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return the layer's result; `own` is the layer itself."""
        return own(x)

    def norm(self, own: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        """Return the normalised result; `own` is the norm itself."""
        return own(y)


class Kept(NamedTuple):
    """A tensor that a recording keeps: the result of a module's call, or the images."""

    module: str
    read: bool = True
    """Whether its values matter; else its shape is all that is kept."""
    changed: bool = False
    """Whether the code between modules changes it in place, so that it works on copies."""

    def stored(self, tensor: Tensor) -> Tensor:
        """Return what to keep of a tensor."""
        if not self.read:
            return tensor.new_zeros(()).expand(tensor.shape)
        return tensor.clone() if self.changed else tensor


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
        shared = {id(t): t for t in (*network.parameters(), *network.buffers())}
        self.network = copy.deepcopy(network, shared)
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
        place, state = _Place(name, key, what, module.forward, leaf), self._state

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
        under_way = _Pass(acts)
        result = self._run(under_way, images)
        self._check(acts, under_way.called)
        return result

    @torch.no_grad()
    def nbytes(self, images: Tensor) -> int:
        """Measure what the innermost modules make of images [B, 3, H, W], in bytes."""
        under_way = _Counting({})
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
        under_way = _Replaying(acts, recording.plan, recording.tensors)
        result: Tensor = self._run(under_way, under_way.next_tensor())
        under_way.check()
        self._check(acts, [*recording.called, *under_way.called])
        return result

    def _record(
        self, images: Tensor, first: Collection[str], acts: Mapping[str, Act], plan: Sequence[Kept]
    ) -> Recording:
        under_way = _Recording(acts, first, plan, images)
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
            noting = _Noting(first)
            self._run(noting, two)
            if first and noting.reached is None:
                self._refuse(first)
            whole = [
                Kept("", changed=two._version != version),
                *(Kept(name, changed=_version(t) != was) for name, t, was in noting.noted),
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
            under_way = _Replaying({}, [Kept(each.module) for each in recording.plan], handed)
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

    def _run(self, under_way: "_Pass", images: Tensor) -> Any:
        state = self._state
        state.under_way = under_way
        try:
            with _fast_path_off():
                return self.network(images)
        except _ReachedError as reached:
            under_way.reached = reached.layer
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


class _Place(NamedTuple):
    """A module of the twin: its name, whose act it asks for what, its own forward function."""

    name: str
    key: str | None
    what: str
    own: Callable[..., Any]
    leaf: bool
    """Whether there are no modules inside."""


class _Pass:
    """A forward pass with acts by the names of layers."""

    def __init__(self, acts: Mapping[str, Act]):
        self.acts = acts
        self.called: list[str] = []
        self.reached: str | None = None
        """The layer at which it was stopped."""

    def call(self, place: _Place, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run a module, or what acts in its place."""
        act = None if place.key is None else self.acts.get(place.key)
        if act is None:
            return place.own(*given, **named)
        self.called.append(place.name)
        return getattr(act, place.what)(place.own, *given, **named)


class _Counting(_Pass):
    """Counts the bytes of what modules without modules inside make."""

    nbytes = 0

    def call(self, place: _Place, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        result = super().call(place, given, named)
        if place.leaf and isinstance(result, Tensor):
            self.nbytes += result.nbytes
        return result


class _State(threading.local):
    """Of a walk: threads may share a network."""

    under_way: _Pass | None = None


class _ReachedError(BaseException):  # no network's own `except Exception` may hold it
    """The first layer that learns was reached."""

    def __init__(self, layer: str):
        super().__init__(layer)
        self.layer = layer


class _Stopped(_Pass):
    """A pass up to the first of some layers."""

    def __init__(self, acts: Mapping[str, Act], first: Collection[str]):
        super().__init__(acts)
        self.first = first

    def call(self, place: _Place, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if place.name in self.first:
            raise _ReachedError(place.name)
        return super().call(place, given, named)


class _Noting(_Stopped):
    """Notes what the outermost modules make, each result with its version at that time.

    Modules that return no tensor (but a tuple, or an object of transformers), and those that
    change what they were given and return it (`nn.ReLU(inplace=True)`), have to run again on
    replay: modules inside them are noted in their place.
    """

    def __init__(self, first: Collection[str]):
        super().__init__({}, first)
        self.noted: list[tuple[str, Tensor, int]] = []

    def call(self, place: _Place, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        inside = len(self.noted)
        tensors = [t for t in (*given, *named.values()) if isinstance(t, Tensor)]
        versions = [_version(t) for t in tensors]
        result = super().call(place, given, named)
        if isinstance(result, Tensor) and not any(
            t is result and _version(t) != was for t, was in zip(tensors, versions, strict=True)
        ):
            del self.noted[inside:]
            self.noted.append((place.name, result, _version(result)))
        return result


class _Recording(_Stopped):
    """Keeps what a plan says."""

    def __init__(
        self,
        acts: Mapping[str, Act],
        first: Collection[str],
        plan: Sequence[Kept],
        images: Tensor,
    ):
        super().__init__(acts, first)
        self.plan = plan
        self.tensors = [plan[0].stored(images)]

    def call(self, place: _Place, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        result = super().call(place, given, named)
        if _is_next(self.plan, len(self.tensors), place) and isinstance(result, Tensor):
            self.tensors.append(self.plan[len(self.tensors)].stored(result))
        return result

    def check(self) -> None:
        """Refuse a pass that has made something else than was planned."""
        _check_all(self.plan, len(self.tensors))


class _Replaying(_Pass):
    """Returns what was recorded, in the order of calls."""

    def __init__(self, acts: Mapping[str, Act], plan: Sequence[Kept], tensors: Sequence[Tensor]):
        super().__init__(acts)
        self.plan, self.tensors, self.done = plan, tensors, 0

    def next_tensor(self) -> Tensor:
        """Return the next tensor; the first are the images."""
        tensor, changed = self.tensors[self.done], self.plan[self.done].changed
        self.done += 1
        return tensor.clone() if changed else tensor

    def call(self, place: _Place, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if _is_next(self.plan, self.done, place):
            return self.next_tensor()
        return super().call(place, given, named)

    def check(self) -> None:
        """Refuse a pass that has not asked for all that was recorded."""
        _check_all(self.plan, self.done)


def _is_next(plan: Sequence[Kept], done: int, place: _Place) -> bool:
    return done < len(plan) and plan[done].module == place.name


def _check_all(plan: Sequence[Kept], done: int) -> None:
    if done != len(plan):
        raise PolyshotError(
            f"The network's forward pass differs from one time to another: it did not come to "
            f"'{plan[done].module}'. Only what calls its layers in one order can learn."
        )


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


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
