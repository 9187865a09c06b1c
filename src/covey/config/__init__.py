"""Configuration: what each command reads, validated when it is built, before torch is imported.

Example: ``GRPOConfig.from_dict({"model": "smollm2-135m", "dataset": "countdown", "beta": "1e-3"}).algo.beta == 0.001``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from covey.config.base import Composition, changed_options
from covey.config.command_options import ChatOptions, EvalRunOptions, RecipeOptions, SampleOptions, ScoreOptions
from covey.config.rules import refuse_unread, uses_countdown_generator
from covey.config.sections import (
    AlgoConfig,
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

__all__ = [
    "AlgoConfig",
    "BatchConfig",
    "ChatConfig",
    "ChatOptions",
    "CountdownConfig",
    "DataConfig",
    "EvalConfig",
    "EvalRunConfig",
    "EvalRunOptions",
    "GRPOConfig",
    "ModelConfig",
    "OptimConfig",
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
class GRPOConfig(Composition):
    """``covey rlhf --rlhf_type grpo``."""

    model: ModelConfig = field(default=ModelConfig())
    data: TrainDataConfig = field(default=TrainDataConfig())
    countdown: TrainCountdownConfig = field(default=TrainCountdownConfig())
    sampling: SamplingConfig = field(default=SamplingConfig())
    rollout: RolloutConfig = field(default=RolloutConfig())
    algo: AlgoConfig = field(default=AlgoConfig())
    reward: RewardConfig = field(default=RewardConfig())
    optim: OptimConfig = field(default=OptimConfig())
    batch: BatchConfig = field(default=BatchConfig())
    run: RunConfig = field(default=RunConfig())
    eval: EvalConfig = field(default=EvalConfig())

    def check(self) -> None:
        if self.sampling.temperature == 0:
            raise UserError(
                "--temperature 0: greedy completions of a prompt are all equal, so a group has no advantages;"
                " train with a temperature above 0 (1.0 is usual)"
            )
        values = self.to_dict()
        if self.eval.eval_steps and self.eval.val_dataset is None and not uses_countdown_generator(values):
            raise UserError(
                f"--eval_steps {self.eval.eval_steps}: there are no held-out prompts; add --val_dataset"
                " (only --dataset countdown generates its own)"
            )
        refuse_unread(values, changed_options(self))


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
