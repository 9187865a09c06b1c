"""The options of each component, with their defaults: the one place where a default is written.

What an option means, its unit and ms-swift's default stand in the flag table (``covey.cli.flags``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from covey.config.base import Section
from covey.config.values import require
from covey.errors import UserError

DEFAULT_PAIR_WEIGHTS = {"format": 0.4, "accuracy": 0.6}
"""Reward weights when exactly these two rewards are named and no weights are given."""


@dataclass(frozen=True)
class ModelConfig(Section):
    """Which model, where and in which precision it computes (training keeps fp32 master weights)."""

    model: str = ""
    torch_dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"


@dataclass(frozen=True)
class DataConfig(Section):
    """Which rows, and how they become prompts."""

    dataset: str = ""
    task: Literal["countdown", "math", "by_row"] | None = None
    prompt_template: str | None = None
    system: str | None = None
    max_length: int | None = None
    truncation_strategy: Literal["raise", "delete"] = "raise"
    bad_rows: Literal["fail", "drop"] = "fail"

    def check(self) -> None:
        if self.dataset.startswith("countdown#"):
            raise UserError(f"--dataset {self.dataset}: the generator takes its size from --countdown_num_puzzles")
        require(self.max_length is None or self.max_length >= 1, "max_length", self.max_length, "at least 1 token")


@dataclass(frozen=True)
class TrainDataConfig(DataConfig):
    """Rows to train on, and their order."""

    dataset_shuffle: bool = True
    data_seed: int | None = None


@dataclass(frozen=True)
class CountdownConfig(Section):
    """The puzzle generator behind ``--dataset countdown``; ranges include both ends."""

    prefix: ClassVar[str] = "countdown_"

    num_numbers: tuple[int, ...] = (3, 3)
    number_range: tuple[int, ...] = (1, 9)
    target_range: tuple[int, ...] = (5, 60)
    operators: str = "+-*/"
    require_integer_steps: bool = True

    def check(self) -> None:
        ranges = {
            "num_numbers": self.num_numbers,
            "number_range": self.number_range,
            "target_range": self.target_range,
        }
        for name, bounds in ranges.items():
            ordered = len(bounds) == 2 and bounds[0] <= bounds[1]
            require(ordered, self.prefix + name, bounds, "two whole numbers, low then high")


@dataclass(frozen=True)
class TrainCountdownConfig(CountdownConfig):
    """The puzzle generator for a training set."""

    num_puzzles: int = 2048

    def check(self) -> None:
        super().check()
        require(self.num_puzzles >= 1, "countdown_num_puzzles", self.num_puzzles, "at least 1")


@dataclass(frozen=True)
class WorkedCountdownConfig(TrainCountdownConfig):
    """The puzzle generator for supervised training, with its worked solutions."""

    guess_share: float = 0.0
    unsolvable_share: float = 0.0

    def check(self) -> None:
        super().check()
        require(0 <= self.guess_share < 1, "countdown_guess_share", self.guess_share, "a share: at least 0, below 1")
        fits = 0 <= self.unsolvable_share < 1 - self.guess_share
        require(
            fits, "countdown_unsolvable_share", self.unsolvable_share, "a share: with countdown_guess_share below 1"
        )


@dataclass(frozen=True)
class SamplingConfig(Section):
    """How completions are sampled; complete and final, a model's own generation defaults never apply."""

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    max_completion_length: int = 512

    def check(self) -> None:
        require(self.temperature >= 0, "temperature", self.temperature, "0 (greedy) or above")
        require(self.top_k >= -1, "top_k", self.top_k, "at least 1, or -1 for no limit")
        require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        require(0 <= self.min_p < 1, "min_p", self.min_p, "at least 0 and below 1")
        length = self.max_completion_length
        require(length >= 1, "max_completion_length", length, "at least 1 token")


@dataclass(frozen=True)
class RolloutConfig(Section):
    """How many completions a rollout samples and how often it is used."""

    num_generations: int = 8
    steps_per_generation: int | None = None
    generation_batch_size: int | None = None
    num_iterations: int = 1

    def check(self) -> None:
        require(self.num_generations >= 1, "num_generations", self.num_generations, "at least 1")
        require(self.num_iterations >= 1, "num_iterations", self.num_iterations, "at least 1")


