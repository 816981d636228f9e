"""Networks of transformers, saved small by the tests; of timm and torchvision, stand-ins.

The tiny models are real models of transformers with random weights. timm and torchvision are not
installed: what stands in for them has their call signatures and nothing else of theirs.
"""

import json
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyshot.errors import PolyshotError
from polyshot.models import hub, towers
from polyshot.models.backbone import sites_of
from polyshot.models.loaders import load_backbone
from polyshot.pool.pool import Pool

transformers = pytest.importorskip("transformers")
SIDE = 32
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
LOOK: dict[str, Any] = {**SMALL, "image_size": SIDE, "patch_size": 8}
TEXT: dict[str, Any] = {**SMALL, "vocab_size": 30, "max_position_embeddings": 8}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Building and saving models is the tests' own business, and may be silent."""
    with towers.quiet_transformers():
        yield


def pictures(count: int = 3, side: int = SIDE) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (count, 3, side, side), dtype=np.uint8)


def processor_of(kind: str, **settings: Any) -> Any:
    return getattr(transformers, f"{kind}ImageProcessorPil")(**settings)


def clip_config() -> Any:
    return transformers.CLIPConfig(text_config=TEXT, vision_config=LOOK, projection_dim=12)


SQUARE = {"size": {"height": SIDE, "width": SIDE}}
CROP = {"size": {"shortest_edge": 40}, "crop_size": {"height": SIDE, "width": SIDE}}
RESNET: dict[str, Any] = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
}
STAGES: dict[str, Any] = {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 1]}
MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "dinov2": (
        lambda: transformers.Dinov2Model(
            transformers.Dinov2Config(**(LOOK | {"mlp_ratio": 2, "intermediate_size": None}))
        ),
        lambda: processor_of("Bit", **CROP),
        "pooler_output",
    ),
    "clip": (
        lambda: transformers.CLIPModel(clip_config()),
        lambda: processor_of("CLIP", **CROP),
        "image_features",
    ),
    "clip-projection": (
        lambda: transformers.CLIPVisionModelWithProjection(
            transformers.CLIPVisionConfig(**LOOK, projection_dim=12)
        ),
        lambda: processor_of("CLIP", **CROP),
        "image_features",
    ),
    "siglip": (
        lambda: transformers.SiglipModel(
            transformers.SiglipConfig(text_config=TEXT, vision_config=LOOK)
        ),
        lambda: processor_of("Siglip", **SQUARE),
        "image_features",
    ),
    "vit": (
        lambda: transformers.ViTModel(transformers.ViTConfig(**LOOK)),
        lambda: processor_of("ViT", **SQUARE),
        "pooler_output",
    ),
    "vit-classifier": (  # its checkpoint has no pooler: one would be made up
        lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**LOOK)),
        lambda: processor_of("ViT", **SQUARE),
        "class_token",
    ),
    "vit-mae": (  # it would hide most patches by chance
        lambda: transformers.ViTMAEModel(transformers.ViTMAEConfig(**LOOK)),
        lambda: processor_of("ViT", **SQUARE),
        "class_token",
    ),
    "ijepa": (
        lambda: transformers.IJepaModel(transformers.IJepaConfig(**LOOK), add_pooling_layer=False),
        lambda: processor_of("ViT", **SQUARE),
        "mean",
    ),
    "convnext": (
        lambda: transformers.ConvNextModel(transformers.ConvNextConfig(**STAGES)),
        lambda: processor_of("ConvNext", size={"shortest_edge": SIDE}),
        "pooler_output",
    ),
    "resnet": (
        lambda: transformers.ResNetModel(transformers.ResNetConfig(**RESNET)),
        lambda: processor_of("ConvNext", size={"shortest_edge": SIDE}),
        "pooler_output",
    ),
    "poolformer": (
        lambda: transformers.PoolFormerModel(
            transformers.PoolFormerConfig(
                depths=[1, 1, 1, 1], hidden_sizes=[4, 8, 8, 8], num_encoder_blocks=4
            )
        ),
        lambda: processor_of("PoolFormer", size={"shortest_edge": 40}, crop_size=SQUARE["size"]),
        "mean",
    ),
    "mobilevit": (  # blue first, no normalisation
        lambda: transformers.MobileViTModel(
            transformers.MobileViTConfig(
                image_size=SIDE,
                hidden_sizes=[8, 8, 8],
                neck_hidden_sizes=[4, 4, 8, 8, 8, 8, 16],
                num_attention_heads=2,
            )
        ),
        lambda: processor_of("MobileViT", size={"shortest_edge": 40}, crop_size=SQUARE["size"]),
        "pooler_output",
    ),
    "efficientnet": (  # divides by the spread twice
        lambda: transformers.EfficientNetModel(
            transformers.EfficientNetConfig(
                image_size=SIDE,
                width_coefficient=0.25,
                depth_coefficient=0.2,
                hidden_dim=320,
                num_block_repeats=[1] * 7,
            )
        ),
        lambda: processor_of(
            "EfficientNet", **SQUARE, rescale_factor=1 / 127.5, rescale_offset=True
        ),
        "pooler_output",
    ),
}


