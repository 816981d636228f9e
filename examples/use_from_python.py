"""Classify images in memory (PIL images, arrays, tensors, or paths) with scikit-learn's verbs.

python examples/use_from_python.py
"""

from PIL import Image

from polyshot import FewShotClassifier
from polyshot.data import toy

SHOTS, QUERIES = 5, 8
CLASSES = {"red triangle": 0, "blue disc": 17, "yellow diamond": 25}
"""Labels of our own, and the class of the drawn signs that each stands for."""


def drawn(class_id: int, number: int) -> Image.Image:
    """Draw an image; think of a photograph that you have loaded."""
    pixels = toy.draw_one("signs", class_id, number, 96, seed=0)  # uint8 [3, 96, 96]
    return Image.fromarray(pixels.transpose(1, 2, 0))


def main() -> None:
    """Fit, predict, and ask how it came about."""
    images = [drawn(c, i) for c in CLASSES.values() for i in range(SHOTS)]
    labels = [name for name in CLASSES for _ in range(SHOTS)]
    new = [drawn(c, SHOTS + i) for c in CLASSES.values() for i in range(QUERIES)]
    truth = [name for name in CLASSES for _ in range(QUERIES)]

    classifier = FewShotClassifier().fit(images, labels)
    print(classifier.estimate())
    predicted = classifier.predict(new)
    print(f"right: {sum(predicted == truth)} of {len(truth)}")
    chances = classifier.predict_proba(new[:1])[0]  # one number a class, in this order:
    print(dict(zip(classifier.classes_.tolist(), chances.round(2).tolist(), strict=True)))
    print("networks used:", classifier.explain()[:3])


if __name__ == "__main__":
    main()
