"""The pool: base, modulators and selector, on disk and in memory."""
