"""Polyshot: few-shot image classification in any visual domain, also one never seen.

The public names are loaded when they are first used, so that ``import polyshot`` costs nothing.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from polyshot.errors import PolyshotError
from polyshot.util import __version__ as __version__

if TYPE_CHECKING:
    from polyshot.classifier.classifier import FewShotClassifier as FewShotClassifier
    from polyshot.classifier.embedder import ImageEmbedder as ImageEmbedder
    from polyshot.data.episodes import Episodes as Episodes
    from polyshot.data.episodes import EpisodeSampler as EpisodeSampler
    from polyshot.data.importer import import_source as import_source
    from polyshot.data.pack import Domain as Domain
    from polyshot.data.pack import Pack as Pack
    from polyshot.data.shapes import EpisodeShape as EpisodeShape
    from polyshot.data.shapes import VariableShape as VariableShape
    from polyshot.pool.pool import Pool as Pool
    from polyshot.training.run import train as train

_HOMES = {
    "Domain": "polyshot.data.pack",
    "EpisodeSampler": "polyshot.data.episodes",
    "EpisodeShape": "polyshot.data.shapes",
    "Episodes": "polyshot.data.episodes",
    "FewShotClassifier": "polyshot.classifier.classifier",
    "ImageEmbedder": "polyshot.classifier.embedder",
    "Pack": "polyshot.data.pack",
    "Pool": "polyshot.pool.pool",
    "VariableShape": "polyshot.data.shapes",
    "import_source": "polyshot.data.importer",
    "train": "polyshot.training.run",
}

__all__ = [
    "Domain",
    "EpisodeSampler",
    "EpisodeShape",
    "Episodes",
    "FewShotClassifier",
    "ImageEmbedder",
    "Pack",
    "PolyshotError",
    "Pool",
    "VariableShape",
    "import_source",
    "train",
]


if sys.platform == "darwin":  # PyTorch asks when it is imported, so that it must be told before
    os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'polyshot' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
