"""Entropy control by covariance (arXiv 2505.22617): few tokens, those where advantage and log-prob move together, carry
most of the fall of the entropy. Both losses treat a small share of the tokens of an optimizer step apart.

    cov_t = (A_t - mean A)(log pi_t - mean log pi)         over the tokens of the step

- ``clip_cov``: the clipped surrogate, with no gradient on a random share of the tokens whose cov lies in a band;
- ``kl_cov``: loss = -r * A without a clip, plus ``kl_cov_coef`` * abs(log r) on the share with the highest cov.
  On-policy log r is 0 and abs has no slope there, so it needs more than one optimizer step per rollout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.algo.losses.base import LossInputs, LossParams, ratio_metrics
from covey.algo.losses.clipped import ClipParams, clipped_policy_loss
from covey.algo.metrics import Metrics, token_mean
from covey.algo.ratio import log_ratio
from covey.algo.selection import band, covariance, highest
from covey.options import option

if TYPE_CHECKING:
    from torch import Tensor


def _share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1, got {value}")


@dataclass(frozen=True, slots=True)
class ClipCovParams(ClipParams):
    """The clip range, and which tokens lose their gradient."""

    clip_cov_ratio: float = option(2e-4, "clip_cov: share of the tokens of a step that lose their gradient")
    clip_cov_lb: float = option(1.0, "clip_cov: among those with a covariance above this")
    clip_cov_ub: float = option(5.0, "clip_cov: and below this")

    def __post_init__(self) -> None:
        super(ClipCovParams, self).__post_init__()  # zero-argument super() does not survive slots=True
        _share("clip_cov_ratio", self.clip_cov_ratio)
        if not self.clip_cov_lb < self.clip_cov_ub:
            raise ValueError(f"clip_cov_lb must be below clip_cov_ub = {self.clip_cov_ub:g}, got {self.clip_cov_lb:g}")

    def describe(self) -> str:
        clip = super(ClipCovParams, self).describe()
        band = f"{self.clip_cov_lb:g} to {self.clip_cov_ub:g}"
        return f"{clip}, no gradient on {self.clip_cov_ratio:g} of the tokens, of covariance {band}"


def clip_cov_marks(inputs: LossInputs, params: ClipCovParams, *, seed: int) -> Tensor:
    """[N] bool. Tokens that the clip has already taken are no candidates."""
    ratio = log_ratio(inputs.logp, inputs.old_logp).exp()
    positive, negative = inputs.advantages > 0, inputs.advantages < 0
    clipped = (positive & (ratio > params.upper)) | (negative & (ratio < params.lower))
    cov = covariance(inputs.advantages, inputs.logp, inputs.mask).masked_fill(clipped, -math.inf)
    return band(cov, inputs.mask, params.clip_cov_lb, params.clip_cov_ub, params.clip_cov_ratio, seed)


def clip_cov_loss(inputs: LossInputs, params: ClipCovParams) -> tuple[Tensor, Metrics]:
    """Token terms [N], to be minimised."""
    assert inputs.marked is not None
    loss, metrics = clipped_policy_loss(inputs, params)
    metrics["covariance/marked"] = token_mean(inputs.marked.to(inputs.mask.dtype), inputs.mask)
    return loss.masked_fill(inputs.marked, 0.0), metrics


@dataclass(frozen=True, slots=True)
class KLCovParams(LossParams):
    """Which tokens are held back, and how strongly."""

    kl_cov_ratio: float = option(2e-3, "kl_cov: share of the tokens of a step that are held back")
    kl_cov_coef: float = option(1.0, "kl_cov: weight of their distance from the policy that sampled")

    def __post_init__(self) -> None:
        _share("kl_cov_ratio", self.kl_cov_ratio)


def kl_cov_marks(inputs: LossInputs, params: KLCovParams, *, seed: int) -> Tensor:
    """[N] bool."""
    return highest(covariance(inputs.advantages, inputs.logp, inputs.mask), inputs.mask, params.kl_cov_ratio)


def kl_cov_loss(inputs: LossInputs, params: KLCovParams) -> tuple[Tensor, Metrics]:
    """Token terms [N], to be minimised."""
    assert inputs.marked is not None
    log_r = log_ratio(inputs.logp, inputs.old_logp)
    ratio = log_r.exp()
    held = params.kl_cov_coef * log_r.abs()
    loss = -ratio * inputs.advantages + held.masked_fill(~inputs.marked, 0.0)
    shown: Metrics = {"covariance/marked": token_mean(inputs.marked.to(inputs.mask.dtype), inputs.mask)}
    return loss, shown | ratio_metrics(ratio, inputs.mask)
