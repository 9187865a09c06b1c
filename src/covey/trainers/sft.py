"""Supervised fine-tuning: the warm start of a recipe."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from covey.backends.base import TrainBackend
from covey.tensors import TokenBatch, make_batch
from covey.trainers.order import stream_indices
from covey.trainers.schedule import Schedule
from covey.types import StepResult


@dataclass(frozen=True)
class Example:
    """One prompt and the completion to learn, end token included."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


@dataclass(frozen=True)
class SFTSettings:
    """Rows per optimizer step and per micro-batch, and their order."""

    rows_per_step: int
    rows_per_micro_batch: int
    shuffle: bool
    data_seed: int


def token_mean_loss(
    batch: TokenBatch, logp: torch.Tensor, entropy: torch.Tensor | None
) -> tuple[torch.Tensor, dict[str, tuple[float, float]]]:
    """Negative log-likelihood; the weights make it a mean over the completion tokens of the step."""
    return -(batch.weights * logp).sum(), {}


def sft_step(
    backend: TrainBackend, examples: Sequence[Example], settings: SFTSettings, schedule: Schedule, step: int
) -> Iterator[StepResult]:
    """Optimizer step ``step + 1``: the mean negative log-likelihood of its completion tokens."""
    started = time.perf_counter()
    size = settings.rows_per_step
    picked = stream_indices(len(examples), step * size, size, settings.shuffle, settings.data_seed)
    rows = [examples[i] for i in picked]
    batch = make_batch([r.prompt_ids for r in rows], [[r.completion_ids] for r in rows])
    batch = batch.with_fields(weights=torch.full((batch.num_tokens,), 1.0 / batch.num_tokens))
    lr = schedule(step + 1)
    stats = backend.update(batch.split(settings.rows_per_micro_batch), token_mean_loss, lr)
    seconds = time.perf_counter() - started
    tokens = batch.num_tokens + int(batch.prompt_lens.sum())
    metrics = {
        "loss": stats.loss,
        "grad_norm": stats.grad_norm,
        "update_skipped": float(not stats.applied),
        "lr": lr,
        "time/train_s": seconds,
        "time/step_s": seconds,
        "tokens_per_s": tokens / seconds,
    }
    yield StepResult(step + 1, metrics)
