import numpy as np
import pytest

from polyshot.data import toy
from polyshot.errors import PolyshotError

NAMES = sorted(toy.DOMAINS)
SIZE, PER_CLASS = 24, 10


@pytest.fixture(scope="module")
def drawn():
    """Every domain once: images [classes * PER_CLASS, 3, SIZE, SIZE] and labels by name."""
    return {name: toy.draw(name, SIZE, PER_CLASS, seed=0) for name in NAMES}


def test_there_are_eight_domains_of_forty_classes():
    assert len(toy.DOMAINS) >= 8
    for name, domain in toy.DOMAINS.items():
        assert domain.name == name
        assert 40 <= len(domain.class_names) <= 60


@pytest.mark.parametrize("name", NAMES)
def test_class_names_are_unique_in_any_case(name):
    names = toy.DOMAINS[name].class_names
    assert len({entry.casefold() for entry in names}) == len(names)
    assert all(entry.strip() == entry != "" for entry in names)


def test_handedness_is_kept_where_it_defines_the_class():
    assert not any(toy.DOMAINS[name].mirror for name in ("glyphs", "strokes", "signs"))


@pytest.mark.parametrize("size", [32, 72])
@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_types(name, size):
    images, labels = toy.draw(name, size=size, per_class=1)
    classes = len(toy.DOMAINS[name].class_names)
    assert images.shape == (classes, 3, size, size)
    assert images.dtype == np.uint8
    assert labels.dtype == np.int64
    assert labels.tolist() == list(range(classes))
    # every class shows something
    assert images.reshape(classes, -1).std(axis=1).min() > 4


@pytest.mark.parametrize("name", NAMES)
def test_an_image_is_a_pure_function_of_its_arguments(name, drawn):
    images, labels = drawn[name]
    first, first_labels = toy.draw(name, SIZE, per_class=1, seed=0)
    assert np.array_equal(first, images[::PER_CLASS])
    assert np.array_equal(first_labels, labels[::PER_CLASS])

    # out of order, as other processes would draw them
    for row in (len(images) - 1, PER_CLASS + 3, 1, 0):
        one = toy.draw_one(name, row // PER_CLASS, row % PER_CLASS, SIZE, 0)
        assert one.dtype == np.uint8
        assert np.array_equal(one, images[row])
        assert np.array_equal(one, toy.draw_one(name, row // PER_CLASS, row % PER_CLASS, SIZE, 0))


@pytest.mark.parametrize("name", NAMES)
def test_examples_differ_by_number_and_by_seed(name, drawn):
    flat = drawn[name][0].reshape(len(drawn[name][0]), -1)
    assert len(np.unique(flat, axis=0)) == len(flat)
    others, _ = toy.draw(name, SIZE, per_class=1, seed=1)
    assert (flat[::PER_CLASS] != others.reshape(len(others), -1)).any(axis=1).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_drawing_looks_the_same_at_every_size(name):
    """Halving a large drawing gives about the small one: its geometry does not know pixels."""
    large = np.stack([toy.draw_one(name, c, 0, 96, 0) for c in range(0, 40, 4)]).astype(float)
    small = np.stack([toy.draw_one(name, c, 0, 48, 0) for c in range(0, 40, 4)]).astype(float)
    halved = large.reshape(-1, 3, 48, 2, 48, 2).mean(axis=(3, 5))
    for one, other in zip(halved, small, strict=True):
        assert np.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.7


def nearest_centroid(images, episodes=100, way=5, shot=5):
    """Return the accuracy of raw pixels on 5-way 5-shot episodes with 5 queries a class."""
    rng = np.random.default_rng(0)
    pixels = images.reshape(-1, PER_CLASS, images[0].size).astype(np.float32)
    hits = []
    for _ in range(episodes):
        chosen = pixels[rng.choice(len(pixels), way, replace=False)]
        chosen = chosen[:, rng.permutation(PER_CLASS)]
        centroids, queries = chosen[:, :shot].mean(axis=1), chosen[:, shot:]
        # the queries' own norms do not change which centroid is nearest
        distance = (centroids**2).sum(axis=1) - 2 * queries @ centroids.T  # [way, queries, way]
        hits.append((distance.argmin(axis=-1) == np.arange(way)[:, None]).mean())
    return float(np.mean(hits))


def test_raw_pixels_do_not_tell_the_classes(drawn):
    accuracy = {name: nearest_centroid(images) for name, (images, _) in drawn.items()}
    assert np.mean(list(accuracy.values())) < 0.6, accuracy
    assert max(accuracy.values()) < 0.7, accuracy


def test_an_unknown_domain_is_met_with_a_suggestion():
    with pytest.raises(PolyshotError, match="Did you mean 'flowers'"):
        toy.draw("flower")
    with pytest.raises(PolyshotError, match="no embedded domain 'xyz'"):
        toy.draw_one("xyz", 0, 0, 32, 0)


@pytest.mark.parametrize(
    "bad", [{"per_class": 0}, {"per_class": -3}, {"size": 15}, {"size": 0}, {"seed": -1}]
)
def test_bad_arguments_of_draw(bad):
    with pytest.raises(PolyshotError, match=next(iter(bad))):
        toy.draw("glyphs", **bad)


@pytest.mark.parametrize(
    ("class_id", "example", "size"), [(-1, 0, 32), (999, 0, 32), (0, -1, 32), (0, 0, 8)]
)
def test_bad_arguments_of_draw_one(class_id, example, size):
    with pytest.raises(PolyshotError):
        toy.draw_one("glyphs", class_id, example, size, 0)
