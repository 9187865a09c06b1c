"""Drawing tokens: one uniform number per row and token, looked up in the cumulative distribution."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from covey.rollout.base import Sampling
from covey.types import Prompt


def row_uniforms(prompts: Sequence[Prompt], samples: int, length: int, seed: tuple[int, ...]) -> Tensor:
    """[B, length] float64 in [0, 1): the random numbers of every row, prompt by prompt.

    A row's numbers depend on (seed, prompt id, sample number) alone. A prompt that comes twice gets other numbers the
    second time.
    """
    seen: Counter[str] = Counter()
    rows = []
    for prompt in prompts:
        for sample in range(samples):
            key = f"{seed}|{prompt.id}|{seen[prompt.id]}|{sample}"
            digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
            rows.append(np.random.Generator(np.random.Philox(key=int.from_bytes(digest))).random(length))
        seen[prompt.id] += 1
    return torch.from_numpy(np.stack(rows)) if rows else torch.empty(0, length, dtype=torch.float64)


def draw(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """One token per row and its log-prob.

    logits [B, V] float32, uniforms [B]; returns ids [B] and log-probs [B] of the full distribution at the sampling
    temperature (at temperature 1 when greedy).
    """
    if sampling.temperature == 0:
        ids = logits.argmax(dim=-1)
        return ids, (logits.gather(1, ids[:, None]) - logits.logsumexp(-1, keepdim=True)).squeeze(1)
    probs = torch.softmax(logits if sampling.temperature == 1 else logits / sampling.temperature, dim=-1)
    kept = _filtered(probs, sampling) if sampling.is_filtered else probs
    # a parallel float32 sum on a GPU need not be monotone
    cumulative = kept.cumsum(dim=-1, dtype=torch.float32 if kept.device.type == "cpu" else torch.float64)
    # scaled by the row's own total, so that rounding in the sum can never point past the last token
    point = uniforms.to(cumulative.dtype)[:, None] * cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, point, right=True)
    # a point rounded up onto the total would fall behind every token: the last one with any probability is meant
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    ids = torch.minimum(ids, last).clamp(max=logits.shape[-1] - 1)  # the clamp: NaN logits come back as a NaN log-prob
    return ids.squeeze(1), probs.gather(1, ids).squeeze(1).log()


def _filtered(probs: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities with the tokens outside top_k, top_p and min_p set to 0 (not renormalised)."""
    if sampling.top_k > 0:
        floor = probs.topk(min(sampling.top_k, probs.shape[-1]), dim=-1).values[:, -1:]
        probs = probs.masked_fill(probs < floor, 0.0)
    if sampling.top_p < 1.0:
        ordered, order = probs.sort(dim=-1, descending=True)
        total = ordered.sum(-1, keepdim=True)
        before = ordered.cumsum(-1) - ordered
        dropped = torch.zeros_like(probs, dtype=torch.bool).scatter(1, order, before >= sampling.top_p * total)
        probs = probs.masked_fill(dropped, 0.0)
    if sampling.min_p > 0.0:
        probs = probs.masked_fill(probs < sampling.min_p * probs.amax(-1, keepdim=True), 0.0)
    return probs
