"""DPPO with binary total variation (arXiv 2602.04879): a trust region on probabilities instead of ratios.

    loss = -sg(min(r, 20)) * A * log pi, dropped where A > 0 and pi - pi_old > epsilon_high,
                                              or where A < 0 and pi - pi_old < -epsilon

A ratio of 3 on a token of probability 0.001 is harmless and one of 1.2 on a token of 0.8 is not; PPO's range treats
them the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.algo.losses.base import LossInputs, LossParams, clip_metrics, ratio_metrics
from covey.algo.metrics import Metrics
from covey.algo.ratio import log_ratio
from covey.options import option

if TYPE_CHECKING:
    from torch import Tensor

RATIO_CAP = 20.0


@dataclass(frozen=True, slots=True)
class DppoParams(LossParams):
    """Bounds on the change of a token's probability."""

    epsilon: float = option(0.2, "dppo: a token's probability may fall by this much")
    epsilon_high: float = option(0.2, "dppo: and rise by this much")

    def __post_init__(self) -> None:
        for name, value in (("epsilon", self.epsilon), ("epsilon_high", self.epsilon_high)):
            if not 0 < value < 1:
                raise ValueError(f"{name} must be between 0 and 1, got {value}")


def dppo_loss(inputs: LossInputs, params: DppoParams) -> tuple[Tensor, Metrics]:
    """Token terms [N], to be minimised."""
    ratio = log_ratio(inputs.logp, inputs.old_logp).detach().exp()
    now = inputs.logp.detach().exp()
    moved = now - now / ratio
    low = (inputs.advantages < 0) & (moved < -params.epsilon)
    high = (inputs.advantages > 0) & (moved > params.epsilon_high)
    loss = (-ratio.clamp(max=RATIO_CAP) * inputs.advantages * inputs.logp).masked_fill(low | high, 0.0)
    return loss, clip_metrics(low, high, inputs.mask) | ratio_metrics(ratio, inputs.mask)
