"""Group-relative advantages: how much better a completion is than the others of the same prompt.

``advantage = (reward - baseline of its group) / scale``. The estimator chooses the baseline, ``scale`` the divisor, and
some then normalise over the tokens of the whole batch.
Standard deviations are sample standard deviations (ddof=1), as in TRL, verl and ms-swift; all statistics are float64.
Imported without torch, so that the command line can read the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.algo.segments import segment_sum

if TYPE_CHECKING:
    from torch import Tensor

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
    lens: Tensor | None = None  # [R] float64, tokens per row; only opo reads it


def group_stats(rewards: Tensor, group_of_row: Tensor, lens: Tensor | None = None) -> GroupStats:
    """Group statistics of ``rewards`` [R] (NaN or infinite: not scored). Groups may differ in size."""
    if rewards.shape != group_of_row.shape or rewards.dim() != 1:
        raise ValueError(f"rewards {list(rewards.shape)} and group_of_row {list(group_of_row.shape)} must both be [R]")
    if not rewards.is_floating_point():
        raise ValueError(f"rewards must be floating point, got {rewards.dtype}")
    groups = int(group_of_row.max()) + 1 if group_of_row.numel() else 0
    scored = rewards.isfinite()
    values = rewards.double().masked_fill(~scored, 0.0)
    count = segment_sum(scored.double(), group_of_row, groups)
    mean = segment_sum(values, group_of_row, groups) / count.clamp(min=1)
    deviation = (values - mean[group_of_row]).masked_fill(~scored, 0.0)
    std = (segment_sum(deviation.square(), group_of_row, groups) / (count - 1).clamp(min=1)).sqrt()
    constant = _is_constant(values[scored], group_of_row[scored], groups)
    lens = None if lens is None else lens.double()
    return GroupStats(values, scored, group_of_row, count, mean, std, constant, lens)


def _is_constant(rewards: Tensor, group_of_row: Tensor, groups: int) -> Tensor:
    """[K] bool: max - min of the (scored) rewards is rounding only; true for groups of one, or of none."""
    zeros = rewards.new_zeros(groups)
    high = zeros.scatter_reduce(0, group_of_row, rewards, "amax", include_self=False)
    low = zeros.scatter_reduce(0, group_of_row, rewards, "amin", include_self=False)
    return high - low <= RELATIVE_TOLERANCE * high.abs().maximum(low.abs()) + ABSOLUTE_TOLERANCE


def group_mean_baseline(stats: GroupStats) -> Tensor:
    """[R]: the mean of the group, the row itself included (GRPO, arXiv 2402.03300)."""
    return stats.mean[stats.group_of_row]


def leave_one_out_baseline(stats: GroupStats) -> Tensor:
    """[R]: the mean of the *other* scored rows of the group (RLOO, arXiv 2402.14740)."""
    count, mean = stats.count[stats.group_of_row], stats.mean[stats.group_of_row]
    return (count * mean - stats.rewards) / (count - 1).clamp(min=1)


def length_weighted_baseline(stats: GroupStats) -> Tensor:
    """[R]: sum(length * reward) / sum(length) of the group, the variance-optimal one of OPO (arXiv 2505.23585)."""
    if stats.lens is None:
        raise ValueError("advantage estimator 'opo' weighs by length, but no lengths are given")
    weight = stats.lens * stats.scored
    groups = stats.mean.numel()
    total = segment_sum(weight * stats.rewards, stats.group_of_row, groups)
    return (total / segment_sum(weight, stats.group_of_row, groups).clamp(min=1))[stats.group_of_row]


def no_baseline(stats: GroupStats) -> Tensor:
    """[R]: zero; the global normalisation afterwards is the baseline (REINFORCE++)."""
    return stats.rewards.new_zeros(stats.rewards.shape)


@dataclass(frozen=True, slots=True)
class Estimator:
    """One line of the table, as it was published."""

    baseline: Callable[[GroupStats], Tensor]
    scale: str
    """The divisor, a name of SCALES."""
    whitens: bool = False
    """Then normalised over all tokens of the rollout."""
    kl_in_reward: bool = False
    """A KL term belongs to the reward, not to the loss."""
    kl_to_come: bool = False
    """And a token answers for the KL from itself on, not for that of its row."""


ADVANTAGE_ESTIMATORS: dict[str, Estimator] = {
    "grpo": Estimator(group_mean_baseline, "group"),
    "rloo": Estimator(leave_one_out_baseline, "none", kl_in_reward=True),
    "opo": Estimator(length_weighted_baseline, "none"),
    # arXiv 2501.03262; ms-swift's "reinforce_plus_plus" is the second
    "reinforce_plus_plus": Estimator(no_baseline, "none", whitens=True, kl_in_reward=True, kl_to_come=True),
    "reinforce_plus_plus_baseline": Estimator(group_mean_baseline, "none", whitens=True),
    "maxrl": Estimator(group_mean_baseline, "mean"),  # arXiv 2602.02710
    "bnpo_paper": Estimator(group_mean_baseline, "beta"),  # arXiv 2506.02864; --loss_type bnpo is TRL's other meaning
    "gpg": Estimator(group_mean_baseline, "valid"),  # arXiv 2504.02546
}


def group_advantages(
    rewards: Tensor,
    group_of_row: Tensor,
    estimator: str,
    scale: str | None = None,
    eps: float = 1e-4,
    lens: Tensor | None = None,
) -> Tensor:
    """One advantage per row [R], in the dtype of ``rewards``.

    ``rewards`` [R]: NaN (or infinite) where nobody scored the row; such a row gets 0 and is left out of all statistics.
    ``scale`` (None: the estimator's own) divides by: ``group`` the std of the group + eps; ``batch`` the std of the
    *raw* scored rewards of all rows given here + eps, as TRL and ms-swift do, not of the centred ones; ``none`` 1
    (Dr. GRPO); ``mean``, ``beta``, ``valid``: see :data:`SCALES`. ``lens`` [R]: tokens per row, for ``opo``.
    A group whose scored rewards are all equal, or that has fewer than two of them, gets exact zeros, unless the
    estimator has no baseline. Raises ValueError on an unknown estimator or scale.
    """
    if estimator not in ADVANTAGE_ESTIMATORS:
        raise ValueError(f"unknown advantage estimator {estimator!r}; known: {', '.join(ADVANTAGE_ESTIMATORS)}")
    spec = ADVANTAGE_ESTIMATORS[estimator]
    scale = scale or spec.scale
    if scale not in SCALES:
        raise ValueError(f"unknown advantage scale {scale!r}; known: {', '.join(SCALES)}")
    stats = group_stats(rewards, group_of_row, lens)
    advantages = (stats.rewards - spec.baseline(stats)) / SCALES[scale](stats, eps)
    has_signal = stats.scored if spec.baseline is no_baseline else stats.scored & ~stats.constant[group_of_row]
    return advantages.masked_fill(~has_signal, 0.0).to(rewards.dtype)


def group_std(stats: GroupStats, eps: float) -> Tensor:
    """[R]: the std of the group."""
    return stats.std[stats.group_of_row] + eps


def batch_std(stats: GroupStats, eps: float) -> Tensor:
    """[]: the std of all raw rewards ("Tricks or Traps", arXiv 2508.08221)."""
    kept = stats.rewards[stats.scored]
    return (kept.std() if kept.numel() > 1 else kept.new_zeros(())) + eps


def one(stats: GroupStats, eps: float) -> Tensor:
    """[]: no division (Dr. GRPO, arXiv 2503.20783)."""
    return stats.rewards.new_ones(())


def group_mean(stats: GroupStats, eps: float) -> Tensor:
    """[R]: the mean of the group, for rewards of 0 and 1 (MaxRL): rare successes count most. Its eps is 1e-6.

    ValueError on a negative mean, which would turn the sign of every advantage round.
    """
    if bool((stats.mean < 0).any()):
        raise ValueError("advantage estimator 'maxrl' divides by the mean reward of a group, and one is negative")
    return stats.mean[stats.group_of_row] + 1e-6


def beta_density(stats: GroupStats, eps: float) -> Tensor:
    """[R]: the Beta density at the success rate p of the group, fitted over the batch (BNPO, arXiv 2506.02864).

    For rewards of 0 and 1. (a, b) is the moment fit to the rates of the groups (variance with ddof=1), and the density
    has alpha = 1 + a/3, beta = 1 + b/3, each at least 1; 1 and 1 is no division, 3/2 and 3/2 is that by the std.
    """
    rates = stats.mean[stats.count > 0]
    if bool(((rates < 0) | (rates > 1)).any()):
        raise ValueError("advantage estimator 'bnpo_paper' takes success rates: rewards must lie between 0 and 1")
    if rates.numel() < 2:
        return stats.rewards.new_ones(())  # nothing to fit a distribution to
    mean, variance = rates.mean(), rates.var()
    common = (mean * (1 - mean) / variance - 1) if variance > 0 else mean.new_zeros(())
    alpha = 1 + (mean * common).clamp(min=0) / 3
    beta = 1 + ((1 - mean) * common).clamp(min=0) / 3
    p = stats.mean[stats.group_of_row].clamp(1e-6, 1 - 1e-6)
    log_norm = (alpha + beta).lgamma() - alpha.lgamma() - beta.lgamma()
    return (log_norm + (alpha - 1) * p.log() + (beta - 1) * (1 - p).log()).exp()


def valid_share(stats: GroupStats, eps: float) -> Tensor:
    """[]: the share of rows whose group is not constant (GPG), so that dead groups do not shrink the step."""
    alive = (~stats.constant[stats.group_of_row]).double()
    return alive.mean().clamp(min=1 / max(alive.numel(), 1))


SCALES: dict[str, Callable[[GroupStats, float], Tensor]] = {
    "group": group_std,
    "batch": batch_std,
    "none": one,
    "mean": group_mean,
    "beta": beta_density,
    "valid": valid_share,
}


def gdpo_advantages(rewards: Tensor, weights: Tensor, group_of_row: Tensor, eps: float = 1e-4) -> Tensor:
    """[R]: GDPO (arXiv 2601.05242): normalise each reward inside its group, then add up, then normalise over the batch.

    ``rewards`` [R, F] of F reward functions (NaN: not scored), ``weights`` [F]. Summing first lets different reward
    combinations with one sum collapse into one advantage. Rows that no function scored are left out and get 0.
    """
    total = rewards.new_zeros(rewards.shape[0]).double()
    used = rewards.isfinite().any(1)
    for column, weight in zip(rewards.T, weights, strict=True):
        total += weight.double() * group_advantages(column, group_of_row, "grpo", "group", eps).double()
    kept = total[used]
    if kept.numel() < 2:
        return rewards.new_zeros(rewards.shape[0])
    return ((total - kept.mean()) / (kept.std() + eps)).masked_fill(~used, 0.0).to(rewards.dtype)


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """[N]: (values - mean) / std over the tokens with ``mask`` 1, 0 elsewhere.

    Must see the whole batch: whitening a micro-batch or a rank is another normalisation for every split. As verl: the
    variance has ddof=1 and 1e-8 added.
    """
    count = mask.sum()
    if count < 2:
        return values.new_zeros(values.shape)
    kept = values.double().masked_fill(mask == 0, 0.0)
    mean = kept.sum() / count
    centred = (kept - mean).masked_fill(mask == 0, 0.0)
    variance = centred.square().sum() / (count - 1)
    return (centred * (variance + 1e-8).rsqrt()).to(values.dtype)


def zero_std_groups(rewards: Tensor, group_of_row: Tensor) -> Tensor:
    """[K] bool: groups that teach nothing (all scored rewards equal, or fewer than two scored).

    Its mean is the metric ``frac_reward_zero_std``. Arguments as in :func:`group_advantages`.
    """
    return group_stats(rewards, group_of_row).constant
