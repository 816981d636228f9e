"""Parameter counts: the paper's table, and what a pool holds."""

from polyshot.models.backbone import parameter_count, sites_of
from polyshot.models.modulators import Modulator
from polyshot.models.resnet import ResNet, ResNetConfig
from polyshot.models.selector import Selector
from polyshot.pool.pool import Pool

PAPER_SOURCES = 8


def paper_sizes() -> list[tuple[str, int]]:
    """Count the parameters of the paper's system with its eight sources."""
    config = ResNetConfig()
    sizes = [("base (ResNet-18)", parameter_count(ResNet(config)))]
    for kind in ("conv1x1", "channel"):
        one = parameter_count(Modulator(sites_of(ResNet(config)), kind))
        sizes += [(f"one {kind} modulator", one), (f"eight {kind} modulators", PAPER_SOURCES * one)]
    for outputs, whose in ((PAPER_SOURCES, "its table"), (PAPER_SOURCES + 1, "its text, ours")):
        sizes.append(
            (
                f"selector, {outputs} outputs ({whose})",
                parameter_count(Selector(config.dim, outputs)),
            )
        )
    return sizes


def pool_sizes(pool: Pool) -> list[tuple[str, int, str, str, str]]:
    """List a pool's members with parameters, strength, scale, and accuracy by validation."""
    steps = pool.about.get("steps", {})
    rows = []
    for i, member in enumerate(pool.members):
        module = pool.modulators[member] if i else pool.base
        strength = f"{pool.strengths[member]:g}" if i else ""
        reached = steps.get(f"modulator:{member}" if i else "base", {}).get("validation")
        validation = "" if reached is None else f"{100 * reached:.1f}"
        rows.append(
            (member, parameter_count(module), strength, f"{pool.scales[i]:.3g}", validation)
        )
    if pool.selector is not None:
        rows.append(("(selector)", parameter_count(pool.selector), "", "", ""))
    return rows
