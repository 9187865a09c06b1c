"""REINFORCE: the plain policy gradient, no ratio and no clip.

    loss = -A * log pi

With the sum over a row and the mean over rows it is REINFORCE of whole completions (RLOO, arXiv 2402.14740, with
leave-one-out advantages); with the mean over all tokens it is the loss of GPG (arXiv 2504.02546). Only exact for one
optimizer step per rollout: nothing corrects for a policy that has moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.algo.losses.base import LossInputs, LossParams
from covey.algo.metrics import Metrics

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ReinforceParams(LossParams):
    """Nothing to set."""


def reinforce_loss(inputs: LossInputs, params: ReinforceParams) -> tuple[Tensor, Metrics]:
    """Token terms [N], to be minimised. The value is in log-prob units and says nothing."""
    return -inputs.advantages * inputs.logp, {}
