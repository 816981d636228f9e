"""Further adaptation: linear heads on frozen embeddings, learned on the support sets.

All heads of all episodes (and members) are one tensor, and no head's update reads another's: what
an episode learns does not depend on its company. Three recipes:

- `prototypes`: from the classifier of the prototypes, 10 x cosine, by Adam on the whole support
  set, pulled towards the start;
- `random` with `sgd`: *A Closer Look at Few-shot Classification* (Chen et al., 2019), a fresh
  linear layer, SGD in batches of four, momentum and dampening 0.9; a step of the config is a pass
  over the support set;
- `random` with `adam`: such a layer by Adam, a step is an update on the whole support set, as
  *Learning Disparate Modulators* (Choi et al., 2019) can be read.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.models.heads import Metric, prototypes
from polyshot.util import counter_rng

START_SCALE = 10.0
BETAS, EPS = (0.9, 0.999), 1e-8  # Adam's usual ones
MOMENTUM, DAMPENING, BATCH = 0.9, 0.9, 4  # A Closer Look's
CACHED = 1 << 19
"""Floats of support sets that Adam works on at once: 40 heads of 5-way 5-shot at 512."""


def adapt_heads(
    support: Tensor, mask: Tensor | None, config: AdaptationConfig, metric: Metric
) -> tuple[Tensor, Tensor]:
    """Learn a head an episode: weight [..., E, W, d] and bias [..., E, W].

    `support` [..., E, W, S, d] are raw embeddings, `mask` [E, W, S] is True where there is an
    image (it may have the further leading axes). No gradient flows through.
    """
    with torch.no_grad():
        leading, (way, shot, dim) = support.shape[:-3], support.shape[-3:]
        inputs = head_inputs(support, config, metric).reshape(-1, way, shot, dim)
        if mask is None:
            present = torch.ones(inputs.shape[:-1], dtype=torch.bool, device=support.device)
        else:
            present = mask.expand(support.shape[:-1]).reshape(inputs.shape[:-1])
            inputs = inputs.where(present.unsqueeze(-1), inputs.new_zeros(()))
        if config.start == "random" and config.head_optimiser == "sgd":
            weight, bias = _from_random(inputs, present, config)
        else:  # Adam goes through all images a hundred times: they should stay in the caches
            learn = _from_prototypes if config.start == "prototypes" else _from_random_by_adam
            step = len(inputs) if inputs.is_cuda else max(1, CACHED // inputs[0].numel())
            parts = zip(torch.split(inputs, step), torch.split(present, step), strict=True)
            weights, biases = zip(*(learn(*part, config) for part in parts), strict=True)
            weight, bias = torch.cat(weights), torch.cat(biases)
        return weight.reshape(*leading, way, dim), bias.reshape(*leading, way)


def head_logits(
    query: Tensor, weight: Tensor, bias: Tensor, config: AdaptationConfig, metric: Metric
) -> Tensor:
    """Apply heads to raw embeddings [..., E, Q, d]: logits [..., E, Q, W]."""
    inputs = head_inputs(query, config, metric)
    return (weight @ inputs.mT + bias.unsqueeze(-1)).mT  # twice as fast as the other way around


def head_inputs(embeddings: Tensor, config: AdaptationConfig, metric: Metric) -> Tensor:
    """Bring raw embeddings [..., d] into the form heads see; prototypes start on unit norm."""
    return F.normalize(embeddings, dim=-1) if heads_are_unit(config, metric) else embeddings


def heads_are_unit(config: AdaptationConfig, metric: Metric) -> bool:
    """Say whether heads see embeddings of unit norm."""
    return config.start == "prototypes" or metric == "cosine"


def _from_prototypes(
    support: Tensor, present: Tensor, config: AdaptationConfig
) -> tuple[Tensor, Tensor]:
    """Adam from the prototypes [H, W, d], pulled towards them; there is no bias, as at the start.

    The loss is the mean cross-entropy plus `pull` times the squared distance from the start.
    """
    start = START_SCALE * F.normalize(prototypes(support, present), dim=-1)  # [H, W, d]
    weight = _by_adam(support, present, start, start, 2 * config.pull, config)
    return weight, weight.new_zeros(weight.shape[:2])


def _from_random_by_adam(
    support: Tensor, present: Tensor, config: AdaptationConfig
) -> tuple[Tensor, Tensor]:
    """Adam from a random layer, the same for every head; `pull` is its weight decay."""
    dim = support.shape[-1]
    seen = F.pad(support, (0, 1), value=1.0)  # the last entry is for the bias
    layer = _random_layer(support.shape[1], dim, support).expand(len(support), -1, -1)
    learned = _by_adam(seen, present, layer, torch.zeros_like(layer), config.pull, config)
    return learned[..., :dim], learned[..., dim]


def _by_adam(
    support: Tensor,
    present: Tensor,
    start: Tensor,
    towards: Tensor,
    pull: float,
    config: AdaptationConfig,
) -> Tensor:
    """Lower the mean cross-entropy of [H, W, S, d] by Adam, in closed form: weight [H, W, d].

    The gradient of `pull` / 2 times the squared distance from `towards` is added.
    """
    way, shot = support.shape[1:3]
    images = support.flatten(1, 2)  # [H, N, d]
    share = present.flatten(1).to(images.dtype)
    share = (share / share.sum(1, keepdim=True)).unsqueeze(1)  # [H, 1, N], of each in the loss
    target = _one_hot(way, shot, images) * share  # [H, W, N]
    weight = start.clone(memory_format=torch.contiguous_format)
    gradient, first, second, scratch = (torch.zeros_like(weight) for _ in range(4))
    for step in range(1, config.steps + 1):
        error = torch.softmax(weight @ images.mT, 1).mul_(share).sub_(target)  # [H, W, N]
        torch.sub(weight, towards, out=gradient)
        gradient.baddbmm_(error, images, beta=pull)
        first.lerp_(gradient, 1 - BETAS[0])
        second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        torch.sqrt(second, out=scratch).div_(math.sqrt(1 - BETAS[1] ** step)).add_(EPS)
        weight.addcdiv_(first, scratch, value=-config.learning_rate / (1 - BETAS[0] ** step))
    return weight


def _from_random(
    support: Tensor, present: Tensor, config: AdaptationConfig
) -> tuple[Tensor, Tensor]:
    """SGD from a random layer, in the span of the support set: N numbers a class instead of d.

    SGD with momentum and weight decay only ever adds multiples of images to multiples of the start,
    so weight = kept * start + coefficients @ images holds exactly, and logits come from the images'
    inner products. The start and the order of the images are the same for every head.
    """
    heads, way, shot, dim = support.shape
    images = support.flatten(1, 2)  # [H, N, d]
    layer = _random_layer(way, dim, images)  # [W, d + 1]
    start, at_start = layer[:, :dim], layer[:, :dim] @ images.mT  # [W, d], [H, W, N]
    products = F.pad(images @ images.mT, (0, 1), value=1.0)  # [H, N, N + 1], the 1 for the bias
    target = _one_hot(way, shot, images).expand_as(at_start)
    # [H, W, N + 2]: a coefficient for each image, the bias, and how much is kept of the start
    state = images.new_zeros(heads, way, images.shape[1] + 2)
    state[..., -2], state[..., -1] = layer[:, dim], 1.0
    pace = torch.zeros_like(state)
    count = present.flatten(1).sum(1, keepdim=True)  # [H, 1]
    longest = int(count.max())

    def learn(order: Tensor, new: float) -> None:
        """Go through the images once; the first gradient counts `new`, the others are dampened."""
        for first in range(0, longest, BATCH):
            batch = order[:, first : first + BATCH]  # [H, B]
            places = torch.arange(first, first + batch.shape[1], device=images.device)
            valid = (places < count).float()  # [H, B]
            share = valid / valid.sum(1, keepdim=True).clamp(min=1)
            moves = valid[:, :1].unsqueeze(-1)  # [H, 1, 1], 0 for heads whose pass is over
            chosen = batch.unsqueeze(1).expand(-1, way, -1)  # [H, W, B]
            rows = products.gather(1, batch.unsqueeze(-1).expand(-1, -1, products.shape[-1]))
            logits = state[..., :-1] @ rows.mT + state[..., -1:] * at_start.gather(2, chosen)
            error = torch.softmax(logits, 1) - target.gather(2, chosen)
            error *= new * share.unsqueeze(1)
            pace.mul_(1 - (1 - MOMENTUM) * moves).add_(moves * state, alpha=new * config.pull)
            pace.scatter_add_(2, chosen, error)
            pace[..., -2] += error.sum(-1)
            state.addcmul_(pace, moves, value=-config.learning_rate)
            new = 1 - DAMPENING

    _pass_by_pass(learn, _orders(present, config.steps))
    weight = state[..., -1:] * start + state[..., :-2] @ images
    return weight, state[..., -2].clone()


def _random_layer(way: int, dim: int, like: Tensor) -> Tensor:
    """Return a layer as nn.Linear starts, [W, d + 1]; the bias stands last."""
    classes = torch.arange(way, device=like.device)
    layer = counter_rng.uniform(counter_rng.key("head"), classes, dim + 1).to(like.dtype)
    return (2 * layer.T - 1) / math.sqrt(dim)


def _pass_by_pass(learn: Callable[[Tensor, float], None], orders: Sequence[Tensor]) -> None:
    """Learn in some orders [H, N] one after the other; on a GPU, all but the first as a CUDA graph.

    A pass is many small operations, whose launching takes longer than they do.
    """
    if not orders:
        return
    learn(orders[0], 1.0)
    later = orders[1:]
    if not (later and later[0].is_cuda):
        for order in later:
            learn(order, 1 - DAMPENING)
        return
    order, graph, stream = torch.empty_like(later[0]), torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # `torch.cuda.graph` would collect garbage first, for long
        graph.capture_begin()
        learn(order, 1 - DAMPENING)
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    for each in later:
        order.copy_(each)
        graph.replay()


def _one_hot(way: int, shot: int, like: Tensor) -> Tensor:
    """Return the classes of the support images, [W, W * S]."""
    return torch.eye(way, dtype=like.dtype, device=like.device).repeat_interleave(shot, 1)


def _orders(present: Tensor, passes: int) -> list[Tensor]:
    """Shuffle the images of each head for each pass, [H, N] positions; the empty places come last.

    An image's lot depends on its class and place alone, so padding changes nothing.
    """
    way, shot = present.shape[1:]
    classes = torch.arange(way, device=present.device)
    keys = [counter_rng.key("head order", number) for number in range(passes)]
    lots = [counter_rng.uniform(key, classes, shot).T.flatten() for key in keys]
    empty = 2.0 * ~present.flatten(1)
    return [(lot + empty).argsort(dim=1, stable=True) for lot in lots]
