"""Supervised fine-tuning: the warm start of a recipe."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from covey.backends.base import TrainBackend
from covey.tensors import TokenBatch, make_batch
from covey.trainers.examples import ExampleSettings, draw, example_metrics
from covey.trainers.schedule import Schedule
from covey.types import StepResult


@dataclass(frozen=True)
class Example:
    """One prompt and the completion to learn, end token included."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


def token_mean_loss(
    batch: TokenBatch, logp: torch.Tensor, entropy: torch.Tensor | None
) -> tuple[torch.Tensor, dict[str, tuple[float, float]]]:
    """Negative log-likelihood; the weights make it a mean over the completion tokens of the step."""
    return -(batch.weights * logp).sum(), {}


def sft_step(
    backend: TrainBackend, examples: Sequence[Example], settings: ExampleSettings, schedule: Schedule, step: int
) -> Iterator[StepResult]:
    """Optimizer step ``step + 1``: the mean negative log-likelihood of its completion tokens."""
    started = time.perf_counter()
    rows = draw(examples, settings, step)
    batch = make_batch([r.prompt_ids for r in rows], [[r.completion_ids] for r in rows])
    batch = batch.with_fields(weights=torch.full((batch.num_tokens,), 1.0 / batch.num_tokens))
    lr = schedule(step + 1)
    stats = backend.update(batch.split(settings.per_micro_batch), token_mean_loss, lr)
    yield StepResult(step + 1, example_metrics(batch, stats, lr, time.perf_counter() - started))
