"""CISPO (MiniMax-M1, arXiv 2506.13585): the ratio is a bounded weight, and no token loses its gradient.

    loss = -sg(min(r, epsilon_high)) * A * log pi

The value is in log-prob units and says nothing. The cap is absolute here, as in TRL, ms-swift and ScaleRL (2510.13786,
which uses 5); verl, slime and the paper write it as 1 + epsilon.
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


@dataclass(frozen=True, slots=True)
class CispoParams(LossParams):
    """The cap. Raises ValueError unless it is above 1: one below scales every token, on-policy ones too, by itself."""

    epsilon_high: float | None = option(
        None,
        "cispo: the largest ratio, an absolute cap",
        required="cispo caps the ratio there, as an absolute value; ScaleRL uses 5 (peers fall back to 0.2 in"
        " silence, which scales every token by 0.2)",
    )

    def __post_init__(self) -> None:
        if self.epsilon_high is not None and not self.epsilon_high > 1:
            raise ValueError(
                f"epsilon_high must be above 1 for cispo, where it is the absolute cap on the ratio,"
                f" got {self.epsilon_high}; a published 1 + epsilon of 0.28 is 1.28 here"
            )


def cispo_loss(inputs: LossInputs, params: CispoParams) -> tuple[Tensor, Metrics]:
    """Token terms [N], to be minimised."""
    assert params.epsilon_high is not None  # with_options refuses
    ratio = log_ratio(inputs.logp, inputs.old_logp).detach().exp()
    capped = (ratio > params.epsilon_high).to(ratio.dtype)
    loss = -ratio.clamp(max=params.epsilon_high) * inputs.advantages * inputs.logp
    return loss, {"clip_ratio": token_mean(capped, inputs.mask)} | ratio_metrics(ratio, inputs.mask)
