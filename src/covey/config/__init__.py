"""Configuration: what each command reads, validated when it is built, before torch is imported.

Example: ``GRPOConfig.from_dict({"model": "smollm2-135m", "dataset": "countdown", "beta": "1e-3"}).algo.beta == 0.001``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from covey.algo.losses import LOSSES
from covey.config.algo import (
    AlgoConfig,
    ContrastConfig,
    CriticConfig,
    MismatchConfig,
    ObjectiveConfig,
    PreferenceConfig,
)
from covey.config.base import Composition, changed_options
from covey.config.command_options import (
    BenchOptions,
    ChatOptions,
    EvalRunOptions,
    RecipeOptions,
    SampleOptions,
    ScoreOptions,
)
from covey.config.loss_options import LOSS_OPTION_HELP, LossConfig
from covey.config.presets import expand
from covey.config.rules import refuse_unread, uses_countdown_generator
from covey.config.sections import (
    BatchConfig,
    CountdownConfig,
    DataConfig,
    EvalConfig,
    ModelConfig,
    OptimConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    SamplingConfig,
    TrainCountdownConfig,
    TrainDataConfig,
    WorkedCountdownConfig,
)
from covey.errors import UserError
from covey.plan.batch import check_group_size

__all__ = [
    "LOSS_OPTION_HELP",
    "AlgoConfig",
    "BatchConfig",
    "BenchConfig",
    "BenchOptions",
    "ChatConfig",
    "ChatOptions",
    "ContrastConfig",
    "CountdownConfig",
    "CriticConfig",
    "DPOConfig",
    "DataConfig",
    "EvalConfig",
    "EvalRunConfig",
    "EvalRunOptions",
    "GRPOConfig",
    "LossConfig",
    "MismatchConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimConfig",
    "PPOConfig",
    "PolicyConfig",
    "PreferenceConfig",
    "RMConfig",
    "RecipeConfig",
    "RecipeOptions",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "SFTConfig",
    "SampleConfig",
    "SampleOptions",
    "SamplingConfig",
    "ScoreConfig",
    "ScoreOptions",
    "TrainCountdownConfig",
    "TrainDataConfig",
    "WorkedCountdownConfig",
    "changed_options",
]


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
    reward: RewardConfig = field(default=RewardConfig())
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
        self.loss.params_of(self.algo.loss_type)

    def describe_advantages(self) -> str:
        """For the start of a run."""
        raise NotImplementedError

    def warnings(self) -> list[str]:
        """What runs, but is probably not meant."""
        algo, params = self.algo, self.loss.params_of(self.algo.loss_type)
        if "importance_sampling_level" not in LOSSES[algo.loss_type].option_names():
            return []
        if params.importance_sampling_level == "token":
            return []
        lines = []
        if algo.aggregation != "seq-mean-token-mean":
            lines.append(
                f"one ratio per sequence with --loss_agg_mode {algo.aggregation} weighs long completions by their"
                " tokens; GSPO is the mean over sequences (seq-mean-token-mean)"
            )
        if max(1 - params.lower, params.upper - 1) >= 0.05:
            lines.append(
                f"one ratio per sequence with a clip range of {1 - params.lower:g} and {params.upper - 1:g} clips next"
                " to nothing (GSPO: 3e-4 and 4e-4); watch clip_ratio in the metrics"
            )
        return lines


@dataclass(frozen=True)
class GRPOConfig(PolicyConfig):
    """``covey rlhf --rlhf_type grpo``."""

    algo: AlgoConfig = field(default=AlgoConfig())
    contrast: ContrastConfig = field(default=ContrastConfig())

    def check(self) -> None:
        super().check()
        group, micro = self.rollout.num_generations, self.batch.per_device_train_batch_size
        if self.algo.group_relative or self.contrast.contrastive_coef:
            check_group_size(group)
        if self.contrast.contrastive_coef and micro % group:
            raise UserError(
                f"--contrastive_coef compares the completions of a group, so a micro-batch must hold whole groups:"
                f" --per_device_train_batch_size {micro} is not a multiple of --num_generations {group}"
            )

    def describe_advantages(self) -> str:
        return f"{self.algo.advantage_estimator} / {self.algo.scale}"

    def warnings(self) -> list[str]:
        lines = super().warnings()
        if self.algo.advantage_estimator == "reinforce_plus_plus":
            lines.append(
                "--advantage_estimator reinforce_plus_plus is the paper's form without a group baseline; what ms-swift"
                " calls by this name is reinforce_plus_plus_baseline here"
            )
        return lines

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """As every command, with ``preset`` for the settings of a paper."""
        return super().from_dict(expand(values))


@dataclass(frozen=True)
class PPOConfig(PolicyConfig):
    """``covey rlhf --rlhf_type ppo``."""

    rollout: RolloutConfig = field(default=RolloutConfig(num_generations=1))
    algo: ObjectiveConfig = field(default=ObjectiveConfig(loss_type="ppo", beta=0.05))
    critic: CriticConfig = field(default=CriticConfig())

    def describe_advantages(self) -> str:
        critic = self.critic
        lam = f"{critic.lam:g}" if critic.length_adaptive_alpha is None else "by length"
        return f"GAE (gamma {critic.gamma:g}, lambda {lam}){', whitened' if critic.whiten_advantages else ''}"


@dataclass(frozen=True)
class DPOConfig(Composition):
    """``covey rlhf --rlhf_type dpo``."""

    model: ModelConfig = field(default=ModelConfig())
    data: TrainDataConfig = field(default=TrainDataConfig())
    countdown: TrainCountdownConfig = field(default=TrainCountdownConfig())
    preference: PreferenceConfig = field(default=PreferenceConfig())
    optim: OptimConfig = field(default=OptimConfig())
    batch: BatchConfig = field(default=BatchConfig())
    run: RunConfig = field(default=RunConfig())

    def check(self) -> None:
        refuse_unread(self.to_dict(), changed_options(self))


@dataclass(frozen=True)
class RMConfig(Composition):
    """``covey rlhf --rlhf_type rm``."""

    model: ModelConfig = field(default=ModelConfig())
    data: TrainDataConfig = field(default=TrainDataConfig())
    countdown: TrainCountdownConfig = field(default=TrainCountdownConfig())
    optim: OptimConfig = field(default=OptimConfig(learning_rate=1e-5))
    batch: BatchConfig = field(default=BatchConfig())
    run: RunConfig = field(default=RunConfig())

    def check(self) -> None:
        refuse_unread(self.to_dict(), changed_options(self))


@dataclass(frozen=True)
class SFTConfig(Composition):
    """``covey sft``."""

    model: ModelConfig = field(default=ModelConfig())
    data: TrainDataConfig = field(default=TrainDataConfig())
    countdown: WorkedCountdownConfig = field(default=WorkedCountdownConfig())
    optim: OptimConfig = field(default=OptimConfig(learning_rate=1e-5))
    batch: BatchConfig = field(default=BatchConfig())
    run: RunConfig = field(default=RunConfig())

    def check(self) -> None:
        refuse_unread(self.to_dict(), changed_options(self))


@dataclass(frozen=True)
class EvalRunConfig(Composition):
    """``covey eval``."""

    model: ModelConfig = field(default=ModelConfig())
    data: DataConfig = field(default=DataConfig())
    countdown: CountdownConfig = field(default=CountdownConfig())
    sampling: SamplingConfig = field(default=SamplingConfig())
    reward: RewardConfig = field(default=RewardConfig(reward_funcs=("format", "accuracy")))
    eval: EvalRunOptions = field(default=EvalRunOptions())

    def check(self) -> None:
        refuse_unread(self.to_dict(), changed_options(self))


@dataclass(frozen=True)
class ChatConfig(Composition):
    """``covey chat``."""

    model: ModelConfig = field(default=ModelConfig())
    sampling: SamplingConfig = field(default=SamplingConfig())
    chat: ChatOptions = field(default=ChatOptions())


@dataclass(frozen=True)
class SampleConfig(Composition):
    """``covey sample``."""

    model: ModelConfig = field(default=ModelConfig())
    sampling: SamplingConfig = field(default=SamplingConfig())
    sample: SampleOptions = field(default=SampleOptions())


@dataclass(frozen=True)
class ScoreConfig(Composition):
    """``covey score``."""

    score: ScoreOptions = field(default=ScoreOptions())


@dataclass(frozen=True)
class RecipeConfig(Composition):
    """``covey recipe``."""

    recipe: RecipeOptions = field(default=RecipeOptions())


@dataclass(frozen=True)
class BenchConfig(Composition):
    """``covey bench``."""

    bench: BenchOptions = field(default=BenchOptions())
