"""A user's own classifier: fitted to a handful of images, asked for labels."""

from polyshot.classifier.classifier import FewShotClassifier, label_files

__all__ = ["FewShotClassifier", "label_files"]
