"""Policy losses by the name of ``--loss_type``."""

from __future__ import annotations

from typing import Any

from covey.algo.losses.base import LossInputs, LossSpec, PolicyLoss
from covey.algo.losses.clipped import ClipParams, clipped_policy_loss

__all__ = ["LOSSES", "ClipParams", "LossInputs", "LossSpec", "PolicyLoss", "clipped_policy_loss"]

# One token term, four denominators. The published DAPO clips higher above; the published Dr. GRPO also needs advantages
# with scale "none".
LOSSES: dict[str, LossSpec[Any]] = {
    "grpo": LossSpec(clipped_policy_loss, ClipParams(), aggregation="grpo"),
    "dapo": LossSpec(clipped_policy_loss, ClipParams(epsilon_high=0.28), aggregation="dapo"),
    "dr_grpo": LossSpec(clipped_policy_loss, ClipParams(), aggregation="dr_grpo"),
    "bnpo": LossSpec(clipped_policy_loss, ClipParams(), aggregation="bnpo"),
}
