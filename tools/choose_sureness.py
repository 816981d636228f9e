"""Find how sure answers of few images may be, on validation classes: the law in `methods.sureness`.

    python tools/choose_sureness.py PACKS [--pool default] [--shots 1,2,3,5,8]

For each number of images a class: the scale of the base's cosines at which the right answers of all
domains together are likeliest, as a factor on the scale that the pool has, beside the factor of the
law.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from polyshot.predict.temperature import sureness

from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Pack, open_packs
from polyshot.data.shapes import EpisodeShape
from polyshot.models.heads import prototype_logits, prototypes
from polyshot.pool.pool import Pool
from polyshot.training.selector import fit_scale

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
        law = float(sureness(pool, torch.tensor(float(shot))))
        print(f"{shot:3} images: {fit_scale(logits) / pool.scales[0]:.2f}, by the law {law:.2f}")


def validation_logits(
    pool: Pool, pack: Pack, way: int, shots: list[int]
) -> dict[int, torch.Tensor]:
    """Compare queries with prototypes by the base, scale 1: by shots, [E, W, Q, W]."""
    drawn = {
        shot: EpisodeSampler(
            pack.domain, EpisodeShape(way, shot, QUERIES), part="val", seed=0, drop_small=True
        )(0, EPISODES)
        for shot in shots
    }
    ids = np.unique(np.concatenate([torch.cat([e.support, e.query], 2) for e in drawn.values()], 2))
    embeddings = torch.nn.functional.normalize(pool.embed(pack.images, [0], ids=ids)[0], dim=-1)
    place = torch.zeros(int(ids.max()) + 1, dtype=torch.int64)
    place[ids] = torch.arange(len(ids))
    result = {}
    for shot, episodes in drawn.items():
        centres = prototypes(embeddings[place[episodes.support]])  # [E, W, d]
        queries = embeddings[place[episodes.query]].flatten(1, 2)  # [E, W * Q, d]
        flat = prototype_logits(queries, centres, pool.metric)
        result[shot] = flat.view(EPISODES, way, QUERIES, way)
    return result


if __name__ == "__main__":
    main()
