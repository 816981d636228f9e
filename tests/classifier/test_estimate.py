"""What leaving examples out is, number by number."""

import torch

from polyshot.classifier.answering import Evidence
from polyshot.classifier.estimate import each_left_out, held_out_probabilities
from polyshot.config import AdaptationConfig
from polyshot.models.heads import prototype_logits


def test_each_example_is_judged_by_prototypes_of_the_others() -> None:
    """One of each class is left out at a time; the only one of a class stays."""
    support = torch.randn(1, 3, 4, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(4) < torch.tensor([[4], [3], [1]])
    places = mask.nonzero()
    config = AdaptationConfig()
    evidence, parts = [Evidence(1.0, support, 0.3)], each_left_out(mask)
    how = ("probabilities", "euclidean", config, "none")
    found = held_out_probabilities(evidence, *parts, *how)[places[:, 1], places[:, 0]]
    for (own, place), chances in zip(places.tolist(), found, strict=True):
        centres = []
        for c, there in enumerate(mask.sum(1).tolist()):
            rest = [i for i in range(there) if i != place] if there > 1 else [0]
            centres.append(support[0, c, rest].mean(0))
        query = support[0, own, place]
        logits = prototype_logits(query[None, None], torch.stack(centres)[None], scale=0.3)[0, 0]
        torch.testing.assert_close(chances, logits.softmax(-1))
