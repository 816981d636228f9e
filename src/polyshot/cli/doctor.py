"""Checks of the installation: what is there, what is missing, what really works."""

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from polyshot.util import __version__

Verdict = Literal["ok", "note", "bad"]

BF16_PROBE = """
import torch
from polyshot.models.resnet import ResNet
device = {device!r}
net = ResNet().to(device).to(memory_format=torch.channels_last)
with torch.autocast(device, torch.bfloat16):
    loss = net(torch.randn(8, 3, 72, 72, device=device)).square().mean()
loss.backward()
assert all(torch.isfinite(parameter.grad).all() for parameter in net.parameters())
"""
"""A training step of the real network: some processors compute in bf16 forward and die backward."""


@dataclass(frozen=True)
class Check:
    """One line of the diagnosis."""

    what: str
    verdict: Verdict
    found: str
    """What was found, and what to do about it."""


def examine() -> list[Check]:
    """Run every check; the worst verdict of a sound installation is ``note``."""
    checks = [
        Check("Python", "ok" if sys.version_info >= (3, 11) else "bad", platform.python_version()),
        Check("polyshot", "ok", __version__),
    ]
    if _version("polyshot") is not None:
        checks += [*_dependencies(), *_extras()]
    else:
        checks.append(Check("install", "note", "run from source, not installed: pip install -e ."))
    return checks + _hardware()


def _requirements() -> list[Requirement]:
    return [Requirement(line) for line in metadata.requires("polyshot") or []]


def _dependencies() -> list[Check]:
    """Core dependencies against the ranges that the package declares."""
    checks = []
    for requirement in _requirements():
        if requirement.marker is not None:  # belongs to an extra
            continue
        version = _version(requirement.name)
        if version is None:
            fix = f"missing: pip install '{requirement.name}{requirement.specifier}'"
            checks.append(Check(requirement.name, "bad", fix))
            continue
        fits = requirement.specifier.contains(version, prereleases=True)
        wish = "" if fits else f", tested with {requirement.specifier}"
        checks.append(Check(requirement.name, "ok" if fits else "note", version + wish))
    return checks


def _extras() -> list[Check]:
    """Each extra for users: what it adds, or the line that installs it."""
    checks = []
    for extra in metadata.metadata("polyshot").get_all("Provides-Extra") or []:
        needs = [
            need
            for need in _requirements()
            if need.marker and need.marker.evaluate({"extra": extra}) and need.name != "polyshot"
        ]
        versions = {need.name: _version(need.name) for need in needs}
        missing = [name for name, version in versions.items() if version is None]
        found = ", ".join(f"{name} {version}" for name, version in versions.items())
        if missing:
            found = f"missing {', '.join(missing)}: pip install 'polyshot[{extra}]'"
        checks.append(Check(f"[{extra}]", "note" if missing else "ok", found))
    return checks


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _hardware() -> list[Check]:
    import torch

    from polyshot.util.device import cores, mps_works

    free = shutil.disk_usage(Path.cwd()).free / 2**30
    checks = [Check("cores", "ok", str(cores())), _memory()]
    checks.append(Check("disk", "ok" if free >= 1 else "note", f"{free:,.1f} GiB free here"))
    devices = ["cpu"]
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        checks.append(Check("GPU", "ok", f"{gpu.name}, {gpu.total_memory / 2**30:,.0f} GiB"))
        devices.append("cuda")
    elif mps_works():
        checks.append(Check("GPU", "ok", "Apple's (mps)"))
    elif torch.backends.mps.is_available():
        lacks = "Apple's (mps) lacks operations in this PyTorch: the CPU is used"
        checks.append(Check("GPU", "note", lacks))
    else:
        none = "none: training runs on the CPU, in minutes with 'tiny'"
        checks.append(Check("GPU", "note", none))
    return checks + [probe_bf16(device) for device in devices]


def probe_bf16(device: str) -> Check:
    """Try a bf16 training step in a child process: where it is not supported it can kill it."""
    code = BF16_PROBE.format(device=device)
    try:
        child = subprocess.run(  # noqa: S603 (code of this file)
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        return Check(f"bf16 on {device}", "note", "no answer in two minutes: fp32 is used")
    if child.returncode == 0:
        return Check(f"bf16 on {device}", "ok", "a training step works")
    lines = child.stderr.strip().splitlines()
    reason = f"signal {-child.returncode}" if child.returncode < 0 else lines[-1] if lines else "?"
    return Check(f"bf16 on {device}", "note", f"a training step fails ({reason}): fp32 is used")


def _memory() -> Check:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return Check("memory", "note", "unknown on this system")
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return Check("memory", "ok" if gib >= 2 else "note", f"{gib:,.1f} GiB")
