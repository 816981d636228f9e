"""Find how sure answers of few images may be, on validation classes: `predict.predict`.

    python tools/choose_temperature.py PACKS [--pool default] [--shots 1,2,3,5,8]

For each number of images a class: the scale of the base's cosines at which the right answers of all
domains together are likeliest, as a factor on the scale that the pool has, beside the factor of the
law.
"""

import argparse
from pathlib import Path

import torch

from polyshot.data.pack import Pack, open_packs
from polyshot.data.shapes import EpisodeShape
from polyshot.evaluation.targets import Target
from polyshot.pool.pool import Pool
from polyshot.predict.predict import inverse_temperature
from polyshot.training.selector import fit_scale
from polyshot.training.validation import network_logits

EPISODES, QUERIES = 200, 5


def main() -> None:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("packs", type=Path)
    parser.add_argument("--pool", default="default")
    parser.add_argument("--shots", default="1,2,3,5,8")
    parser.add_argument("--way", type=int, default=5)
    given = parser.parse_args()
    pool = Pool.default() if given.pool == "default" else Pool.load(given.pool)
    shots = [int(text) for text in given.shots.split(",")]
    found: dict[int, list[torch.Tensor]] = {shot: [] for shot in shots}
    for pack in open_packs(given.packs):
        if pack.domain.split.val:
            for shot, logits in validation_logits(pool, pack, given.way, shots).items():
                found[shot].append(logits)
    for shot, logits in found.items():
        law = float(inverse_temperature(pool, torch.tensor(float(shot))))
        print(f"{shot:3} images: {fit_scale(logits) / pool.scales[0]:.2f}, by the law {law:.2f}")


def validation_logits(
    pool: Pool, pack: Pack, way: int, shots: list[int]
) -> dict[int, torch.Tensor]:
    """Compare queries with prototypes by the base, scale 1: by shots, [E, W, Q, W]."""
    shapes = {shot: EpisodeShape(way, shot, QUERIES) for shot in shots}
    target = Target(pack, pool.device, list(shapes.values()), EPISODES, part="val", drop_small=True)
    return {
        shot: network_logits(target.tasks(shape), pool.network(0), pool.metric)
        for shot, shape in shapes.items()
    }


if __name__ == "__main__":
    main()
