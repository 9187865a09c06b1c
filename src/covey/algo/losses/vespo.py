"""VESPO (arXiv 2602.10693): a smooth weight on the whole-sequence ratio, made for stale rollouts.

    loss = -phi(W) * A * log pi,   W = prod_t r_t,   phi(W) = W^k * exp(lambda * (1 - W)), detached

with (k, lambda) = (2, 3) for A >= 0 and (3, 2) for A < 0; phi(1) = 1, and it vanishes for W far from 1 on either side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.algo.losses.base import LossInputs, LossParams, ratio_metrics
from covey.algo.metrics import Metrics, token_mean
from covey.algo.ratio import log_ratio
from covey.options import option

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 50.0  # beyond it phi is 0 in float64; keeps exp() finite


@dataclass(frozen=True, slots=True)
class VespoParams(LossParams):
    """Shape of the weight."""

    vespo_k_pos: float = option(2.0, "vespo: power of the sequence ratio for advantages of 0 or more")
    vespo_lambda_pos: float = option(3.0, "vespo: its exponential decay")
    vespo_k_neg: float = option(3.0, "vespo: power of the sequence ratio for negative advantages")
    vespo_lambda_neg: float = option(2.0, "vespo: its exponential decay")


def vespo_loss(inputs: LossInputs, params: VespoParams) -> tuple[Tensor, Metrics]:
    """Token terms [N], to be minimised."""
    log_w = inputs.row_sum(log_ratio(inputs.logp, inputs.old_logp).detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    negative = inputs.advantages < 0
    k = log_w.new_full(log_w.shape, params.vespo_k_pos).masked_fill(negative, params.vespo_k_neg)
    decay = log_w.new_full(log_w.shape, params.vespo_lambda_pos).masked_fill(negative, params.vespo_lambda_neg)
    phi = (k * log_w + decay * (1 - log_w.exp())).exp()
    metrics: Metrics = {"vespo/weight": token_mean(phi, inputs.mask)}
    return -phi * inputs.advantages * inputs.logp, metrics | ratio_metrics(log_w.exp(), inputs.mask)