def save(name: str, folder: Path) -> Path:
    """Save a tiny model with random weights, and its image processor beside it."""
    make, processor, _ = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    norms = [each for each in model.modules() if isinstance(each, torch.nn.BatchNorm2d)]
    if norms:  # by statistics that do not fit a deep network makes the same of all images
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
        with torch.no_grad():
            model.train()(torch.randn(8, 3, SIDE, SIDE))
        model.eval()
    model.save_pretrained(folder)
    processor().save_pretrained(folder)
    return folder


def theirs(name: str, folder: Path, images: NDArray[np.uint8]) -> Tensor:
    """What the library itself says, by the plainest calls."""
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    pixels = processor(
        list(images), do_resize=False, input_data_format="channels_first", return_tensors="pt"
    )["pixel_values"]
    with torch.no_grad():
        if name == "vit-classifier":
            model = transformers.ViTForImageClassification.from_pretrained(folder).eval()
            return model(pixels, output_hidden_states=True, return_dict=True).logits
        if name == "vit-mae":
            model = transformers.ViTMAEModel.from_pretrained(folder, mask_ratio=0.0).eval()
            return model(pixels).last_hidden_state[:, 0]
        if name == "clip-projection":
            kind = transformers.CLIPVisionModelWithProjection
            return kind.from_pretrained(folder).eval()(pixels).image_embeds
        model = transformers.AutoModel.from_pretrained(folder).eval()
        if name in ("clip", "siglip"):
            return model.get_image_features(pixels).pooler_output
        if name == "ijepa":
            return model(pixels).last_hidden_state.mean(1)
        if name == "poolformer":
            return model(pixels).last_hidden_state.mean((2, 3))
        return model(pixels).pooler_output.flatten(1)


@pytest.mark.parametrize("name", MODELS)
def test_embeddings_are_the_librarys_own(name: str, tmp_path: Path) -> None:
    folder, images = save(name, tmp_path / name), pictures()
    pool = Pool.from_backbone(f"transformers:{folder}", views="one")
    assert (pool.config.name, pool.size) == (f"transformers:{folder}", SIDE)
    assert pool.config.pooling == MODELS[name][2]
    ours, known = pool.embed(images)[0], theirs(name, folder, images)
    if name == "vit-classifier":  # its own last layer, on ours, gives its own answers
        model = transformers.ViTForImageClassification.from_pretrained(folder)
        with torch.no_grad():
            ours = model.classifier(ours)
    torch.testing.assert_close(ours, known, rtol=1e-4, atol=1e-5 * float(known.abs().max()))
    assert ours.std(0).max() > 1e-2 * ours.abs().max()  # it tells images apart


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_only_the_image_tower_is_kept(name: str, tmp_path: Path) -> None:
    pool = Pool.from_backbone(f"transformers:{save(name, tmp_path / name)}")
    kept = [key.removeprefix("network.model.") for key in pool.base.state_dict()]
    assert {key.partition(".")[0] for key in kept} <= {"vision_model", "visual_projection"}


