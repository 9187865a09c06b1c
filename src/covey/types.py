"""The values that flow through a training step: Prompt -> Completion -> Scored -> Group -> StepResult.

All are frozen; nothing here imports torch, so rewards, tasks and tools can use them freely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict

FinishReason = Literal["stop", "length"]


class Message(TypedDict):
    """One chat turn, as tokenizer chat templates take it."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One problem to be answered.

    Example: ``Prompt("countdown:4,6:24", ({"role": "user", "content": "24 from 4, 6"},),
    {"nums": [4, 6], "target": 24})``.
    """

    id: str
    messages: tuple[Message, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Every further column of the row; reward functions receive them."""
    token_ids: tuple[int, ...] = ()
    """Filled once by the tokenizer; engine and trainer both read these ids, never the text."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled answer: the ids as sampled (an end token included when it was sampled)."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """log pi(token) of the engine at the sampling temperature, one per id."""
    text: str
    """Decoded ids without the end token; only rewards and logs read it."""
    finish_reason: FinishReason
    weight_version: int = 0
    """Version of the weights that sampled it; the trainer knows a stale one by it."""
    temperature: float = 1.0
    """At which it was sampled; its log-probs, the engine's and the trainer's, are those at this temperature."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A completion with its rewards. ``None`` means the function abstained (never 0)."""

    completion: Completion
    rewards: Mapping[str, float | None]
    total: float | None
    """Weighted sum over the functions that did not abstain; None when all abstained."""


class ScoredRows(Protocol):
    """What scoring completions returns: scores in the order of the completions."""

    @property
    def scored(self) -> Sequence[Scored]: ...

    @property
    def failures(self) -> Mapping[str, int]:
        """Per reward, the completions on which it failed: they have no score of it."""
        ...


Score = Callable[[Sequence[Prompt], Sequence[Completion]], ScoredRows]
"""Scores row-aligned prompts and completions; training and evaluation are handed the same one."""


@dataclass(frozen=True, slots=True)
class Group:
    """All completions of one prompt in one rollout."""

    prompt: Prompt
    members: tuple[Scored, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer step reports; ``None`` marks a metric without a value (never NaN)."""

    step: int
    metrics: Mapping[str, float | None]
    groups: Sequence[Group] = ()
    """The scored rollout, on the first optimizer step taken on it."""
    advantages: Sequence[Sequence[float | None]] = ()
    """One per member of ``groups``; None where nobody scored it, or its group is not trained on."""
    events: Sequence[str] = ()
    """What a person should know of the step: a controller's move and its reason, an alarm."""
