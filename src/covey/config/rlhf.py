"""What ``covey rlhf`` reads: training on rewards (grpo, ppo) and on pairs of answers (dpo, rm)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from covey.algo.advantages import ADVANTAGE_ESTIMATORS
from covey.algo.losses import LOSSES
from covey.config.algo import (
    AlgoConfig,
    ContrastConfig,
    CriticConfig,
    MismatchConfig,
    ObjectiveConfig,
    PPOObjectiveConfig,
    PreferenceConfig,
)
from covey.config.base import Composition, changed_options, default_values
from covey.config.control import CoefficientConfig, CurriculumConfig, RemedyConfig
from covey.config.examples import ExamplesConfig
from covey.config.loss_options import LossConfig
from covey.config.presets import expand
from covey.config.reward_options import RewardOptionsConfig
from covey.config.rules import refuse_unread, uses_countdown_generator
from covey.config.sections import (
    BatchConfig,
    EvalConfig,
    ModelConfig,
    OptimConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    SamplingConfig,
    TrainCountdownConfig,
    TrainDataConfig,
)
from covey.errors import UserError
from covey.plan.batch import check_group_size


@dataclass(frozen=True)
class PolicyConfig(Composition):
    """What training on rewards reads, with whatever advantages."""

    model: ModelConfig = field(default=ModelConfig())
    data: TrainDataConfig = field(default=TrainDataConfig())
    countdown: TrainCountdownConfig = field(default=TrainCountdownConfig())
    sampling: SamplingConfig = field(default=SamplingConfig())
    rollout: RolloutConfig = field(default=RolloutConfig())
    algo: ObjectiveConfig = field(default=ObjectiveConfig())
    loss: LossConfig = field(default=LossConfig())
    mismatch: MismatchConfig = field(default=MismatchConfig())
    coefficients: CoefficientConfig = field(default=CoefficientConfig())
    reward: RewardConfig = field(default=RewardConfig())
    reward_options: RewardOptionsConfig = field(default=RewardOptionsConfig())
    optim: OptimConfig = field(default=OptimConfig())
    batch: BatchConfig = field(default=BatchConfig())
    run: RunConfig = field(default=RunConfig())
    eval: EvalConfig = field(default=EvalConfig())

    def check(self) -> None:
        if self.sampling.temperature == 0:
            raise UserError(
                "--temperature 0: greedy completions of a prompt are all equal, so there is nothing to compare;"
                " train with a temperature above 0 (1.0 is usual)"
            )
        values = self.to_dict()
        if self.eval.eval_steps and self.eval.val_dataset is None and not uses_countdown_generator(values):
            raise UserError(
                f"--eval_steps {self.eval.eval_steps}: there are no held-out prompts; add --val_dataset"
                " (only --dataset countdown generates its own)"
            )
        refuse_unread(values, changed_options(self))
        self.coefficients.check_start(self.algo.beta, self.algo.entropy_coef)
        self.reward_options.check_for(self.reward.reward_funcs, self.sampling.max_completion_length)
        self.reward.check_samples(self.rollout.num_generations, "num_generations")
        self._check_loss()

    def _check_loss(self) -> None:
        name = self.algo.loss_type
        params, published = self.loss.params_of(name), LOSSES[name].params
        if published.of_sequences and not params.of_sequences:
            raise UserError(
                f"--loss_type {name} is defined by one ratio per sequence: with --importance_sampling_level token it is"
                " grpo; say --loss_type grpo, or drop the flag"
            )
        if self.per_token_advantages and params.one_advantage_per_row:
            raise UserError(
                f"--loss_type {name} gives every token of a completion the same weight, but here each has an advantage"
                " of its own; use --loss_type gspo --importance_sampling_level sequence_token, or a token loss"
            )
        if self.per_token_advantages and self.mismatch.off_policy_sequence_mask_delta is not None:
            raise UserError(
                "--off_policy_sequence_mask_delta drops completions by the sign of their advantage, but here every"
                " token has an advantage of its own"
            )

    @property
    def per_token_advantages(self) -> bool:
        """The tokens of a completion may have different advantages."""
        return False

    def describe_advantages(self) -> str:
        """For the start of a run."""
        raise NotImplementedError

    def warnings(self) -> list[str]:
        """What runs, but is probably not meant."""
        algo, params = self.algo, self.loss.params_of(self.algo.loss_type)
        lines = []
        if params.of_sequences and algo.aggregation != "seq-mean-token-mean":
            lines.append(
                f"{algo.loss_type} weighs whole completions, but --loss_agg_mode {algo.aggregation} counts a long one"
                " more often; its mean is over sequences (seq-mean-token-mean)"
            )
        if params.widest_range >= 0.05 and params.of_sequences:
            lines.append(
                f"one ratio per sequence with a clip range of {params.widest_range:g} clips next to nothing (GSPO: 3e-4"
                " and 4e-4); watch clip_ratio in the metrics"
            )
        return lines


@dataclass(frozen=True)
class GRPOConfig(PolicyConfig):
    """``covey rlhf --rlhf_type grpo``."""

    algo: AlgoConfig = field(default=AlgoConfig())
    contrast: ContrastConfig = field(default=ContrastConfig())
    remedies: RemedyConfig = field(default=RemedyConfig())
    curriculum: CurriculumConfig = field(default=CurriculumConfig())

    def check(self) -> None:
        super().check()
        group, micro = self.rollout.num_generations, self.batch.per_device_train_batch_size
        if self.algo.group_relative:
            check_group_size(group)
        contrast = self.contrast.contrastive_coef > 0
        largest = max(self.curriculum.group_sizes or (group,))
        self.remedies.check_group(largest, self.sampling.temperature, contrast, self.algo.group_relative)
        if "budget" in self.remedies.all and "diversity" in self.reward.reward_funcs:
            raise UserError(
                "--reward_funcs diversity compares the completions of a prompt, and a group that grows by an adaptive"
                " budget is scored in pieces: use one of the two"
            )
        if LOSSES[self.algo.loss_type].on_policy and self.remedies.resample_exhausted == "skip":
            raise UserError(
                f"--resample_exhausted skip keeps groups for a later step, and --loss_type {self.algo.loss_type} knows"
                " nothing of the policy that sampled them; use partial or stop"
            )
        if contrast and self.curriculum.curriculum == "stages":
            raise UserError("--curriculum stages changes the group size, and --contrastive_coef needs one for all")
        if contrast and (group < 2 or micro % group):
            raise UserError(
                "--contrastive_coef compares the completions of a prompt, so a micro-batch must hold whole groups of at"
                f" least two: --num_generations {group}, --per_device_train_batch_size {micro}"
            )

    @property
    def per_token_advantages(self) -> bool:
        return self.algo.reward_kl and ADVANTAGE_ESTIMATORS[self.algo.advantage_estimator].kl_to_come

    def describe_advantages(self) -> str:
        return f"{self.algo.advantage_estimator} / {self.algo.scale}"

    def warnings(self) -> list[str]:
        lines = super().warnings()
        estimator = self.algo.advantage_estimator
        if estimator == "reinforce_plus_plus":
            lines.append(
                "--advantage_estimator reinforce_plus_plus is the paper's form without a group baseline; what ms-swift"
                " calls by this name is reinforce_plus_plus_baseline here"
            )
        if estimator in ("maxrl", "bnpo_paper"):
            lines.append(f"--advantage_estimator {estimator} is made for total rewards of 0 and 1")
        return lines

    @classmethod
    def expanded(cls, values: Mapping[str, object]) -> dict[str, object]:
        """``values`` with a ``preset`` replaced by what it sets."""
        return expand(values, default_values(cls))

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """As every command, with ``preset`` for the settings of a paper."""
        return super().from_dict(cls.expanded(values))


@dataclass(frozen=True)
class PPOConfig(PolicyConfig):
    """``covey rlhf --rlhf_type ppo``."""

    rollout: RolloutConfig = field(default=RolloutConfig(num_generations=1))
    algo: PPOObjectiveConfig = field(default=PPOObjectiveConfig(loss_type="ppo", beta=0.05))
    critic: CriticConfig = field(default=CriticConfig())

    @property
    def per_token_advantages(self) -> bool:
        return True

    def describe_advantages(self) -> str:
        critic = self.critic
        lam = f"{critic.lam:g}" if critic.length_adaptive_alpha is None else "by length"
        return f"GAE (gamma {critic.gamma:g}, lambda {lam}){', whitened' if critic.whiten_advantages else ''}"


@dataclass(frozen=True)
class DPOConfig(ExamplesConfig):
    """``covey rlhf --rlhf_type dpo``."""

    optim: OptimConfig = field(default=OptimConfig())
    preference: PreferenceConfig = field(default=PreferenceConfig())


@dataclass(frozen=True)
class RMConfig(ExamplesConfig):
    """``covey rlhf --rlhf_type rm``."""
