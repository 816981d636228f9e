"""Forward passes of a walk: what each module of a network is told to do instead of running plainly.

With acts at some layers, up to the first layer that learns, noting or keeping what modules make on
the way, or returning what was kept.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from polyshot.errors import PolyshotError


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


class Place(NamedTuple):
    """A module of the twin: its name, whose act it asks for what, its own forward function."""

    name: str
    key: str | None
    what: str
    own: Callable[..., Any]
    leaf: bool
    """Whether there are no modules inside."""


class Pass:
    """A forward pass with acts by the names of layers."""

    def __init__(self, acts: Mapping[str, Act]):
        self.acts = acts
        self.called: list[str] = []
        self.reached = False
        """Whether it was stopped at the first layer that learns."""

    def call(self, place: Place, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run a module, or what acts in its place."""
        act = None if place.key is None else self.acts.get(place.key)
        if act is None:
            return place.own(*given, **named)
        self.called.append(place.name)
        return getattr(act, place.what)(place.own, *given, **named)


class Counting(Pass):
    """Counts the bytes of what modules without modules inside make."""

    nbytes = 0

    def call(self, place: Place, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run a module and count its result."""
        result = super().call(place, given, named)
        if place.leaf and isinstance(result, Tensor):
            self.nbytes += result.nbytes
        return result


class ReachedError(BaseException):  # no network's own `except Exception` may hold it
    """The first layer that learns was reached."""


class _Stopped(Pass):
    """A pass up to the first of some layers."""

    def __init__(self, acts: Mapping[str, Act], first: Collection[str]):
        super().__init__(acts)
        self.first = first

    def call(self, place: Place, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if place.name in self.first:
            raise ReachedError(place.name)
        return super().call(place, given, named)


class Noting(_Stopped):
    """Notes what the outermost modules make, each result with its version at that time.

    Modules that return no tensor (but a tuple, or an object of transformers), and those that
    change what they were given and return it (`nn.ReLU(inplace=True)`), have to run again on
    replay: modules inside them are noted in their place.
    """

    def __init__(self, first: Collection[str]):
        super().__init__({}, first)
        self.noted: list[tuple[str, Tensor, int]] = []

    def call(self, place: Place, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run a module and note its result, in place of those inside it."""
        inside = len(self.noted)
        tensors = [t for t in (*given, *named.values()) if isinstance(t, Tensor)]
        versions = [version_of(t) for t in tensors]
        result = super().call(place, given, named)
        if isinstance(result, Tensor) and not any(
            t is result and version_of(t) != was for t, was in zip(tensors, versions, strict=True)
        ):
            del self.noted[inside:]
            self.noted.append((place.name, result, version_of(result)))
        return result


class Keeping(_Stopped):
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

    def call(self, place: Place, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run a module and keep its result where that is the next of the plan."""
        result = super().call(place, given, named)
        if _is_next(self.plan, len(self.tensors), place) and isinstance(result, Tensor):
            self.tensors.append(self.plan[len(self.tensors)].stored(result))
        return result

    def check(self) -> None:
        """Refuse a pass that has made something else than was planned."""
        _check_all(self.plan, len(self.tensors))


class Replaying(Pass):
    """Returns what was recorded, in the order of calls."""

    def __init__(self, acts: Mapping[str, Act], plan: Sequence[Kept], tensors: Sequence[Tensor]):
        super().__init__(acts)
        self.plan, self.tensors, self.done = plan, tensors, 0

    def next_tensor(self) -> Tensor:
        """Return the next tensor; the first are the images."""
        tensor, changed = self.tensors[self.done], self.plan[self.done].changed
        self.done += 1
        return tensor.clone() if changed else tensor

    def call(self, place: Place, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the next result where it is this module's, else run it."""
        if _is_next(self.plan, self.done, place):
            return self.next_tensor()
        return super().call(place, given, named)

    def check(self) -> None:
        """Refuse a pass that has not asked for all that was recorded."""
        _check_all(self.plan, self.done)


def _is_next(plan: Sequence[Kept], done: int, place: Place) -> bool:
    return done < len(plan) and plan[done].module == place.name


def _check_all(plan: Sequence[Kept], done: int) -> None:
    if done != len(plan):
        raise PolyshotError(
            f"The network's forward pass differs from one time to another: it did not come to "
            f"'{plan[done].module}'. Only what calls its layers in one order can learn."
        )


def version_of(tensor: Tensor) -> int:
    """Count the changes in place of a tensor; those of inference mode are not counted."""
    return 0 if tensor.is_inference() else tensor._version
