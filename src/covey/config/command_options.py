"""Options of the commands that do not train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from covey.config.base import Section
from covey.config.values import require


@dataclass(frozen=True)
class EvalRunOptions(Section):
    """``covey eval``: how many prompts and samples, and the form of the result."""

    eval_num_prompts: int = 500
    eval_num_samples: int = 1
    seed: int = 42
    output_dir: str | None = None
    json: bool = False

    def check(self) -> None:
        require(self.eval_num_prompts >= 1, "eval_num_prompts", self.eval_num_prompts, "at least 1")
        require(self.eval_num_samples >= 1, "eval_num_samples", self.eval_num_samples, "at least 1")
        require(self.seed >= 0, "seed", self.seed, "0 or above")


@dataclass(frozen=True)
class ChatOptions(Section):
    """``covey chat``."""

    system: str | None = None
    seed: int = 42


@dataclass(frozen=True)
class SampleOptions(Section):
    """``covey sample``: completions of given prompts."""

    prompt: tuple[str, ...] = ()
    num_samples: int = 1
    system: str | None = None
    seed: int = 42

    def check(self) -> None:
        require(self.num_samples >= 1, "num_samples", self.num_samples, "at least 1")


@dataclass(frozen=True)
class ScoreOptions(Section):
    """``covey score``: rewards of given completions, without a model."""

    task: Literal["countdown"] = "countdown"
    file: str = ""


@dataclass(frozen=True)
class CheckRewardOptions(Section):
    """``covey check-reward``: what a reward is tried on."""

    task: Literal["countdown"] = "countdown"
    dataset: str = "countdown"
    reward_timeout: float = 5.0
    seed: int = 42
    json: bool = False

    def check(self) -> None:
        require(self.reward_timeout > 0, "reward_timeout", self.reward_timeout, "above 0 seconds")
        require(self.seed >= 0, "seed", self.seed, "0 or above")


@dataclass(frozen=True)
class RecipeOptions(Section):
    """``covey recipe``: what the command line may change about a recipe; None keeps what the recipe says."""

    output_dir: str | None = None
    seed: int | None = None
    resume_from_checkpoint: str | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class BenchOptions(Section):
    """``covey bench``: the start model of all contenders; for seconds and rounds None keeps what the bench says."""

    model: str = ""
    seconds: float | None = None
    rounds: int | None = None
    eval_num_prompts: int = 256
    output_dir: str | None = None
    seed: int = 42

    def check(self) -> None:
        require(self.seconds is None or self.seconds > 0, "seconds", self.seconds, "above 0")
        require(self.rounds is None or self.rounds >= 1, "rounds", self.rounds, "at least 1")
        require(self.eval_num_prompts >= 1, "eval_num_prompts", self.eval_num_prompts, "at least 1")
