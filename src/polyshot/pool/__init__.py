"""The pool: base, modulators and selector, on disk and in memory."""

from polyshot.pool.pool import Pool

__all__ = ["Pool"]
