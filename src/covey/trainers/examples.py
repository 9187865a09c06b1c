"""What supervised training and training on pairs do alike: the examples of a step, and its metric line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from covey.algo.metrics import merge_metrics
from covey.backends.base import UpdateStats
from covey.control.order import stream_indices
from covey.tensors import TokenBatch

T = TypeVar("T")


@dataclass(frozen=True)
class ExampleSettings:
    """Examples (or pairs) per optimizer step and per micro-batch, and their order."""

    per_step: int
    per_micro_batch: int
    shuffle: bool
    data_seed: int


def draw(examples: Sequence[T], settings: ExampleSettings, step: int) -> list[T]:
    """The examples of optimizer step ``step + 1``."""
    size = settings.per_step
    picked = stream_indices(len(examples), step * size, size, settings.shuffle, settings.data_seed)
    return [examples[i] for i in picked]


def example_metrics(batch: TokenBatch, stats: UpdateStats, lr: float, seconds: float) -> dict[str, float | None]:
    """The metric line of a step; ``tokens_per_s`` counts prompts and completions."""
    return {
        **merge_metrics([stats.metrics]),
        "loss": stats.loss,
        "grad_norm": stats.grad_norm,
        "update_skipped": float(not stats.applied),
        "lr": lr,
        "time/train_s": seconds,
        "time/step_s": seconds,
        "tokens_per_s": (batch.num_tokens + int(batch.prompt_lens.sum())) / seconds,
    }
