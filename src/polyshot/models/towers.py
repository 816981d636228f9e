"""Image towers of Hugging Face transformers: `transformers:<folder or model id>`.

Nothing is fetched unless the user allows it. What a model's processor says of its images (size,
mean, spread) is taken over, as in `hub`.
"""

import importlib
import inspect
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from polyshot.errors import PolyshotError, join_names
from polyshot.models.foreign import Loaded, first_line
from polyshot.models.hub import ALLOW, import_library

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
CLASS_TOKENS = ("cls_token", "class_token", "class_embedding")
"""What models of transformers call the token that stands for the whole image."""


class Tower(nn.Module):
    """The image tower of a model of transformers: images [B, 3, S, S] -> embeddings [B, d]."""

    def __init__(self, model: Any, native: int | None, is_bgr: bool = False) -> None:
        super().__init__()
        self.model = model
        self.native = native
        """Side length of the images that its positions are made for."""
        self.is_bgr = is_bgr
        """Whether it wants blue first."""
        self.is_contrastive = all(
            hasattr(model, f"get_{what}_features") for what in ("image", "text")
        )
        ask = model.get_image_features if self.is_contrastive else model.forward
        self.can_interpolate = "interpolate_pos_encoding" in inspect.signature(ask).parameters
        self.pooling = ""
        """How its output becomes one vector: `choose_pooling` says."""

    def forward(self, images: Tensor) -> Tensor:
        """Embed images as the model's processor makes them."""
        output = self.output(images)
        if isinstance(output, Tensor):  # image features in older versions
            return output
        if self.pooling == "image_features":
            features: Tensor = _of(output, "image_embeds", _of(output, "pooler_output"))
            return features
        if self.pooling == "pooler_output":
            pooled: Tensor = output.pooler_output  # [B, d] or [B, d, 1, 1]
            return pooled.flatten(1)
        last: Tensor = output.last_hidden_state  # [B, tokens, d] or [B, d, h, w]
        if self.pooling == "class_token":
            return last[:, 0]
        return last.mean(1) if last.ndim == 3 else last.flatten(2).mean(2)

    def output(self, images: Tensor) -> Any:
        """Return what the model itself makes of images [B, 3, S, S]."""
        images = images.flip(1) if self.is_bgr else images
        ask = self.model.get_image_features if self.is_contrastive else self.model
        if self.can_interpolate and self.native not in (None, images.shape[-1]):
            return ask(pixel_values=images, interpolate_pos_encoding=True)
        return ask(pixel_values=images)

    def choose_pooling(self, output: Any) -> None:
        """Choose how the model's output becomes one vector, the best way that it offers."""
        if self.is_contrastive or getattr(output, "image_embeds", None) is not None:
            self.pooling = "image_features"
        elif getattr(output, "pooler_output", None) is not None:
            self.pooling = "pooler_output"
        else:
            ends = {name.rpartition(".")[2] for name, _ in self.model.named_parameters()}
            has_token = bool(ends & {*CLASS_TOKENS}) and output.last_hidden_state.ndim == 3
            self.pooling = "class_token" if has_token else "mean"

    def drop_unused(self, images: Tensor) -> None:
        """Let go of what image features do not ask: the text tower, temperatures."""
        called: set[str] = set()
        hooks = [
            inner.register_forward_hook(lambda *_, name=name: called.add(name))
            for name, part in self.model.named_children()
            for inner in part.modules()
        ]
        own = dict(self.model.named_parameters(recurse=False))
        try:
            with torch.enable_grad():
                features = self(images).sum()
                reached = torch.autograd.grad(features, list(own.values()), allow_unused=True)
        finally:
            for hook in hooks:
                hook.remove()
        unused = [name for name, gradient in zip(own, reached, strict=True) if gradient is None]
        unused += [name for name, _ in self.model.named_children() if name not in called]
        for name in unused:
            setattr(self.model, name, None)


