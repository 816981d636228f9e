"""Results of the steps of a run: where their files are, and what they hold."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from polyshot.config import Config
from polyshot.errors import PolyshotError
from polyshot.models.backbone import sites_of
from polyshot.models.modulators import Modulator, fold
from polyshot.models.resnet import ResNet, load_base
from polyshot.models.selector import MemberAttention, Selector
from polyshot.pool.files import modulator_file
from polyshot.util.device import on_device
from polyshot.util.files import read_weights


class Results:
    """The folder ``steps`` of a run; a file there is a step that is done."""

    def __init__(self, out: Path, names: Sequence[str], config: Config, device: torch.device):
        self.out, self.names, self.config, self.device = out, list(names), config, device
        self.base_file = out / "steps" / "base.safetensors"
        self.modulator_files = {name: out / "steps" / modulator_file(name) for name in names}
        self.selector_file = out / "steps" / "selector.safetensors"
        self.urt_file = out / "steps" / "urt.safetensors"
        self.scales_file = out / "steps" / "scales.json"

    def about(self) -> dict[str, Any]:
        """Return what is known about each step that is done."""
        files = {"base": self.base_file, "selector": self.selector_file, "urt": self.urt_file}
        files |= {f"modulator:{name}": file for name, file in self.modulator_files.items()}
        return {name: read_weights(file)[1] for name, file in files.items() if file.exists()}

    def trained(self) -> list[str]:
        """List the domains of the modulators, once all of them are there."""
        there = all(file.exists() for file in self.modulator_files.values())
        return self.names if there else []

    def base(self) -> ResNet:
        """Read the base, in evaluation mode."""
        base = ResNet(self.config.model)
        load_base(base, read_weights(self.base_file)[0])
        return on_device(base, self.device).eval().requires_grad_(False)

    def modulator(self, name: str) -> tuple[Modulator, dict[str, Any]]:
        """Read a modulator and what is known about it, its strength above all."""
        weights, about = read_weights(self.modulator_files[name])
        modulator = Modulator(sites_of(ResNet(self.config.model)), self.config.modulator.kind).to(
            self.device
        )
        modulator.load_state_dict(weights)
        return modulator.requires_grad_(False), about

    def selector(self) -> Selector | None:
        """Read the selector, if it is trained."""
        if not self.selector_file.exists():
            return None
        own = self.config.selector
        selector = Selector(self.config.model.dim, 1 + len(self.names), own.hidden, own.dropout)
        selector.load_state_dict(read_weights(self.selector_file)[0])
        return selector

    def urt(self) -> MemberAttention | None:
        """Read the attention over members, if it is trained."""
        if not self.urt_file.exists():
            return None
        attention = MemberAttention(self.config.model.dim)
        attention.load_state_dict(read_weights(self.urt_file)[0])
        return attention

    def networks(self) -> list[ResNet]:
        """Return the trained members as plain networks; those of strength 0 are the base itself."""
        base, members = self.base(), []
        for modulator, about in map(self.modulator, self.trained()):
            strength = about["strength"]
            members.append(fold(base, modulator, strength) if strength else base)
        return [base, *members]

    def checkpoint(self, file: Path) -> Path:
        """Return where the checkpoint of a step with this result lies."""
        inside = file.relative_to(self.out / "steps")
        return (self.out / "checkpoints" / inside).with_suffix(".pt")

    def need(self, file: Path, step: str) -> None:
        """Refuse to go on without the result of a step."""
        if not file.exists():
            raise PolyshotError(
                f"The run {self.out} has not done the step '{step}' yet: run it first, with "
                f"--step {step} or --step all."
            )