@pytest.mark.parametrize("name", ["clip", "vit", "dinov2", "resnet"])
def test_another_size_is_the_librarys_own_way_to_take_it(name: str, tmp_path: Path) -> None:
    folder, images = save(name, tmp_path / name), pictures(2, 48)
    pool = Pool.from_backbone(f"transformers:{folder}", size=48, views="one")
    assert pool.size == 48
    network: Any = pool.base.network
    pixels = pool.base.prepare((torch.from_numpy(images) / 255 - 0.5) / 0.25)
    more = {} if name in ("dinov2", "resnet") else {"interpolate_pos_encoding": True}
    with torch.no_grad():
        ask = network.model.get_image_features if name == "clip" else network.model
        known = ask(pixel_values=pixels, **more).pooler_output.flatten(1)
    torch.testing.assert_close(pool.embed(images)[0], known, rtol=1e-4, atol=1e-5)


def test_what_was_saved_in_half_precision_is_read_as_float32(tmp_path: Path) -> None:
    model = transformers.ViTModel(transformers.ViTConfig(**LOOK)).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    processor_of("ViT", **SQUARE).save_pretrained(tmp_path)
    pool = Pool.from_backbone(f"transformers:{tmp_path}")
    assert {t.dtype for t in pool.base.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("settings", "side"),
    [
        ({"size": 40}, 40),
        ({"size": {"height": 40, "width": 40}}, 40),
        ({"size": [40, 40]}, 40),
        ({"size": {"shortest_edge": 40}}, 40),
        ({"size": {"shortest_edge": 40}, "crop_size": 32}, 40),  # it does not crop
        ({"size": {"shortest_edge": 40}, "crop_size": 32, "do_center_crop": True}, 32),
        ({"crop_size": {"height": 32, "width": 32}, "do_center_crop": True}, 32),
        ({"size": {"height": 40, "width": 48}}, None),
        ({"size": {"longest_edge": 48}}, None),
        ({}, None),
    ],
)
def test_sizes_in_their_many_forms(settings: dict[str, Any], side: int | None) -> None:
    class Processor:
        pass

    processor = Processor()
    vars(processor).update(settings)
    assert towers._side(processor) == side


def test_a_pool_learns_and_loads_from_another_place(tmp_path: Path) -> None:
    folder = save("dinov2", tmp_path / "dino")
    pool = Pool.from_backbone(f"transformers:{folder}")
    images = pictures(8)
    assert len(sites_of(pool.base)) == 12  # q, k, v, o and two of the MLP, of two blocks
    classifier = pool.classifier(adaptation="tsa").fit(list(images), [0, 0, 0, 0, 1, 1, 1, 1])
    before = classifier.predict_proba(list(images))
    assert np.isfinite(before).all()
    pool.save(tmp_path / "pool")
    again = Pool.load(tmp_path / "pool")
    assert torch.equal(again.embed(images), pool.embed(images)) and again.hash == pool.hash

    moved = folder.rename(tmp_path / "moved")
    with pytest.raises(
        PolyshotError, match=r"There is no folder .* network='transformers:"
    ) as told:
        Pool.load(tmp_path / "pool")
    assert "\n" not in str(told.value)
    found = Pool.load(tmp_path / "pool", network=f"transformers:{moved}")
    assert torch.equal(found.embed(images), pool.embed(images))
    assert found.config.name == f"transformers:{moved}" and found.hash == pool.hash
    found.save(tmp_path / "pool")
    assert Pool.load(tmp_path / "pool").config.name == f"transformers:{moved}"

    other = save("vit", tmp_path / "vit")
    with pytest.raises(PolyshotError, match="other weights"):
        Pool.load(tmp_path / "pool", network=f"transformers:{other}")