def from_transformers(inside: str, size: int | None, download: bool) -> Loaded:
    """Load the image tower of a model of transformers: from a folder, or by a model id.

    Sizes and normalisation are those of its image processor; without one it is refused, since a
    guess would be silently wrong.
    """
    transformers = import_library("transformers", "'polyshot[transformers]'")
    where = _folder_or_id(inside)
    is_folder = Path(where).is_dir()
    options = {"local_files_only": not download, "trust_remote_code": False}
    with quiet_transformers():
        try:
            config = transformers.AutoConfig.from_pretrained(where, **options)
            kind = transformers.AutoModel
            named = (getattr(config, "architectures", None) or [""])[0]
            if named.endswith("VisionModelWithProjection"):  # AutoModel leaves the projection out
                kind = getattr(transformers, named)
            # Masks are for training alone.
            if hasattr(config, "mask_ratio"):
                config.mask_ratio = 0.0
            model, told = kind.from_pretrained(
                where, config=config, output_loading_info=True, **options
            )
        except Exception as error:  # the library's, its hub's, those of files and of the network
            _refuse_model(inside, is_folder, download, error)
        try:
            processor = transformers.AutoImageProcessor.from_pretrained(where, **options)
        except Exception as error:
            raise PolyshotError(
                f"The image processor of 'transformers:{inside}' cannot be read "
                f"({first_line(error)}): {_needs_processor('its folder')}"
            ) from None
        side = _side(processor) if size is None else size
        if side is None:
            raise PolyshotError(
                f"'transformers:{inside}' does not say one side length for its images, which are "
                "square here: give one (size=...)."
            )
        model.float().eval()
        model.config.return_dict = True
        missing = {*told["missing_keys"]}
        if any(name.startswith("pooler.") for name in missing):
            model.pooler = None  # of a classifier's checkpoint, which has none: it would be noise
        tower = Tower(model, _native(config), bool(_of(processor, "do_flip_channel_order")))
        image = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0))
        try:
            with torch.no_grad():
                tower.choose_pooling(tower.output(image))
            if tower.is_contrastive:
                tower.drop_unused(image)
        except Exception as error:
            raise PolyshotError(
                f"'transformers:{inside}' makes no embeddings of images of {side} x {side} pixels "
                f"({first_line(error)}): take a model for images, or another size (size=...)."
            ) from None
    if lost := sorted(missing & model.state_dict().keys()):
        raise PolyshotError(
            f"'transformers:{inside}' lacks weights of its own model ({join_names(lost, 3)}): "
            "bring the whole of its files."
        )
    mean, std = _of_processor(processor)
    return Loaded(tower, side, mean, std, tower.pooling)


def _folder_or_id(inside: str) -> str:
    """Return where a model is, for the library; refuses a folder that is none."""
    folder = Path(inside).expanduser()
    if not folder.is_dir():
        if folder.exists() or folder.is_absolute() or inside.startswith((".", "~")):
            raise PolyshotError(
                f"There is no folder {inside}: put the model's files there (config.json, "
                "model.safetensors, preprocessor_config.json), or name the folder that holds them, "
                "transformers:<folder>."
            )
        return inside
    if not (folder / "config.json").is_file():
        raise PolyshotError(
            f"The folder {inside} holds no model of transformers: put the model's files there "
            "(config.json, model.safetensors, preprocessor_config.json)."
        )
    if not any((folder / name).is_file() for name in PROCESSOR_FILES):
        raise PolyshotError(
            f"The folder {inside} has no {PROCESSOR_FILES[0]}, which says of which size its images "
            f"are and how they are normalised: {_needs_processor('it')}"
        )
    return str(folder)


def _needs_processor(folder: str) -> str:
    return (
        f"put the model's own {PROCESSOR_FILES[0]} into {folder}, or load the network yourself and "
        "say so, Pool.from_backbone(network, size, mean, std)."
    )


