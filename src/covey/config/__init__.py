"""Configuration: what each command reads, validated when it is built, before torch is imported.

Example: ``GRPOConfig.from_dict({"model": "smollm2-135m", "dataset": "countdown", "beta": "1e-3"}).algo.beta == 0.001``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from covey.config.algo import (
    AlgoConfig,
    ContrastConfig,
    CriticConfig,
    MismatchConfig,
    ObjectiveConfig,
    PPOObjectiveConfig,
    PreferenceConfig,
)
from covey.config.base import Composition, changed_options
from covey.config.command_options import (
    BenchOptions,
    ChatOptions,
    CheckRewardOptions,
    EvalRunOptions,
    RecipeOptions,
    SampleOptions,
    ScoreOptions,
)
from covey.config.examples import ExamplesConfig
from covey.config.loss_options import LOSS_OPTION_HELP, LossConfig
from covey.config.reward_options import REWARD_OPTION_HELP, RewardOptionsConfig
from covey.config.rlhf import DPOConfig, GRPOConfig, PolicyConfig, PPOConfig, RMConfig
from covey.config.rules import refuse_unread
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

__all__ = [
    "LOSS_OPTION_HELP",
    "REWARD_OPTION_HELP",
    "AlgoConfig",
    "BatchConfig",
    "BenchConfig",
    "BenchOptions",
    "ChatConfig",
    "ChatOptions",
    "CheckRewardConfig",
    "CheckRewardOptions",
    "ContrastConfig",
    "CountdownConfig",
    "CriticConfig",
    "DPOConfig",
    "DataConfig",
    "EvalConfig",
    "EvalRunConfig",
    "EvalRunOptions",
    "ExamplesConfig",
    "GRPOConfig",
    "LossConfig",
    "MismatchConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimConfig",
    "PPOConfig",
    "PPOObjectiveConfig",
    "PolicyConfig",
    "PreferenceConfig",
    "RMConfig",
    "RecipeConfig",
    "RecipeOptions",
    "RewardConfig",
    "RewardOptionsConfig",
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
class SFTConfig(ExamplesConfig):
    """``covey sft``."""

    countdown: WorkedCountdownConfig = field(default=WorkedCountdownConfig())


@dataclass(frozen=True)
class EvalRunConfig(Composition):
    """``covey eval``."""

    model: ModelConfig = field(default=ModelConfig())
    data: DataConfig = field(default=DataConfig())
    countdown: CountdownConfig = field(default=CountdownConfig())
    sampling: SamplingConfig = field(default=SamplingConfig())
    reward: RewardConfig = field(default=RewardConfig(reward_funcs=("format", "accuracy")))
    reward_options: RewardOptionsConfig = field(default=RewardOptionsConfig())
    eval: EvalRunOptions = field(default=EvalRunOptions())

    def check(self) -> None:
        refuse_unread(self.to_dict(), changed_options(self))
        self.reward_options.check_for(self.reward.reward_funcs, self.sampling.max_completion_length)
        self.reward.check_samples(self.eval.eval_num_samples, "eval_num_samples")


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


@dataclass(frozen=True)
class CheckRewardConfig(Composition):
    """``covey check-reward``."""

    check_reward: CheckRewardOptions = field(default=CheckRewardOptions())
