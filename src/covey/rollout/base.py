"""The rollout engine protocol and the sampling settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from covey.types import Completion, Prompt


@dataclass(frozen=True)
class Sampling:
    """Complete and final sampling settings; an engine adds nothing of a model's own defaults.

    Filters apply in the order temperature, top_k, top_p, min_p. ``temperature`` 0 is greedy, ``top_k`` below 1 is off.
    Raises ValueError on a value out of range.
    """

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    max_new_tokens: int = 512

    def __post_init__(self) -> None:
        allowed = {
            "temperature": 0 <= self.temperature < float("inf"),
            "top_p": 0 < self.top_p <= 1,
            "min_p": 0 <= self.min_p <= 1,
            "max_new_tokens": self.max_new_tokens >= 1,
        }
        if wrong := [f"{name}={getattr(self, name)}" for name, fine in allowed.items() if not fine]:
            raise ValueError(f"impossible sampling settings: {', '.join(wrong)}")

    @property
    def is_filtered(self) -> bool:
        """True when tokens are drawn from a truncated distribution, which the reported log-probs do not describe."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


Progress = Callable[[int, int], None]
"""(finished completions, all completions); may raise to stop the rollout."""


class RolloutEngine(Protocol):
    """Samples completions from the weights it was last given."""

    @property
    def weight_version(self) -> int: ...

    def generate(
        self,
        prompts: Sequence[Prompt],
        samples_per_prompt: int,
        sampling: Sampling,
        *,
        seed: tuple[int, ...],
        progress: Progress | None = None,
    ) -> list[list[Completion]]:
        """``samples_per_prompt`` completions of each prompt.

        ``seed`` (run seed, step) makes every sample reproducible: a sample depends on it, on the prompt's id and on its
        number in the group, not on the other prompts. ``logprobs`` are those of the full distribution at the
        sampling temperature, as the trainer computes them.
        """
        ...

    def load_weights(self, named: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take over weights under Hugging Face names and their version number."""
        ...
