"""Try ways to train the modulator of a domain that is added to a pool, on its validation classes.

    python tools/choose_growth.py GRID PACKS OUT.jsonl --add gtsrb,cars,plankton

Takes the worlds of a grid without one source each, as `polyshot reproduce unseen` trains them (what
is missing is trained), and adds that source in several ways. No test class is looked at.
"""

import json
import time

from grid_worlds import grid_parser, sources_of, without, world_of

from polyshot.training.growth import add_domain

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
    parser = grid_parser(__doc__)
    parser.add_argument("--add", required=True, help="sources, each to a pool without it: a,b")
    given = parser.parse_args()
    for added, others in without(sources_of(given.packs), given.add):
        name, pool = added.domain.name, world_of(given, others).pool("conv1x1")
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