def _refuse_model(inside: str, is_folder: bool, download: bool, error: Exception) -> NoReturn:
    reason = first_line(error)
    if is_folder:
        line = (
            f"The folder {inside} cannot be read as a model of transformers ({reason}): copy the "
            "model's files anew, or install the version of transformers that wrote them."
        )
    elif isinstance(error, ImportError) or not isinstance(error, OSError):
        line = f"transformers cannot load '{inside}' ({reason}): take another model."
    elif download:
        line = (
            f"The model '{inside}' could not be fetched ({reason}): check its name and the "
            "network, or put its files into a folder and name that, transformers:<folder>."
        )
    else:
        line = (
            f"'{inside}' is neither a folder nor a model in the local cache, and nothing is "
            f"fetched unasked: {ALLOW}, or put the model's files into a folder and name that, "
            "transformers:<folder>."
        )
    raise PolyshotError(line) from None


def _side(processor: Any) -> int | None:
    """Tell the one side length of a processor's images, if it has one."""
    names = ("crop_size", "size") if _of(processor, "do_center_crop") else ("size",)
    sizes = [_of(processor, name) for name in names]
    wanted = next((size for size in sizes if size is not None), None)
    if isinstance(wanted, int):
        return wanted
    if isinstance(wanted, list | tuple):
        sides = list(wanted)
    else:
        height, width, edge = (_of(wanted, name) for name in ("height", "width", "shortest_edge"))
        sides = [edge] if height is None else [height, width]
    return sides[0] if len({*sides}) == 1 and isinstance(sides[0], int) else None


def _of_processor(processor: Any) -> tuple[list[float], list[float]]:
    """Tell mean and spread of pixels from 0 to 1, of which a processor makes pixel_values.

    These are ((255 p * factor - offset) - mean) / std of pixels p.
    """
    rescales = _of(processor, "do_rescale", True)
    factor = float(_of(processor, "rescale_factor", 1 / 255)) if rescales else 1.0
    offset = 1.0 if rescales and _of(processor, "rescale_offset") else 0.0
    mean, std = [0.0] * 3, [1.0] * 3
    if _of(processor, "do_normalize"):  # a mean alone may be the library's default, never used
        mean, std = _three(processor.image_mean), _three(processor.image_std)
    if _of(processor, "include_top"):  # EfficientNet's divides once more
        std = [a * b for a, b in zip(std, _three(processor.image_std), strict=True)]
    # Where pixels are divided by 255, they stay as they are, to the bit.
    range_ = 1.0 if abs(255 * factor - 1) < 1e-9 else 255 * factor
    return [(m + offset) / range_ for m in mean], [s / range_ for s in std]


def _three(values: Any) -> list[float]:
    """Return one number a channel."""
    return [float(v) for v in values] if isinstance(values, list | tuple) else [float(values)] * 3


def _native(config: Any) -> int | None:
    """Tell the size of images that a model's positions are made for, where its config says so."""
    size = _of(_of(config, "vision_config", config), "image_size")
    native: int | None = size[0] if isinstance(size, list | tuple) else size
    return native


def _of(holder: Any, name: str, otherwise: Any = None) -> Any:
    """Look a setting up, of an object or a dict; None counts as not set."""
    found = holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)
    return otherwise if found is None else found


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Let transformers and its hub write nothing: no warnings, no bars; then as it was before."""
    theirs: Any = importlib.import_module("transformers.utils.logging")
    hub = logging.getLogger("huggingface_hub")
    level, bars, hub_level = theirs.get_verbosity(), theirs.is_progress_bar_enabled(), hub.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.set_verbosity_error()
        theirs.disable_progress_bar()
        hub.setLevel(logging.ERROR)
        try:
            yield
        finally:
            theirs.set_verbosity(level)
            hub.setLevel(hub_level)
            if bars:
                theirs.enable_progress_bar()
