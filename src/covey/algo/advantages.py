"""Group-relative advantages: how much better a completion is than the others of the same prompt.

``advantage = (reward - baseline of its group) / scale``. The estimator chooses the baseline, ``scale`` the divisor.
Standard deviations are sample standard deviations (ddof=1), as in TRL, verl and ms-swift; all statistics are float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from covey.algo.segments import segment_sum

Scale = Literal["group", "batch", "none"]

# Rewards are sums of a few float32 terms, so equal scores may differ in the last bits. A range below this share of the
# largest reward is rounding; a std is no such test, since std/eps of pure rounding noise can be of order 1.
RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True)
class GroupStats:
    """Statistics over the scored rows of each group; a row is scored when its reward is finite."""

    rewards: Tensor  # [R] float64, 0 where not scored
    scored: Tensor  # [R] bool
    group_of_row: Tensor  # [R] int64
    count: Tensor  # [K] float64, scored rows
    mean: Tensor  # [K] float64
    std: Tensor  # [K] float64, ddof=1; 0 with fewer than two scored rows
    constant: Tensor  # [K] bool, no two scored rows differ


def group_stats(rewards: Tensor, group_of_row: Tensor) -> GroupStats:
    """Group statistics of ``rewards`` [R] (NaN or infinite: not scored). Groups may differ in size."""
    if rewards.shape != group_of_row.shape or rewards.dim() != 1:
        raise ValueError(f"rewards {list(rewards.shape)} and group_of_row {list(group_of_row.shape)} must both be [R]")
    if not rewards.is_floating_point():
        raise ValueError(f"rewards must be floating point, got {rewards.dtype}")
    groups = int(group_of_row.max()) + 1 if group_of_row.numel() else 0
    scored = torch.isfinite(rewards)
    values = rewards.to(torch.float64).masked_fill(~scored, 0.0)
    count = segment_sum(scored.to(torch.float64), group_of_row, groups)
    mean = segment_sum(values, group_of_row, groups) / count.clamp(min=1)
    deviation = (values - mean[group_of_row]).masked_fill(~scored, 0.0)
    std = (segment_sum(deviation.square(), group_of_row, groups) / (count - 1).clamp(min=1)).sqrt()
    constant = _is_constant(values[scored], group_of_row[scored], groups)
    return GroupStats(values, scored, group_of_row, count, mean, std, constant)


def _is_constant(rewards: Tensor, group_of_row: Tensor, groups: int) -> Tensor:
    """[K] bool: max - min of the (scored) rewards is rounding only; true for groups of one, or of none."""
    zeros = rewards.new_zeros(groups)
    high = zeros.scatter_reduce(0, group_of_row, rewards, "amax", include_self=False)
    low = zeros.scatter_reduce(0, group_of_row, rewards, "amin", include_self=False)
    return high - low <= RELATIVE_TOLERANCE * torch.maximum(high.abs(), low.abs()) + ABSOLUTE_TOLERANCE


def group_mean_baseline(stats: GroupStats) -> Tensor:
    """[R]: the mean of the group, the row itself included (GRPO, arXiv 2402.03300)."""
    return stats.mean[stats.group_of_row]


def leave_one_out_baseline(stats: GroupStats) -> Tensor:
    """[R]: the mean of the *other* scored rows of the group (RLOO, arXiv 2402.14740)."""
    count, mean = stats.count[stats.group_of_row], stats.mean[stats.group_of_row]
    return (count * mean - stats.rewards) / (count - 1).clamp(min=1)


ADVANTAGE_ESTIMATORS: dict[str, Callable[[GroupStats], Tensor]] = {
    "grpo": group_mean_baseline,
    "rloo": leave_one_out_baseline,
}


def group_advantages(rewards: Tensor, group_of_row: Tensor, estimator: str, scale: Scale, eps: float = 1e-4) -> Tensor:
    """One advantage per row [R], in the dtype of ``rewards``.

    ``rewards`` [R]: NaN (or infinite) where nobody scored the row; such a row gets 0 and is left out of all statistics.
    ``scale``: ``group`` divides by (std of the group + eps); ``batch`` by (std of the *raw* scored rewards of all rows
    given here + eps), as TRL and ms-swift do, not of the centred ones; ``none`` does not divide (Dr. GRPO).
    A group whose scored rewards are all equal, or that has fewer than two of them, gets exact zeros.
    Raises ValueError on an unknown estimator or scale.
    """
    if estimator not in ADVANTAGE_ESTIMATORS:
        raise ValueError(f"unknown advantage estimator {estimator!r}; known: {', '.join(ADVANTAGE_ESTIMATORS)}")
    stats = group_stats(rewards, group_of_row)
    advantages = (stats.rewards - ADVANTAGE_ESTIMATORS[estimator](stats)) / _divisor(stats, scale, eps)
    has_signal = stats.scored & ~stats.constant[group_of_row]
    return advantages.masked_fill(~has_signal, 0.0).to(rewards.dtype)


def _divisor(stats: GroupStats, scale: Scale, eps: float) -> Tensor:
    if scale == "group":
        return stats.std[stats.group_of_row] + eps
    if scale == "batch":
        kept = stats.rewards[stats.scored]
        return (kept.std() if kept.numel() > 1 else kept.new_zeros(())) + eps
    if scale == "none":
        return stats.rewards.new_ones(())
    raise ValueError(f"unknown advantage scale {scale!r}; known: group, batch, none")


def zero_std_groups(rewards: Tensor, group_of_row: Tensor) -> Tensor:
    """[K] bool: groups that teach nothing (all scored rewards equal, or fewer than two scored).

    Its mean is the metric ``frac_reward_zero_std``. Arguments as in :func:`group_advantages`.
    """
    return group_stats(rewards, group_of_row).constant
