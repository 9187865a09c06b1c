"""Training on pairs of a chosen and a rejected completion: DPO and reward models."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from covey.algo.preference import BradleyTerryObjective, PreferenceObjective
from covey.backends.base import TrainBackend, ValueBackend
from covey.tensors import TokenBatch, make_batch
from covey.trainers.examples import ExampleSettings, draw, example_metrics
from covey.trainers.schedule import Schedule
from covey.types import StepResult


@dataclass(frozen=True)
class Pair:
    """One prompt and two completions, end tokens included."""

    prompt_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]


def pair_batch(pairs: Sequence[Pair]) -> TokenBatch:
    """A group per pair, the chosen completion first."""
    return make_batch([p.prompt_ids for p in pairs], [[p.chosen_ids, p.rejected_ids] for p in pairs])


def dpo_step(
    backend: TrainBackend,
    pairs: Sequence[Pair],
    settings: ExampleSettings,
    objective: PreferenceObjective,
    schedule: Schedule,
    step: int,
) -> Iterator[StepResult]:
    """Optimizer step ``step + 1`` of direct preference optimisation."""
    started = time.perf_counter()
    batch = pair_batch(draw(pairs, settings, step))
    size = 2 * settings.per_micro_batch
    batch = batch.with_fields(ref_logprobs=backend.logprobs(batch.split(size), reference=True)[0])
    lr = schedule(step + 1)
    stats = backend.update(batch.split(size), objective, lr)
    yield StepResult(step + 1, example_metrics(batch, stats, lr, time.perf_counter() - started))


def rm_step(
    backend: ValueBackend, pairs: Sequence[Pair], settings: ExampleSettings, schedule: Schedule, step: int
) -> Iterator[StepResult]:
    """Optimizer step ``step + 1`` of a Bradley-Terry reward model."""
    started = time.perf_counter()
    batch = pair_batch(draw(pairs, settings, step))
    lr = schedule(step + 1)
    objective = BradleyTerryObjective(settings.per_step)
    stats = backend.update(batch.split(2 * settings.per_micro_batch), objective, lr)
    yield StepResult(step + 1, example_metrics(batch, stats, lr, time.perf_counter() - started))
