"""The objective: advantages, policy loss, KL term, and what may be added to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from covey.algo.advantages import ADVANTAGE_ESTIMATORS, no_baseline
from covey.algo.losses import LOSSES
from covey.config.base import Section
from covey.config.loss_options import AggregationName, EstimatorName, KLName, LossName
from covey.config.values import require
from covey.errors import UserError

FIXED_SCALES = ("mean", "beta", "valid")
"""Divisors that make an estimator what it is."""


@dataclass(frozen=True)
class ObjectiveConfig(Section):
    """The policy loss and its denominator, the KL term, which tokens count; what GRPO and PPO share."""

    loss_type: LossName = "grpo"
    loss_agg_mode: AggregationName | None = None
    beta: float = 0.0
    kl_estimator: KLName | None = None
    kl_in_reward: bool | None = None
    overlong_filter: bool = False
    entropy_coef: float = 0.0
    top_entropy_quantile: float = 1.0
    positive_nll_coef: float = 0.0

    def check(self) -> None:
        require(self.beta >= 0, "beta", self.beta, "0 (no KL term) or above")
        require(self.positive_nll_coef >= 0, "positive_nll_coef", self.positive_nll_coef, "0 (off) or above")
        share = 0 < self.top_entropy_quantile <= 1
        require(share, "top_entropy_quantile", self.top_entropy_quantile, "a share: above 0, at most 1 (all tokens)")
        if self.kl_estimator == "k1" and not self.reward_kl:
            raise UserError(
                "--kl_estimator k1: as a loss its gradient is zero on average, so it would not hold the policy near the"
                " reference whatever beta is; use k2, k3, k3_unbiased or k3+, or put it into the reward with"
                " --kl_in_reward true"
            )
        if self.reward_kl and self.kl_estimator not in (None, "k1"):
            raise UserError(
                f"--kl_estimator {self.kl_estimator}: in the reward only k1 gives the gradient of the KL; drop the"
                " flag, or put the KL term into the loss with --kl_in_reward false"
            )

    @property
    def published_in_reward(self) -> bool:
        """Where the KL term belongs when nothing is said."""
        return False

    @property
    def reward_kl(self) -> bool:
        """Whether there is a KL term and it is part of the reward."""
        given = self.kl_in_reward
        return self.beta > 0 and (self.published_in_reward if given is None else given)

    @property
    def aggregation(self) -> str:
        """The denominator of the loss: as given, else as the loss was published."""
        return self.loss_agg_mode or LOSSES[self.loss_type].aggregation


@dataclass(frozen=True)
class PPOObjectiveConfig(ObjectiveConfig):
    """The objective of PPO."""

    @property
    def published_in_reward(self) -> bool:
        return True


@dataclass(frozen=True)
class AlgoConfig(ObjectiveConfig):
    """The objective of GRPO: also how rewards become advantages within groups."""

    advantage_estimator: EstimatorName = "grpo"
    scale_rewards: Literal["group", "batch", "none", "gdpo"] | None = None

    def check(self) -> None:
        super().check()
        published = LOSSES[self.loss_type].scale
        if published is not None and self.scale_rewards not in (None, published):
            raise UserError(
                f"--scale_rewards {self.scale_rewards}: {self.loss_type} is defined with --scale_rewards {published}:"
                " dividing by a std brings back the bias it removes; drop the flag, or use --loss_type grpo"
            )
        estimator = ADVANTAGE_ESTIMATORS[self.advantage_estimator]
        if published is not None and estimator.scale in FIXED_SCALES:
            raise UserError(
                f"--loss_type {self.loss_type} is defined without a divisor, and --advantage_estimator"
                f" {self.advantage_estimator} is one: they don't go together"
            )
        if self.scale_rewards == "group" and not self.group_relative:
            raise UserError(
                f"--scale_rewards group: {self.advantage_estimator} has no group baseline, so a group of equal rewards"
                " would be divided by a std of 0; use batch or none"
            )
        if self.scale_rewards == "gdpo" and (self.advantage_estimator != "grpo" or self.reward_kl):
            raise UserError(
                "--scale_rewards gdpo normalises each reward by its group: it goes with --advantage_estimator grpo"
                " and without --kl_in_reward"
            )

    @property
    def published_in_reward(self) -> bool:
        return ADVANTAGE_ESTIMATORS[self.advantage_estimator].kl_in_reward

    @property
    def scale(self) -> str:
        """What advantages are divided by: as given, else as the loss or the estimator was published."""
        own = LOSSES[self.loss_type].scale or ADVANTAGE_ESTIMATORS[self.advantage_estimator].scale
        return self.scale_rewards or own

    @property
    def group_relative(self) -> bool:
        """Whether an advantage needs other completions of the same prompt."""
        return ADVANTAGE_ESTIMATORS[self.advantage_estimator].baseline is not no_baseline


@dataclass(frozen=True)
class CriticConfig(Section):
    """The critic of PPO and the advantages made from its values."""

    gamma: float = 1.0
    lam: float = 0.95
    lam_value: float | None = None
    length_adaptive_alpha: float | None = None
    whiten_advantages: bool = True
    cliprange_value: float = 0.2
    critic_lr: float = 1e-5
    critic_warmup: int = 0

    def check(self) -> None:
        require(0 < self.gamma <= 1, "gamma", self.gamma, "above 0 and at most 1")
        require(0 <= self.lam <= 1, "lam", self.lam, "at least 0 and at most 1")
        value = self.lam_value
        require(value is None or 0 <= value <= 1, "lam_value", value, "at least 0 and at most 1")
        alpha = self.length_adaptive_alpha
        require(alpha is None or alpha > 0, "length_adaptive_alpha", alpha, "above 0 (VAPO: 0.05)")
        require(self.cliprange_value > 0, "cliprange_value", self.cliprange_value, "above 0")
        require(self.critic_lr > 0, "critic_lr", self.critic_lr, "above 0")
        require(self.critic_warmup >= 0, "critic_warmup", self.critic_warmup, "0 or above")


@dataclass(frozen=True)
class PreferenceConfig(Section):
    """The loss on pairs of a chosen and a rejected completion."""

    loss_type: Literal["sigmoid", "sigmoid_norm", "ipo"] = "sigmoid"
    beta: float = 0.1

    def check(self) -> None:
        require(self.beta > 0, "beta", self.beta, "above 0")


@dataclass(frozen=True)
class MismatchConfig(Section):
    """Corrections for an engine whose log-probs differ from the trainer's."""

    rollout_importance_sampling_mode: (
        Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] | None
    ) = None
    rollout_importance_sampling_threshold: float = 2.0
    rollout_importance_sampling_min: float = 0.0
    off_policy_sequence_mask_delta: float | None = None

    def check(self) -> None:
        low, high = self.rollout_importance_sampling_min, self.rollout_importance_sampling_threshold
        require(high > 0, "rollout_importance_sampling_threshold", high, "above 0")
        require(0 <= low < high, "rollout_importance_sampling_min", low, f"at least 0 and below the threshold {high:g}")
        delta = self.off_policy_sequence_mask_delta
        require(delta is None or delta > 0, "off_policy_sequence_mask_delta", delta, "above 0 nats")


@dataclass(frozen=True)
class ContrastConfig(Section):
    """A contrast over the completions of a prompt, added to the policy loss."""

    contrastive_coef: float = 0.0
    contrastive_loss: Literal["infonca", "gvpo"] = "infonca"
    contrastive_scale: float = 0.1
    contrastive_alpha: float = 1.0

    def check(self) -> None:
        require(self.contrastive_coef >= 0, "contrastive_coef", self.contrastive_coef, "0 (off) or above")
        require(self.contrastive_scale > 0, "contrastive_scale", self.contrastive_scale, "above 0")
        require(self.contrastive_alpha > 0, "contrastive_alpha", self.contrastive_alpha, "above 0")
