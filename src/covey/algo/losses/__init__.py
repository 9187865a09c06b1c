"""Policy losses by the name of ``--loss_type``; imported without torch (see ``base``)."""

from __future__ import annotations

from typing import Any

from covey.algo.losses.base import LossInputs, LossSpec, PolicyLoss
from covey.algo.losses.cispo import CispoParams, cispo_loss
from covey.algo.losses.clipped import ClipParams, clipped_policy_loss
from covey.algo.losses.dppo import DppoParams, dppo_loss
from covey.algo.losses.gmpo import GmpoParams, gmpo_loss
from covey.algo.losses.reinforce import ReinforceParams, reinforce_loss
from covey.algo.losses.sapo import SapoParams, sapo_loss
from covey.algo.losses.vespo import VespoParams, vespo_loss

__all__ = ["LOSSES", "ClipParams", "LossInputs", "LossSpec", "PolicyLoss", "clipped_policy_loss"]

# The first five are one token term. The published DAPO clips higher above; the published Dr. GRPO also needs advantages
# with scale "none". GSPO is what --importance_sampling_level sequence makes of grpo.
LOSSES: dict[str, LossSpec[Any]] = {
    "grpo": LossSpec(clipped_policy_loss, ClipParams(), aggregation="grpo"),
    "dapo": LossSpec(clipped_policy_loss, ClipParams(epsilon_high=0.28), aggregation="dapo"),
    "dr_grpo": LossSpec(clipped_policy_loss, ClipParams(), aggregation="dr_grpo"),
    "bnpo": LossSpec(clipped_policy_loss, ClipParams(), aggregation="bnpo"),
    "gspo": LossSpec(clipped_policy_loss, ClipParams(importance_sampling_level="sequence"), aggregation="grpo"),
    "cispo": LossSpec(cispo_loss, CispoParams(), aggregation="dapo"),
    "sapo": LossSpec(sapo_loss, SapoParams(), aggregation="grpo"),
    "gmpo": LossSpec(gmpo_loss, GmpoParams(), aggregation="grpo"),
    "dppo": LossSpec(dppo_loss, DppoParams(), aggregation="dapo"),
    "vespo": LossSpec(vespo_loss, VespoParams(), aggregation="dapo"),
    "reinforce": LossSpec(reinforce_loss, ReinforceParams(), aggregation="sequence_sum"),
    "gpg": LossSpec(reinforce_loss, ReinforceParams(), aggregation="dapo"),
}
