"""Exported classifiers: ONNX Runtime answers as Polyshot does, and what cannot be is refused."""

import json
import logging
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyshot.classifier import FewShotClassifier, onnx_weights
from polyshot.classifier import onnx as exporting
from polyshot.config import FOREIGN, AdaptationConfig
from polyshot.data.images import load_images
from polyshot.data.readers.queries import read_queries, read_support
from polyshot.data.toy import draw_example
from polyshot.errors import PolyshotError
from polyshot.models.foreign import Foreign
from polyshot.models.heads import Metric
from polyshot.models.selector import Selector
from polyshot.models.views import Views
from polyshot.pool.forms import load_pools
from polyshot.pool.pool import Pool
from tests.helpers import (
    SIZE,
    colour_pool,
    examples,
    gentle_modulator,
    picture,
    random_pool,
    randomised,
    run_here,
    saved_vit,
    thin_lite0,
)

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("one_thread")

EXAMPLE = Path(__file__).parents[2] / "examples" / "run_onnx.py"
RESNET = colour_pool()


class Small(nn.Module):
    """Two convolutions: an export takes as long as a network has layers, whatever they are."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8))
        self.block = nn.Sequential(nn.Conv2d(8, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12))

    def forward(self, images: Tensor) -> Tensor:
        return self.block(self.stem(images).relu()).relu().mean((2, 3))


def small_pool(metric: Metric = "cosine", adaptation: AdaptationConfig | None = None) -> Pool:
    """A pool of two members on such a network: each member and view is traced."""
    torch.manual_seed(0)
    base = Foreign(randomised(Small()), SIZE, (0.5,) * 3, (0.4,) * 3, sites=["block.0"])
    torch.manual_seed(1)
    return Pool(
        *(base.config, SIZE, "conv1x1", metric, base),
        {"cars": gentle_modulator(base, "conv1x1", 1)},
        {"cars": 0.75},
        Selector(base.config.dim, 2, hidden=8),
        scales=[10.0, 12.0] if metric == "cosine" else [0.1, 0.12],
        adaptation=adaptation or replace(FOREIGN, steps=20, updates=3),
    )


POOL = small_pool()
QUERIES = [*examples(3, 3, 3, first=70)[0], *(picture(i) for i in range(4))]


def ask(file: Path, images: list[Any]) -> dict[str, NDArray[Any]]:
    """Run an exported classifier by ONNX Runtime alone."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    given = {
        each.name: load_images(images, each.shape[1]).transpose(0, 2, 3, 1)
        for each in session.get_inputs()
    }
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, given), strict=True))


def check(classifier: FewShotClassifier, folder: Path, half: bool = False) -> Path:
    """Export, and compare on images that the export has not seen, many of them and one alone."""
    file = folder / "made.onnx"
    told = classifier.export(file, half)
    room = 0.02 if half else 1e-5
    assert told.difference < room and told.same == 1.0 and told.size == file.stat().st_size
    chances, none = classifier.answer(QUERIES)
    for some in (slice(None), slice(1)):
        found = ask(file, QUERIES[some])
        np.testing.assert_allclose(found["probabilities"], chances[some], atol=room)
        if none is not None and not half:
            np.testing.assert_array_equal(found["none"], none[some])
        assert ("none" in found) == ("nearness" in found) == (none is not None)
    return file


@pytest.mark.parametrize(
    ("rule", "adaptation", "views", "rate"),
    [
        ("auto", "tsa", "five", 0.3),
        ("average", "pa", "three", None),
        ("blend", "head", "one", 0.3),
        pytest.param("select", "none", "three", 0.3, marks=pytest.mark.slow),
        pytest.param("blend", "tsa", "one", 0.3, marks=pytest.mark.slow),
    ],
)
def test_rules_adaptations_and_views(
    rule: str, adaptation: str, views: Views, rate: float | None, tmp_path: Path
) -> None:
    classifier = FewShotClassifier(POOL.with_views(views), rule, adaptation, none_rate=rate)
    check(classifier.fit(*examples(4, 3, 3)), tmp_path)


def test_the_members_of_a_resnet(tmp_path: Path) -> None:
    check(RESNET.classifier("auto", "ridge").fit(*examples(4, 3, 3)), tmp_path)


def test_maps_squared_distances_and_other_views_of_queries(tmp_path: Path) -> None:
    config = AdaptationConfig(updates=2, tsa_share=1.0, tsa_readout="ridge")
    pool = replace(small_pool("euclidean", config), query_views="three")
    check(FewShotClassifier(pool, "sum", "tsa", none_rate=0.3).fit(*examples(3, 2, 2)), tmp_path)


def test_one_example_a_class(tmp_path: Path) -> None:
    check(POOL.classifier("select").fit(*examples(1, 1, 1)), tmp_path)


