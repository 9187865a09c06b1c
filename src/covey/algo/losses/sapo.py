"""SAPO (arXiv 2511.20347): a soft gate in place of the clip.

    loss = -4 / tau * sigmoid(tau * (r - 1)) * A,   tau = tau_pos for A > 0, else tau_neg

The gradient with respect to r is A at r = 1 and decays on both sides instead of stopping. The value at r = 1 is
-2 A / tau, so its level can not be compared with that of other losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.algo.losses.base import LossInputs, LossParams, ratio_metrics
from covey.algo.metrics import Metrics
from covey.algo.ratio import log_ratio
from covey.options import option

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SapoParams(LossParams):
    """Temperatures of the gate; higher decays faster."""

    tau_pos: float = option(1.0, "sapo: temperature of the gate for positive advantages")
    tau_neg: float = option(1.05, "sapo: temperature of the gate for the others")

    def __post_init__(self) -> None:
        for name, value in (("tau_pos", self.tau_pos), ("tau_neg", self.tau_neg)):
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")


def sapo_loss(inputs: LossInputs, params: SapoParams) -> tuple[Tensor, Metrics]:
    """Token terms [N], to be minimised."""
    ratio = log_ratio(inputs.logp, inputs.old_logp).exp()
    tau = inputs.advantages.new_full(ratio.shape, params.tau_neg).masked_fill(inputs.advantages > 0, params.tau_pos)
    loss = -4 / tau * (tau * (ratio - 1)).sigmoid() * inputs.advantages
    return loss, ratio_metrics(ratio, inputs.mask)
