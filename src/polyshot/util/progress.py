"""The one way in which long work says how far it is."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the name of the work, how much of it is done, and how much there is in all."""
