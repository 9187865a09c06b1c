"""Metrics as (sum, count) pairs, so that micro-batches and ranks of any size add up to the right number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MetricSum = tuple[float, float]
"""(sum over tokens, number of tokens). Example: KL 0.1 and 0.3 on two trained tokens is ``(0.4, 2.0)``."""

Metrics = dict[str, MetricSum]


def token_mean(values: Tensor, mask: Tensor) -> MetricSum:
    """Mean of ``values`` [N] over the tokens with ``mask`` [N] 1; what stands on masked tokens is never read."""
    return values.detach().masked_fill(mask == 0, 0.0).sum().item(), mask.sum().item()


def merge_metrics(parts: Sequence[Mapping[str, MetricSum]]) -> dict[str, float | None]:
    """One mean per key over all micro-batches, updates and ranks; ``None`` when not one token was counted.

    An empty or fully masked part adds nothing, so it can not turn a metric into NaN (known fault 38). A NaN that the
    arithmetic really produced is not hidden: it comes out as NaN.
    """
    keys = dict.fromkeys(key for part in parts for key in part)  # a set that keeps the order
    return {key: _mean([part[key] for part in parts if key in part]) for key in keys}


def _mean(sums: Sequence[MetricSum]) -> float | None:
    count = sum(count for _, count in sums)
    return sum(total for total, _ in sums) / count if count else None