def test_several_pools_of_several_sizes(tmp_path: Path) -> None:
    thin = Pool.from_backbone(thin_lite0(), 32)
    classifier = FewShotClassifier([POOL, thin], adaptation="ridge", none_rate=0.3)
    file = check(classifier.fit(*examples(3, 3, 2)), tmp_path)
    shapes = {each.name: each.shape for each in onnxruntime.InferenceSession(file).get_inputs()}
    assert {name: shape[1:] for name, shape in shapes.items()} == {
        f"images_{SIZE}": [SIZE, SIZE, 3],
        "images_32": [32, 32, 3],
    }
    assert len({shape[0] for shape in shapes.values()}) == 1, "any number, of both the same"


def test_half_precision(tmp_path: Path) -> None:
    """Also of a ResNet, by the command below."""
    classifier = FewShotClassifier(Pool.from_backbone(thin_lite0(), 32), none_rate=0.3)
    check(classifier.fit(*examples(3, 3, 2)), tmp_path, half=True)


def test_a_network_of_transformers(tmp_path: Path) -> None:
    pool = Pool.from_backbone(saved_vit(tmp_path / "vit"))
    check(pool.classifier(adaptation="ridge").fit(*examples(2, 2, 2)), tmp_path)


def test_a_function(tmp_path: Path) -> None:
    def network(images: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(images, 8).flatten(1)

    pool = Pool.from_backbone(network, 24)
    check(pool.classifier(adaptation="ridge").fit(*examples(2, 2, 2)), tmp_path)


# --- what is in the file


def test_metadata_and_that_nothing_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    classifier = POOL.classifier("base", "none", none_rate=0.25)
    classifier.fit(examples(3, 3, 2)[0], [7, 7, 7, -2, -2, -2, 0, 0])
    loggers = logging.root.manager.disable
    told = classifier.export(tmp_path / "made.onnx")
    assert capfd.readouterr() == ("", "")
    assert logging.root.manager.disable == loggers
    model = onnx.load(tmp_path / "made.onnx")
    onnx.checker.check_model(model, full_check=True)
    about = {each.key: each.value for each in model.metadata_props}
    assert json.loads(about["classes"]) == classifier.classes_.tolist() == [-2, 0, 7]
    assert classifier.threshold_ is not None
    assert float(about["threshold"]) == classifier.threshold_.value
    assert about["none"] == "none of these"
    resize = json.loads(about["resize"])
    assert resize["sides"] == told.inputs == {"images": SIZE} and "bicubic" in resize["filter"]
    found = ask(tmp_path / "made.onnx", QUERIES)
    below = found["nearness"] < float(about["threshold"])
    np.testing.assert_array_equal(below, found["none"])
    content = (tmp_path / "made.onnx").read_bytes()  # no path of this machine is in it
    assert str(Path(torch.__file__).parents[1]).encode() not in content
    assert b"site-packages" not in content and b".py" not in content


def kernels(pool: Pool, members: list[int]) -> Any:
    """A model with the kernels of some members as they are folded, and nothing else."""
    helper, made = onnx.helper, []
    for member in members:
        for name, tensor in pool.network(member).named_parameters():
            made.append(onnx.numpy_helper.from_array(tensor.numpy(), f"{member}.{name}"))
    nodes = [helper.make_node("Identity", [each.name], [f"{each.name}.out"]) for each in made]
    outputs = [
        helper.make_tensor_value_info(f"{each.name}.out", 1, list(each.dims)) for each in made
    ]
    graph = helper.make_graph(nodes, "kernels", [], outputs, made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("precision", ["full", "half", "eight", "six"])
def test_weights_are_stored_small_and_come_back(precision: str, tmp_path: Path) -> None:
    random_pool().save(tmp_path / "pool", precision)  # type: ignore[arg-type]
    pool = Pool.load(tmp_path / "pool")
    model = kernels(pool, [0, 1, 2, 3])
    names = [each.name for each in model.graph.output]
    before = len(model.SerializeToString())
    expected = [onnx.numpy_helper.to_array(each) for each in model.graph.initializer]
    onnx_weights.shrink(model, onnx)
    onnx.checker.check_model(model, full_check=True)
    data = model.SerializeToString()
    # A third of the members' kernels: one tap of nine each, and those of `off` are the base's.
    assert len(data) < before / (2.2 if precision in ("full", "half") else 5)
    found = onnxruntime.InferenceSession(data).run(names, {})
    for name, one, other in zip(names, found, expected, strict=True):
        room = 2e-6 * np.abs(other).max()
        np.testing.assert_allclose(one, other, atol=room, rtol=0, err_msg=name)


def test_a_member_alone_is_stored_by_what_it_differs_from_its_base(tmp_path: Path) -> None:
    random_pool().save(tmp_path / "pool", "six")
    pool = Pool.load(tmp_path / "pool")
    bases = {f"base.{n}": tensor.numpy() for n, tensor in pool.network(0).named_parameters()}
    sizes = []
    for known in ({}, bases):
        model = kernels(pool, [1])
        onnx_weights.shrink(model, onnx, bases=known)
        sizes.append(len(model.SerializeToString()))
    assert sizes[1] < sizes[0] / 1.5


# --- the command


def test_the_command_on_a_classifier_with_examples_and_one_without(tmp_path: Path) -> None:
    classifier = RESNET.classifier("base", "ridge").fit(*examples(2, 2, 2))
    classifier.save(tmp_path / "colours.polyshot")
    said = run_here("polyshot export colours.polyshot colours.onnx --half", tmp_path)
    first, second = said.splitlines()
    assert first.startswith("wrote colours.onnx: 3 classes, ")
    assert first.endswith(f"images uint8 [n, {SIZE}, {SIZE}, 3]")
    assert second.startswith("ONNX Runtime against PyTorch on 6 examples: probabilities differ by")
    assert ask(tmp_path / "colours.onnx", QUERIES)["probabilities"].shape == (len(QUERIES), 3)
    classifier.save(tmp_path / "without", examples=False)
    told = FewShotClassifier.load(tmp_path / "without").export(tmp_path / "without.onnx", half=True)
    assert (told.images, told.of) == (20, "random images")
    assert (tmp_path / "without.onnx").read_bytes() == (tmp_path / "colours.onnx").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["fast", "full", "shipped"])
def test_every_default_gives_the_same_labels_from_files(form: str, tmp_path: Path) -> None:
    drawn = draw_example(tmp_path / "e")
    pools = [Pool.default()] if form == "shipped" else load_pools(form)[0]
    classifier = FewShotClassifier(pools, none_rate=0.1).fit(*read_support(drawn.support))
    told = classifier.export(tmp_path / "made.onnx")
    assert told.difference < 1e-4 and told.size < 40e6
    files = read_queries([drawn.query])
    run = SimpleNamespace(**runpy.run_path(str(EXAMPLE)))
    chances, none = run.Classifier(tmp_path / "made.onnx").answer(files)
    expected, expected_none = classifier.answer(files)
    same = (chances.argmax(1) == expected.argmax(1)) & (none == expected_none)
    assert same.mean() >= 0.99


# --- what is refused, in one line


def refusal(work: Callable[[], object]) -> str:
    with pytest.raises(PolyshotError) as refused:
        work()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_cannot_be_exported_is_said_in_a_line(tmp_path: Path) -> None:
    class Counts(nn.Module):
        """Does something else by what is in the images."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 4, 3)

        def forward(self, images: Tensor) -> Tensor:
            made = self.layer(images).mean((2, 3))
            return made if float(images.sum()) > 0 else -made

    pool = Pool.from_backbone(Counts(), 16)
    classifier = pool.classifier(adaptation="none").fit(*examples(2, 2))
    said = refusal(lambda: classifier.export(tmp_path / "made.onnx"))
    assert said.startswith("ONNX cannot express what own computes (") and "another backbone" in said
    assert list(tmp_path.iterdir()) == []


def test_a_classifier_of_embeddings_has_no_network(tmp_path: Path) -> None:
    classifier = Pool.from_embeddings(4).classifier(adaptation="ridge")
    classifier.fit(torch.rand(6, 4), [0, 0, 0, 1, 1, 1])
    assert "takes embeddings" in refusal(lambda: classifier.export(tmp_path / "made.onnx"))


def test_targets_that_cannot_be_written(tmp_path: Path) -> None:
    classifier = POOL.classifier("base", "none").fit(*examples(2, 2))
    (tmp_path / "file").write_text("x")
    assert "is a folder: name the file" in refusal(lambda: classifier.export(tmp_path))
    below = tmp_path / "file" / "made.onnx"
    assert "cannot be written" in refusal(lambda: classifier.export(below))
    unfitted = POOL.classifier()
    assert "call fit" in refusal(lambda: unfitted.export(tmp_path / "made.onnx"))


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = POOL.classifier("base", "none").fit(*examples(2, 2))
    real = exporting.find_spec
    monkeypatch.setattr(
        exporting, "find_spec", lambda name: None if name == "onnxruntime" else real(name)
    )
    said = refusal(lambda: classifier.export(tmp_path / "made.onnx"))
    assert "onnxruntime must be installed: pip install 'polyshot[onnx]'" in said


def test_a_file_that_answers_otherwise_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(model: Any, *_: object) -> None:
        for tensor in model.graph.initializer:
            values = onnx.numpy_helper.to_array(tensor)
            if values.ndim == 4:
                tensor.CopyFrom(onnx.numpy_helper.from_array(0.9 * values, tensor.name))

    monkeypatch.setattr(exporting, "shrink", damaged)
    classifier = POOL.classifier("base", "none").fit(*examples(2, 2, 2))
    said = refusal(lambda: classifier.export(tmp_path / "made.onnx"))
    assert "probabilities differ from PyTorch's by" in said and "nothing is written" in said
    assert list(tmp_path.iterdir()) == []
