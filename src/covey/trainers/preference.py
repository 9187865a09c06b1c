"""Training on pairs of a chosen and a rejected completion: DPO and reward models."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from covey.algo.metrics import merge_metrics
from covey.algo.preference import BradleyTerryObjective, PreferenceObjective
from covey.backends.base import TrainBackend, UpdateStats, ValueBackend
from covey.tensors import TokenBatch, make_batch
from covey.trainers.order import stream_indices
from covey.trainers.schedule import Schedule
from covey.types import StepResult


@dataclass(frozen=True)
class Pair:
    """One prompt and two completions, end tokens included."""

    prompt_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]


@dataclass(frozen=True)
class PairSettings:
    """Pairs per optimizer step and per micro-batch, and their order."""

    pairs_per_step: int
    pairs_per_micro_batch: int
    shuffle: bool
    data_seed: int


def draw(pairs: Sequence[Pair], settings: PairSettings, step: int) -> TokenBatch:
    """The pairs of optimizer step ``step + 1``: a group each, the chosen completion first."""
    size = settings.pairs_per_step
    picked = stream_indices(len(pairs), step * size, size, settings.shuffle, settings.data_seed)
    rows = [pairs[i] for i in picked]
    return make_batch([r.prompt_ids for r in rows], [[r.chosen_ids, r.rejected_ids] for r in rows])


def dpo_step(
    backend: TrainBackend,
    pairs: Sequence[Pair],
    settings: PairSettings,
    objective: PreferenceObjective,
    schedule: Schedule,
    step: int,
) -> Iterator[StepResult]:
    """Optimizer step ``step + 1`` of direct preference optimisation."""
    started = time.perf_counter()
    batch = draw(pairs, settings, step)
    size = 2 * settings.pairs_per_micro_batch
    batch = batch.with_fields(ref_logprobs=backend.logprobs(batch.split(size), reference=True)[0])
    lr = schedule(step + 1)
    stats = backend.update(batch.split(size), objective, lr)
    yield StepResult(step + 1, _metrics(batch, stats, lr, time.perf_counter() - started))


def rm_step(
    backend: ValueBackend, pairs: Sequence[Pair], settings: PairSettings, schedule: Schedule, step: int
) -> Iterator[StepResult]:
    """Optimizer step ``step + 1`` of a Bradley-Terry reward model."""
    started = time.perf_counter()
    batch = draw(pairs, settings, step)
    lr = schedule(step + 1)
    objective = BradleyTerryObjective(settings.pairs_per_step)
    stats = backend.update(batch.split(2 * settings.pairs_per_micro_batch), objective, lr)
    yield StepResult(step + 1, _metrics(batch, stats, lr, time.perf_counter() - started))


def _metrics(batch: TokenBatch, stats: UpdateStats, lr: float, seconds: float) -> dict[str, float | None]:
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
