"""Try parts of the strong recipe, one at a time, on validation classes of the sources.

    python tools/ablate_recipe.py PACKS OUT --steps 2000 --only base

Each variant is a training with some options changed; what is done already is not done again. Base
variants are short trainings of the base alone. Modulator variants share one base and train all
modulators on it. Writes OUT/variants.jsonl and prints the table; no test class is looked at.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from polyshot.config import Config, override, preset
from polyshot.data.pack import Pack, open_packs
from polyshot.experiments.protocols import part_sources
from polyshot.pool.pool import Pool
from polyshot.training.folder import Artifacts
from polyshot.training.run import train
from polyshot.util.device import best_device

WEAK = [
    *("base.augment.area=[1.0,1.0]", "base.augment.aspect=1.0", "base.augment.turn=0"),
    *("base.augment.shift=0.1111", "base.augment.brightness=0.2", "base.augment.contrast=0"),
    *("base.augment.saturation=0", "base.augment.grey=0", "base.augment.tint=0"),
]
STRONG_EPISODES = [
    *("modulator.augment.area=[0.3,1.1]", "modulator.augment.aspect=1.3333"),
    *("modulator.augment.turn=0.15", "modulator.augment.shift=0", "modulator.augment.grey=0.1"),
    *("modulator.augment.brightness=0.4", "modulator.augment.contrast=0.4"),
    *("modulator.augment.saturation=0.48", "modulator.augment.tint=0.05"),
]
BASE: Mapping[str, list[str]] = {
    "as it is": [],
    "cosine classifier": ["base.classifier=cosine"],
    "no label smoothing": ["base.label_smoothing=0"],
    "cosine, no label smoothing": ["base.classifier=cosine", "base.label_smoothing=0"],
    "no mixing": ["base.mix=0"],
    "all batches mixed": ["base.mix=1"],
    "no cool-down": ["base.cool_down=0"],
    "longer cool-down": ["base.cool_down=0.4"],
    "weak augmentation": WEAK,
    "Adam 1e-3": ["base.optimiser=adam", "base.learning_rate=0.001", "base.weight_decay=0"],
    "sources alike": ["base.sampling=0"],
    "images alike": ["base.sampling=1"],
    "weight decay 1e-3": ["base.weight_decay=0.001"],
    "learning rate 0.8": ["base.learning_rate=0.8"],
}
MODULATORS: Mapping[str, list[str]] = {
    "as it is": [],
    "strong augmentation": STRONG_EPISODES,
    "learning rate 3e-4": ["modulator.learning_rate=0.0003"],
    "a quarter of the updates": ["modulator.steps=100"],
    "weight decay 1": ["modulator.weight_decay=1"],
}


def main() -> None:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("packs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--preset", default="strong")
    parser.add_argument("--steps", type=int, default=2000, help="of the base, for base variants")
    parser.add_argument("--only", choices=("base", "modulators"), help="both by default")
    parser.add_argument("--variants", default="", help="names of variants: a;b;c")
    given = parser.parse_args()
    packs, _ = part_sources(open_packs(given.packs), [])
    config = preset(given.preset)
    given.out.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in given.variants.split(";") if name]
    if given.only != "modulators":
        short = override(config, [f"base.steps={given.steps}"])
        for name, options in BASE.items():
            if not wanted or name in wanted:
                out = given.out / f"base-{name.replace(' ', '-')}"
                note(given.out, "base", name, train_one(packs, override(short, options), out))
    if given.only != "base":
        whole = given.out / "whole"
        train_one(packs, config, whole)
        base = Artifacts(whole, [p.domain.name for p in packs], config, best_device()).base_file
        for name, options in MODULATORS.items():
            if not wanted or name in wanted:
                out = given.out / f"modulators-{name.replace(' ', '-')}"
                pool = train_one(packs, override(config, options), out, base)
                note(given.out, "modulators", name, pool)


def train_one(packs: list[Pack], config: Config, out: Path, base: Path | None = None) -> Pool:
    """Train the base alone, or everything on a base that is there."""
    step = "all" if base else "base"
    return train(packs, config, out, step, best_device(), trained_base=base)


def note(out: Path, part: str, name: str, pool: Pool) -> None:
    """Write down what a variant reached on validation classes."""
    steps = {step: about.get("validation") for step, about in pool.about["steps"].items()}
    line = {"part": part, "variant": name, "validation": steps, "strengths": pool.strengths}
    with (out / "variants.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    whole = steps["base"] if part == "base" else steps["selector"]
    kept = sum(1 for strength in pool.strengths.values() if strength)
    about = "" if part == "base" else f", {kept} modulators kept"
    print(f"{part}: {name:30} {100 * (whole or 0):.2f}{about}", flush=True)


if __name__ == "__main__":
    main()
