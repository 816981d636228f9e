"""Try ways to train the modulator of a domain that is added to a pool, on its validation classes.

    python tools/choose_growth.py GRID PACKS OUT.jsonl --add gtsrb,cars,plankton

Takes the worlds of a grid without one source each, as `polyshot reproduce unseen` trains them (what
is missing is trained), and adds that source in several ways. No test class is looked at.
"""

import argparse
import json
import time
from pathlib import Path

from polyshot.config import preset
from polyshot.data.pack import open_packs
from polyshot.device import best_device
from polyshot.experiments.grid import GridFolder
from polyshot.experiments.protocols import part_sources
from polyshot.training.growth import add_domain
from polyshot.training.world import World

WEAK = [
    *("modulator.augment.area=[1.0,1.0]", "modulator.augment.aspect=1.0"),
    *("modulator.augment.turn=0", "modulator.augment.shift=0.1111", "modulator.augment.grey=0"),
    *("modulator.augment.brightness=0.2", "modulator.augment.contrast=0"),
    *("modulator.augment.saturation=0", "modulator.augment.tint=0"),
]
LONG = ["modulator.steps=1500"]
WIDE = ["modulator.shape.way=20", "modulator.episodes=3"]
WAYS = {
    "500 updates, weak augmentation": ["modulator.steps=500", *WEAK],
    "1,500, weak": [*LONG, *WEAK],
    "1,500": LONG,
    "1,500, weak, 20 ways": [*LONG, *WEAK, *WIDE],
    "1,500, 20 ways": [*LONG, *WIDE],
    "1,500, 20 ways, rate 2e-3": [*LONG, *WIDE, "modulator.learning_rate=0.002"],
}
"""Options over the default, which is trained by strong augmentation."""


def main() -> None:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("grid", type=Path)
    parser.add_argument("packs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--preset", default="strong")
    parser.add_argument("--add", default="", help="sources to add, each to a pool without it: a,b")
    given = parser.parse_args()
    sources, _ = part_sources(open_packs(given.packs), [])
    folder, device = GridFolder(given.grid).worlds, best_device()
    for name in given.add.split(","):
        (added,) = (pack for pack in sources if pack.domain.name == name)
        others = [pack for pack in sources if pack is not added]
        pool = World(others, preset(given.preset), folder, device).pool("conv1x1")
        for way, options in WAYS.items():
            start = time.perf_counter()
            grown = add_domain(pool, added, options, selector=False)
            about = grown.about["steps"][f"modulator:{name}"]
            line = {"added": name, "way": way, "seconds": round(time.perf_counter() - start, 1)}
            line = {**line, **about}
            with given.out.open("a") as lines:
                lines.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
