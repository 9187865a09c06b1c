"""Policy losses by the name of ``--loss_type``; imported without torch (see ``base``)."""

from __future__ import annotations

from typing import Any

from covey.algo.losses.base import LossInputs, LossSpec, PolicyLoss
from covey.algo.losses.cispo import CispoParams, cispo_loss
from covey.algo.losses.clipped import ClipParams, clipped_policy_loss
from covey.algo.losses.covariance import (
    ClipCovParams,
    KLCovParams,
    clip_cov_loss,
    clip_cov_marks,
    kl_cov_loss,
    kl_cov_marks,
)
from covey.algo.losses.dppo import DppoParams, dppo_loss
from covey.algo.losses.gmpo import GmpoParams, gmpo_loss
from covey.algo.losses.luspo import LuspoParams, luspo_loss
from covey.algo.losses.reinforce import ReinforceParams, reinforce_loss
from covey.algo.losses.sapo import SapoParams, sapo_loss
from covey.algo.losses.vespo import VespoParams, vespo_loss

__all__ = ["LOSSES", "ClipParams", "LossInputs", "LossSpec", "PolicyLoss", "clipped_policy_loss"]

# The first six are one token term. GSPO is what --importance_sampling_level sequence makes of grpo.
LOSSES: dict[str, LossSpec[Any]] = {
    "grpo": LossSpec(clipped_policy_loss, ClipParams(), aggregation="seq-mean-token-mean"),
    "dapo": LossSpec(clipped_policy_loss, ClipParams(epsilon_high=0.28), aggregation="token-mean"),
    "ppo": LossSpec(clipped_policy_loss, ClipParams(), aggregation="token-mean"),
    "dr_grpo": LossSpec(clipped_policy_loss, ClipParams(), aggregation="seq-mean-token-sum-norm", scale="none"),
    "bnpo": LossSpec(clipped_policy_loss, ClipParams(), aggregation="micro-token-mean"),
    "gspo": LossSpec(
        clipped_policy_loss, ClipParams(importance_sampling_level="sequence"), aggregation="seq-mean-token-mean"
    ),
    "luspo": LossSpec(luspo_loss, LuspoParams(), aggregation="seq-mean-token-mean"),
    "cispo": LossSpec(cispo_loss, CispoParams(), aggregation="token-mean"),
    "sapo": LossSpec(sapo_loss, SapoParams(), aggregation="seq-mean-token-mean"),
    "gmpo": LossSpec(gmpo_loss, GmpoParams(), aggregation="seq-mean-token-mean"),
    "dppo": LossSpec(dppo_loss, DppoParams(), aggregation="token-mean"),
    "vespo": LossSpec(vespo_loss, VespoParams(), aggregation="token-mean"),
    "clip_cov": LossSpec(clip_cov_loss, ClipCovParams(), aggregation="token-mean", marks=clip_cov_marks),
    "kl_cov": LossSpec(kl_cov_loss, KLCovParams(), aggregation="token-mean", marks=kl_cov_marks, on_policy=False),
    "reinforce": LossSpec(reinforce_loss, ReinforceParams(), aggregation="seq-mean-token-sum", on_policy=True),
    "gpg": LossSpec(reinforce_loss, ReinforceParams(), aggregation="token-mean", on_policy=True),
}
