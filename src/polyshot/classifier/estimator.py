"""scikit-learn's contract, without scikit-learn: that is an extra, and imported when it asks.

What `clone`, `GridSearchCV`, `Pipeline` and joblib need of an estimator: parameters by name as the
constructor has them, tags, a short description. Pools are given, or named: a name is loaded when it
is needed, once, so that a search over many settings has one copy of each.
"""

import inspect
import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from polyshot.errors import PolyshotError, join_names
from polyshot.models.foreign import EMBEDDINGS
from polyshot.pool.default import VARIABLE
from polyshot.pool.forms import load_pools
from polyshot.pool.pool import Pool
from polyshot.util.checks import BadValueError
from polyshot.util.device import best_device

if TYPE_CHECKING:
    from sklearn.utils import Tags

Pools = Pool | Sequence[Pool] | str | Path
"""What embeds images: a pool, several that answer together, or a name: ``default``, ``full``,
``fast``, a folder, a backbone (``efficientnet-lite0``), several of them (``a,b``); ``embeddings``
where users bring these, of any length."""


class Estimator:
    """Parameters by their names, as scikit-learn's estimators have them."""

    pool: Pools

    @classmethod
    def _parameters(cls) -> dict[str, Any]:
        """Return the constructor's parameters and their defaults."""
        taken = inspect.signature(cls.__init__).parameters
        return {name: one.default for name, one in taken.items() if name != "self"}

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002 (pools have none)
        """Return the parameters by name."""
        return {name: getattr(self, name) for name in self._parameters()}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; what was learned stays as it is until the next fit."""
        known = self._parameters()
        if strange := [name for name in params if name not in known]:
            raise BadValueError(
                f"{type(self).__name__} has no parameter {join_names(map(repr, strange))}, only "
                f"{', '.join(known)}."
            )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        pool = self.pool
        if isinstance(pool, Pool):
            shown = [f"<pool on {pool.backbone}>"]
        elif isinstance(pool, str | Path):
            shown = [repr(str(pool))]
        else:
            listed = pool if isinstance(pool, list | tuple) else []
            names = [each.backbone for each in listed if isinstance(each, Pool)]
            shown = [f"<pools on {' and '.join(names)}>" if names else repr(pool)]
        for name, default in self._parameters().items():
            value = getattr(self, name)
            if name != "pool" and value != default:
                shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def takes_embeddings(self) -> bool:
        """Whether users bring embeddings, not images."""
        if isinstance(self.pool, str | Path):
            return str(self.pool) == EMBEDDINGS
        return not all(pool.takes_images for pool in self.pools)

    @property
    def pools(self) -> list[Pool]:
        """What embeds the images, as a list; a name is loaded."""
        if isinstance(self.pool, str | Path):
            return list(_named(str(self.pool), *_state(str(self.pool))))
        given = [self.pool] if isinstance(self.pool, Pool) else self.pool
        if isinstance(given, Sequence) and all(isinstance(each, Pool) for each in given):
            return list(given)
        raise PolyshotError(
            "A pool is a Pool, several of them, or the name of one, not "
            f"{'a list of others' if isinstance(given, Sequence) else f'a {type(given).__name__}'}."
        )

    def __sklearn_tags__(self) -> "Tags":
        from sklearn.utils import InputTags, Tags, TargetTags  # noqa: PLC0415 (an extra)

        images = InputTags(two_d_array=self.takes_embeddings, one_d_array=not self.takes_embeddings)
        return Tags(None, TargetTags(required=False), input_tags=images)


@lru_cache(maxsize=4)
def _named(name: str, *_: object) -> list[Pool]:
    """Load what a name means, once as long as that stays as it is."""
    pools, _form = load_pools(name, best_device())
    return pools


def _state(names: str) -> list[object]:
    """Tell what a name's meaning depends on: the default's variable, and when folders changed."""
    files = [Path(name.strip()) / "pool.json" for name in names.split(",")]
    changed = [file.stat().st_mtime_ns if file.is_file() else 0 for file in files]
    return [os.environ.get(VARIABLE), *changed]


def not_fitted(message: str) -> PolyshotError:
    """Return the error of who asks too early; where scikit-learn is in use, its own as well."""
    theirs = sys.modules.get("sklearn.exceptions")
    if theirs is None:
        return PolyshotError(message)
    kinds = (PolyshotError, theirs.NotFittedError)
    made: PolyshotError = type("NotFittedError", kinds, {})(message)
    return made
