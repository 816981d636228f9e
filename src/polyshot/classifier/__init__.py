"""A user's own classifier: fitted to a handful of images, asked for labels."""

from polyshot.classifier.classifier import FewShotClassifier
from polyshot.classifier.embedder import ImageEmbedder
from polyshot.classifier.label import label_files

__all__ = ["FewShotClassifier", "ImageEmbedder", "label_files"]
