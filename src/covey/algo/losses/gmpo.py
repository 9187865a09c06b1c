"""GMPO (arXiv 2507.20673): the geometric mean of the token ratios, each clipped in log space before the mean.

    loss of a row = -A * exp(mean_t clip(log r_t)),   clipped above for A > 0, below for A < 0, at +-epsilon

Compared with GSPO an outlier token is cut before it moves the mean, so the range (0.4 in log space) can be wide.
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
class GmpoParams(LossParams):
    """The clip range in log space."""

    epsilon: float = option(0.4, "gmpo: log-ratios are clipped at +-epsilon")

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ValueError(f"epsilon must be positive, got {self.epsilon}")

    @property
    def of_sequences(self) -> bool:
        return True


def gmpo_loss(inputs: LossInputs, params: GmpoParams) -> tuple[Tensor, Metrics]:
    """Token terms [N], to be minimised; every token of a row carries the value of the row.

    One advantage per row is assumed, as in the paper: the sign that chooses the side of the clip is the token's own.
    """
    log_r = log_ratio(inputs.logp, inputs.old_logp)
    positive = inputs.advantages > 0
    clipped = log_r.clamp(max=params.epsilon).where(positive, log_r.clamp(min=-params.epsilon))
    cut = (clipped != log_r).to(log_r.dtype)
    loss = -inputs.row_mean(clipped).exp() * inputs.advantages
    return loss, {"clip_ratio": token_mean(cut, inputs.mask)} | ratio_metrics(log_r.exp(), inputs.mask)
