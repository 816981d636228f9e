"""The pool: base, modulators and selector, on disk and in memory."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyshot.pool.pool import Pool as Pool


def __getattr__(name: str) -> Any:
    """Import the pool when it is asked for: `--help` needs the default's name alone, not torch."""
    if name != "Pool":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from polyshot.pool.pool import Pool  # noqa: PLC0415

    return Pool