def test_nothing_is_written_and_settings_stay(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = transformers.utils.logging
    folder = save("clip", tmp_path / "clip")
    settings.set_verbosity(logging.INFO)
    settings.enable_progress_bar()
    capfd.readouterr()
    try:
        pool = Pool.from_backbone(f"transformers:{folder}")
        pool.embed(pictures())
        assert settings.get_verbosity() == logging.INFO and settings.is_progress_bar_enabled()
    finally:
        settings.set_verbosity_error()
        settings.disable_progress_bar()
    assert capfd.readouterr() == ("", "")


def one_line(name: str, match: str, **options: Any) -> None:
    with pytest.raises(PolyshotError, match=match) as told:
        load_backbone(name, **options)
    assert "\n" not in str(told.value)


def test_what_is_wrong_with_a_folder_is_said_in_one_line(tmp_path: Path) -> None:
    one_line("transformers", "transformers:<folder or model id>")
    one_line(f"transformers:{tmp_path / 'none'}", "There is no folder")
    one_line("transformers:~/no/such/place", "There is no folder")
    one_line(f"transformers:{tmp_path}", "holds no model of transformers")
    folder = save("vit", tmp_path / "vit")

    (folder / "preprocessor_config.json").rename(tmp_path / "kept.json")
    one_line(f"transformers:{folder}", "preprocessor_config.json.*from_backbone")
    one_line(f"transformers:{folder}", "preprocessor_config.json", size=SIDE)  # no guess
    settings = json.loads((tmp_path / "kept.json").read_text())
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(settings | {"size": {"height": 32, "width": 24}}))
    one_line(f"transformers:{folder}", r"one side length.*size=")
    assert load_backbone(f"transformers:{folder}", size=SIDE).config.size == SIDE
    file.write_text("{")
    one_line(f"transformers:{folder}", "image processor .* cannot be read")
    file.write_text(json.dumps(settings))

    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    one_line(f"transformers:{folder}", "cannot be read as a model")
    weights.unlink()
    one_line(f"transformers:{folder}", "cannot be read as a model")
    config = json.loads((folder / "config.json").read_text())
    weights.write_bytes(whole)
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    one_line(f"transformers:{folder}", "lacks weights")
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "novel"}))
    one_line(f"transformers:{folder}", "cannot be read as a model")


def test_a_model_without_images_is_refused(tmp_path: Path) -> None:
    config = transformers.BertConfig(**TEXT)
    transformers.BertModel(config).save_pretrained(tmp_path)
    processor_of("ViT", **SQUARE).save_pretrained(tmp_path)
    one_line(f"transformers:{tmp_path}", "makes no embeddings of images")


def test_a_model_id_is_fetched_only_when_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def offline(name: str, **options: Any) -> None:
        asked.append(options["local_files_only"])
        raise OSError("We couldn't connect to 'https://huggingface.co'.\nCheck your connection.")

    one_line("transformers:nobody/nothing", "neither a folder nor .*POLYSHOT_DOWNLOAD=1 in the")
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", offline)
    one_line("transformers:nobody/nothing", "neither a folder nor")
    one_line("transformers:nobody/nothing", "could not be fetched .*connect", download=True)
    for value, said in (("1", "could not be fetched"), ("0", "neither a folder nor")):
        monkeypatch.setenv("POLYSHOT_DOWNLOAD", value)  # of commands, which have no such option
        one_line("transformers:nobody/nothing", said)
    assert asked == [True, False, False, True]


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, install in (
        ("transformers", r"'polyshot\[transformers\]'"),
        ("timm", "timm"),
        ("torchvision", "torchvision"),
    ):
        monkeypatch.setitem(sys.modules, name, None)
        one_line(f"{name}:something", f"pip install {install}")


# --- stand-ins for timm and torchvision


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a module that can be imported, and is forgotten after the test."""
    monkeypatch.syspath_prepend(tmp_path / "stand-ins")

    def write(name: str, code: str) -> None:
        package = tmp_path / "stand-ins" / name.replace(".", "/")
        package.mkdir(parents=True)
        text = f'"""A stand-in for {name}, for tests."""\n' + textwrap.dedent(code)
        (package / "__init__.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] in ("timm", "torchvision")]:
        del sys.modules[name]


TIMM = """
    import torch
    from torch import nn

    def create_model(model_name, pretrained=False, num_classes=1000):
        assert pretrained and num_classes == 0
        if model_name != "tiny":
            raise RuntimeError(f"Unknown model ({model_name})")
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        url = "https://example.org/tiny-12345678.pth"
        model.load_state_dict(torch.hub.load_state_dict_from_url(url, progress=False))
        return model
