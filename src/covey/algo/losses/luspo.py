"""LUSPO (arXiv 2602.05261): GSPO's clipped sequence ratio, times the length of the row.

    loss of a row = -|y| * min(s * A, clip(s, 1 - epsilon, 1 + epsilon_high) * A),   s = exp(mean_t log r_t)

The mean over a row makes a token of a long completion count less than one of a short; the length takes that back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.algo.losses.base import LossInputs, LossParams
from covey.algo.losses.clipped import ClipParams, clipped_policy_loss
from covey.algo.metrics import Metrics
from covey.options import option

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LuspoParams(LossParams):
    """The clip range of the sequence ratio."""

    epsilon: float = option(2e-3, "luspo: the sequence ratio is clipped below at 1 - epsilon")
    epsilon_high: float = option(2.5e-3, "luspo: and above at 1 + epsilon_high")

    def __post_init__(self) -> None:
        for name, value in (("epsilon", self.epsilon), ("epsilon_high", self.epsilon_high)):
            if not 0 < value < 1:
                raise ValueError(f"{name} must be between 0 and 1, got {value}")

    @property
    def of_sequences(self) -> bool:
        return True

    @property
    def widest_range(self) -> float:
        return max(self.epsilon, self.epsilon_high)


def luspo_loss(inputs: LossInputs, params: LuspoParams) -> tuple[Tensor, Metrics]:
    """Token terms [N], to be minimised; every token of a row carries the value of the row."""
    gspo = ClipParams(params.epsilon, params.epsilon_high, importance_sampling_level="sequence")
    loss, metrics = clipped_policy_loss(inputs, gspo)
    return inputs.row_sum(inputs.mask) * loss, metrics
