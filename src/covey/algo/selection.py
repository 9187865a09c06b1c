"""Which tokens a step learns from, chosen over the whole optimizer step before its first forward pass.

TRL, ms-swift and verl choose inside a micro-batch or a rank; then the same rows in another split train other tokens.
Here log-probs and entropies are those of the policy at the start of the step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def top_entropy(entropy: Tensor, mask: Tensor, quantile: float) -> Tensor:
    """[N] of 0 and 1: the tokens whose entropy is at least the (1 - ``quantile``) quantile of the trained tokens.

    "Beyond the 80/20 rule" (arXiv 2506.01939) with ``quantile`` 0.2. Denominators keep all tokens, as in TRL.
    ``quantile`` 1 keeps everything. Raises ValueError outside (0, 1].
    """
    if not 0 < quantile <= 1:
        raise ValueError(f"top_entropy_quantile must be above 0 and at most 1, got {quantile}")
    trained = entropy[mask > 0].double()
    if quantile == 1 or trained.numel() == 0:
        return mask.clone()
    # sorting instead of torch.quantile, which refuses more than 16 million values
    ordered = trained.sort().values
    place = (1 - quantile) * (ordered.numel() - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    threshold = low + (high - low) * (place - math.floor(place))
    return (entropy.double() >= threshold).to(mask.dtype) * mask


def covariance(advantages: Tensor, logp: Tensor, mask: Tensor) -> Tensor:
    """[N]: (A - mean A)(log pi - mean log pi) over the trained tokens, 0 elsewhere (arXiv 2505.22617).

    Its mean is what drives the entropy down; few tokens carry most of it.
    """
    count = mask.sum().clamp(min=1)
    a = (advantages - (advantages * mask).sum() / count) * mask
    p = (logp - (logp * mask).sum() / count) * mask
    return a * p


def highest(values: Tensor, mask: Tensor, share: float) -> Tensor:
    """[N] bool: the ``share`` of trained tokens (at least one, if any) with the highest ``values``; KL-Cov's choice."""
    trained = int((mask > 0).sum())
    chosen = mask.new_zeros(mask.shape).bool()
    if trained == 0:
        return chosen
    top = values.masked_fill(mask == 0, -math.inf).topk(max(1, int(share * trained))).indices
    chosen[top] = True
    return chosen


def band(values: Tensor, mask: Tensor, low: float, high: float, share: float, seed: int) -> Tensor:
    """[N] bool: at random at most ``share`` of the trained tokens, among those with ``values`` in (low, high).

    Clip-Cov's choice; ``seed`` makes it the same whatever the split or the rank.
    """
    import torch  # here, for the generator: the loss table is read before torch is loaded

    candidates = ((mask > 0) & (values > low) & (values < high)).nonzero().squeeze(1)
    count = min(candidates.numel(), max(1, int(share * int((mask > 0).sum()))))
    generator = torch.Generator().manual_seed(seed)
    picked = candidates.cpu()[torch.randperm(candidates.numel(), generator=generator)[:count]]
    chosen = mask.new_zeros(mask.shape).bool()
    chosen[picked.to(mask.device)] = True
    return chosen