"""
TIMM_DATA = """
    def resolve_model_data_config(model):
        return {"input_size": (3, 24, 24), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
"""


def test_timm_is_asked_for_a_network_and_its_images(
    tmp_path: Path, stand_in: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in("timm", TIMM)
    stand_in("timm.data", TIMM_DATA)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    one_line("timm:tiny", "not in the local cache .*would have to be fetched.*download=True")
    one_line("timm:tinny", r"Unknown model \(tinny\)")
    fetched: list[str] = []

    def fetch(url: str, place: str, *_: Any, **__: Any) -> None:
        fetched.append(url)
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", fetch)
    one_line("timm:tiny", "no route to host", download=True)
    one_line("timm:tiny", "not in the local cache")
    assert len(fetched) == 1 and torch.hub.download_url_to_file is fetch

    own = nn.Conv2d(3, 4, 3)
    file = tmp_path / "torch/hub/checkpoints/tiny-12345678.pth"
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({f"0.{name}": tensor for name, tensor in own.state_dict().items()}, file)
    config = load_backbone("timm:tiny").config
    assert (config.size, config.mean, config.std) == (24, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    pool = Pool.from_backbone("timm:tiny", size=32, views="one")
    images = pictures()
    known = own((torch.from_numpy(images) / 255 - mean_of(config.mean)) / mean_of(config.std))
    torch.testing.assert_close(pool.embed(images)[0], known.detach().mean((2, 3)))


def mean_of(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values).view(1, 3, 1, 1)


def test_the_hub_of_hugging_face_is_offline_for_timm() -> None:
    constants = pytest.importorskip("huggingface_hub").constants
    before = constants.HF_HUB_OFFLINE
    with hub._nothing_fetched(True):
        assert constants.HF_HUB_OFFLINE is True
    with hub._nothing_fetched(False):
        assert constants.HF_HUB_OFFLINE is before
    assert constants.HF_HUB_OFFLINE is before


TORCHVISION = """
    from enum import Enum
    from types import SimpleNamespace

    import torch
    from torch import nn

    class Weights(Enum):
        V1 = "tiny-12345678.pth"
        DEFAULT = "tiny-12345678.pth"
        url = property(lambda self: f"https://example.org/{self.value}")
        meta = property(lambda self: {"categories": ["a", "b", "c"]})

        def transforms(self):
            return SimpleNamespace(crop_size=[24], resize_size=[32], mean=[0.5] * 3, std=[0.2] * 3)

    def get_model_weights(name):
        if name not in ("tiny", "wide"):
            raise ValueError(f"Unknown model {name}")
        return Weights

    def get_model(name, **config):
        assert config["weights"] is Weights.DEFAULT and config["progress"] is False
        model = nn.Sequential()
        model.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        model.classifier = nn.Sequential(nn.Dropout(), nn.Linear(4, 3 if name == "tiny" else 5))
        if name == "tiny":
            url = config["weights"].url
            model.load_state_dict(torch.hub.load_state_dict_from_url(url, progress=False))
        return model
"""


def test_torchvisions_last_layer_is_left_out(
    tmp_path: Path, stand_in: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in("torchvision", "")
    stand_in("torchvision.models", TORCHVISION)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    one_line("torchvision:tinny", "no weights of 'tinny'")
    one_line("torchvision:tiny", r"download=True.*torch/hub/checkpoints/tiny-12345678\.pth")
    file = tmp_path / "torch/hub/checkpoints/tiny-12345678.pth"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"broken")
    one_line("torchvision:tiny", "damaged, delete it")
    own, last = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)
    state = {f"features.0.{name}": tensor for name, tensor in own.state_dict().items()}
    state |= {f"classifier.1.{name}": tensor for name, tensor in last.state_dict().items()}
    torch.save(state, file)
    one_line("torchvision:wide", "no classifier of images")
    pool = Pool.from_backbone("torchvision:tiny", views="one")
    images = pictures(3, 24)
    known = own((torch.from_numpy(images) / 255 - 0.5) / 0.2).mean((2, 3)).detach()
    torch.testing.assert_close(pool.embed(images)[0], known)
    assert (pool.size, pool.config.mean) == (24, (0.5, 0.5, 0.5))