@dataclass(frozen=True)
class RewardConfig(Section):
    """Which reward functions, their weights, and the user files that define more of them."""

    reward_funcs: tuple[str, ...] = ()
    reward_weights: tuple[float, ...] | None = None
    external_plugins: tuple[str, ...] = ()
    reward_workers: int = 2
    reward_timeout: float = 30.0
    max_reward_failures: float = 0.1

    def check(self) -> None:
        names, weights = self.reward_funcs, self.reward_weights
        require(self.reward_workers >= 0, "reward_workers", self.reward_workers, "at least 1, or 0 for none")
        require(self.reward_timeout > 0, "reward_timeout", self.reward_timeout, "above 0 seconds")
        share = self.max_reward_failures
        require(0 <= share <= 1, "max_reward_failures", share, "a share: 0 to 1")
        require(len(set(names)) == len(names), "reward_funcs", names, "named once each")
        if weights is not None and len(weights) != len(names):
            raise UserError(
                f"--reward_weights has {len(weights)} values for {len(names)} reward functions"
                f" ({', '.join(names) or 'none'}): give one weight per function, in the same order"
            )

    def check_samples(self, per_prompt: int, option: str) -> None:
        """Refuse (UserError) a reward that compares the completions of a prompt when there is one."""
        if "diversity" in self.reward_funcs and per_prompt < 2:
            raise UserError(
                f"--reward_funcs diversity compares the completions of a prompt: --{option} must be 2 or more"
            )

    def weights(self) -> dict[str, float]:
        """Weight per reward function: as given, else 0.4/0.6 for exactly format and accuracy, else 1 each."""
        if self.reward_weights is not None:
            return dict(zip(self.reward_funcs, self.reward_weights, strict=True))
        pair = set(self.reward_funcs) == set(DEFAULT_PAIR_WEIGHTS)
        return {name: DEFAULT_PAIR_WEIGHTS[name] if pair else 1.0 for name in self.reward_funcs}


@dataclass(frozen=True)
class OptimConfig(Section):
    """AdamW and its schedule, in optimizer steps."""

    learning_rate: float = 1e-6
    lr_scheduler_type: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_ratio: float = 0.0
    warmup_steps: int = 0
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0

    def check(self) -> None:
        require(self.learning_rate >= 0, "learning_rate", self.learning_rate, "0 or above")
        require(0 <= self.warmup_ratio < 1, "warmup_ratio", self.warmup_ratio, "a share: at least 0, below 1")
        require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "0 or above")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or above")
        require(0 <= self.adam_beta1 < 1, "adam_beta1", self.adam_beta1, "at least 0 and below 1")
        require(0 <= self.adam_beta2 < 1, "adam_beta2", self.adam_beta2, "at least 0 and below 1")
        require(self.adam_epsilon > 0, "adam_epsilon", self.adam_epsilon, "above 0")
        require(self.max_grad_norm > 0, "max_grad_norm", self.max_grad_norm, "above 0")
        if self.warmup_ratio and self.warmup_steps:
            raise UserError("--warmup_ratio and --warmup_steps both set the warm-up: give only one of them")


@dataclass(frozen=True)
class BatchConfig(Section):
    """How an optimizer step is cut into micro-batches."""

    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    gradient_checkpointing: bool = False

    def check(self) -> None:
        size, accumulation = self.per_device_train_batch_size, self.gradient_accumulation_steps
        require(size >= 1, "per_device_train_batch_size", size, "at least 1")
        require(accumulation >= 1, "gradient_accumulation_steps", accumulation, "at least 1")


@dataclass(frozen=True)
class RunConfig(Section):
    """How long a training run is, what it writes and where."""

    output_dir: str | None = None
    max_steps: int = -1
    num_train_epochs: float = 1.0
    save_steps: int = 100
    save_total_limit: int | None = 2
    logging_steps: int = 1
    seed: int = 42
    report_to: tuple[Literal["tensorboard", "wandb", "none"], ...] = ("none",)
    resume_from_checkpoint: str | None = None
    dry_run: bool = False

    def check(self) -> None:
        steps = self.max_steps
        require(steps == -1 or steps >= 1, "max_steps", steps, "at least 1, or -1 to let --num_train_epochs decide")
        require(self.num_train_epochs > 0, "num_train_epochs", self.num_train_epochs, "above 0")
        require(self.save_steps >= 0, "save_steps", self.save_steps, "at least 1, or 0 to save only at the end")
        limit = self.save_total_limit
        require(limit is None or limit >= 1, "save_total_limit", limit, "at least 1, or none to keep all")
        require(self.logging_steps >= 1, "logging_steps", self.logging_steps, "at least 1")
        require(self.seed >= 0, "seed", self.seed, "0 or above")
        alone = "none" not in self.report_to or self.report_to == ("none",)
        require(alone, "report_to", self.report_to, "tensorboard and/or wandb, or none alone")


@dataclass(frozen=True)
class EvalConfig(Section):
    """Evaluation on held-out prompts during training, at the training temperature."""

    val_dataset: str | None = None
    eval_steps: int = 0
    eval_num_prompts: int = 200
    eval_num_samples: int = 1

    def check(self) -> None:
        require(self.eval_steps >= 0, "eval_steps", self.eval_steps, "at least 1, or 0 for no evaluation")
        require(self.eval_num_prompts >= 1, "eval_num_prompts", self.eval_num_prompts, "at least 1")
        require(self.eval_num_samples >= 1, "eval_num_samples", self.eval_num_samples, "at least 1")
