"""Calls the rewards of a run on a batch of completions, keeps their failures apart, and sums them by weight.

What can go wrong with a reward, and what comes of it: an exception, no result in time, a crashed process, a NaN or an
infinity: the row has no score of this reward (as if it had returned None), and the failure is counted and said. A
result that is not one score per completion stops the run, and so do too many failures, with the first of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace, TracebackType
from typing import Any, Self

from covey.rewards.failures import FailureGuard, Hopeless, unpicklable
from covey.rewards.functions import InvalidResult, RewardFunction, with_prefix
from covey.rewards.workers import Call, Failure, Unpicklable, WorkerPool, attempt
from covey.types import Completion, Prompt, Scored

_LOG = logging.getLogger("covey.rewards")

_Job = tuple[int, list[int]]
"""A call: the position of a function, and the rows it is asked about."""
_Score = float | Failure | None

ROWS_PER_LIMIT = 32
"""A call on a whole batch gets the time limit once for every so many completions."""


@dataclass(frozen=True, slots=True)
class RewardLimits:
    """How rewards of the user's run."""

    workers: int = 0
    """Processes they run in; 0: this one, without a time limit."""
    timeout_s: float = 30.0
    """For one completion, the completions of one prompt, or ROWS_PER_LIMIT completions of a batch."""
    max_failures: float = 0.1
    """Share of completions on which a reward may fail; 1: any."""


@dataclass(frozen=True, slots=True)
class RewardStats:
    """What one reward did in one batch. ``n`` rows got a score; ``mean`` is over these, None when there are none."""

    mean: float | None
    n: int
    abstained: int
    """Rows for which the function returned None: it does not apply there."""
    failed: int
    """Rows on which it failed; treated like None, and never silently."""


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """Scores in the order of the completions, statistics per reward name, rows that no reward scored."""

    scored: tuple[Scored, ...]
    stats: Mapping[str, RewardStats]
    unscored: int

    @property
    def failures(self) -> dict[str, int]:
        """Failed rows per reward."""
        return {name: stat.failed for name, stat in self.stats.items()}


@dataclass
class RewardSet:
    """The rewards of a run and their weights, e.g. format 0.4 and accuracy 0.6.

    The ones at the positions ``isolated`` run in worker processes, if ``limits`` says so; close the set to end them.
    """

    functions: tuple[RewardFunction, ...]
    weights: tuple[float, ...]
    isolated: frozenset[int] = frozenset()
    limits: RewardLimits = RewardLimits()
    check: Callable[[], None] = field(default=lambda: None, repr=False)
    """Called while waiting for workers; may raise."""
    _progress: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(global_step=0, max_steps=1))
    _pool: WorkerPool | None = None

    def __post_init__(self) -> None:
        self._guards = [FailureGuard(name, self.limits.max_failures) for name in self.names]
        if self.isolated and self.limits.workers:
            self._pool = WorkerPool([function.scores for function in self.functions], self.limits.workers)

    @property
    def names(self) -> tuple[str, ...]:
        """Metric names, one per reward, all distinct."""
        return tuple(function.name for function in self.functions)

    def at(self, step: int, max_steps: int) -> None:
        """What rewards see as ``trainer_state.global_step`` and ``.max_steps``, as in TRL and ms-swift."""
        self._progress = SimpleNamespace(global_step=step, max_steps=max_steps)

    def close(self) -> None:
        """End the worker processes; safe to call twice."""
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> ScoredBatch:
        """Score row-aligned prompts and completions (a prompt is repeated for each of its completions).

        A total is the weighted sum over the rewards that gave the row a score; None when none did, and when one that
        counts failed: the sum of the others would be another reward. RewardError when a function does not return one
        score per completion, or fails too often.
        """
        if len(prompts) != len(completions):
            raise ValueError(f"{len(prompts)} prompts for {len(completions)} completions")
        seen = [with_prefix(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
        found = self._all_results(prompts, seen)
        columns: dict[str, list[float | None]] = {}
        stats: dict[str, RewardStats] = {}
        lost: set[int] = set()
        for name, weight, guard, results in zip(self.names, self.weights, self._guards, found, strict=True):
            failures = guard.completions(results)
            lost.update(row for row, result in enumerate(results) if weight and isinstance(result, Failure))
            columns[name] = [None if isinstance(result, Failure) else result for result in results]
            stats[name] = _stats(columns[name], failures)
        scored = tuple(
            Scored(completion, rewards, None if row in lost else self._total(rewards))
            for row, completion in enumerate(completions)
            for rewards in ({name: scores[row] for name, scores in columns.items()},)
        )
        unscored = sum(item.total is None for item in scored)
        if unscored:
            _LOG.warning("rewards: %d of %d completions got no score and are left out", unscored, len(scored))
        return ScoredBatch(scored, stats, unscored)

    def _all_results(self, prompts: Sequence[Prompt], seen: Sequence[Completion]) -> list[list[_Score]]:
        """Per function and row, a score, None or a Failure."""
        jobs = [(f, rows) for f, function in enumerate(self.functions) for rows in function.parts(prompts)]
        results = self._run(jobs, prompts, seen)
        again = [
            (f, [row])
            for (f, rows), result in zip(jobs, results, strict=True)
            if len(rows) > 1 and self.functions[f].divisible and self._guards[f].batch(result)
            for row in rows
        ]
        try:
            jobs, results = jobs + again, results + self._run(again, prompts, seen)
        except InvalidResult as error:
            first = next(result for result in results if isinstance(result, Failure))
            raise InvalidResult(f"{error}\nBefore that, on the whole batch: {first.text}") from error
        found: list[list[_Score]] = [[None] * len(seen) for _ in self.functions]
        for (f, rows), result in zip(jobs, results, strict=True):
            for k, row in enumerate(rows):
                found[f][row] = result if isinstance(result, Failure) else _finite(result[k])
        return found

    def _run(self, jobs: Sequence[_Job], prompts: Sequence[Prompt], seen: Sequence[Completion]) -> list[Any | Failure]:
        """One list of scores or a Failure per job; InvalidResult on one that is not one score per completion."""
        calls = []
        for f, rows in jobs:
            limit = self.limits.timeout_s * -(-len(rows) // ROWS_PER_LIMIT)
            arguments = [prompts[row] for row in rows], [seen[row] for row in rows], self._progress
            calls.append(Call(f, arguments, limit))
        apart = [k for k, call in enumerate(calls) if self._pool is not None and call.function in self.isolated]
        here = sorted(set(range(len(calls))) - set(apart))
        results = {k: _called(self.functions[calls[k].function], calls[k].arguments) for k in here}
        results |= zip(apart, self._in_workers([calls[k] for k in apart]), strict=True)
        for result in results.values():
            if isinstance(result, Failure) and result.kind == "invalid":
                raise InvalidResult(result.text)
        return [results[k] for k in range(len(calls))]

    def _in_workers(self, calls: Sequence[Call]) -> list[Any | Failure]:
        if self._pool is None or not calls:
            return []
        try:
            return self._pool.run(calls, self.check, Hopeless(calls) if self.limits.max_failures < 1 else None)
        except Unpicklable as error:
            call = calls[error.number]
            raise unpicklable(self.names[call.function], call, error) from error

    def _total(self, rewards: Mapping[str, float | None]) -> float | None:
        terms = [
            weight * score for weight, score in zip(self.weights, rewards.values(), strict=True) if score is not None
        ]
        return sum(terms) if terms else None


def _called(function: RewardFunction, arguments: tuple[Any, ...]) -> Any | Failure:
    """A call in this process, with the outcome that it would have in a worker."""
    try:
        return attempt(lambda: function.scores(*arguments))
    except SystemExit as error:
        return Failure("died", f"it called sys.exit({error.code})")


def _finite(score: float | None) -> float | Failure | None:
    if score is None or math.isfinite(score):
        return score
    return Failure("nan", f"it returned {score}")


def _stats(scores: Iterable[float | None], failures: Sequence[Failure]) -> RewardStats:
    rows = list(scores)
    given = [score for score in rows if score is not None]
    mean = sum(given) / len(given) if given else None
    return RewardStats(mean, len(given), len(rows) - len(given) - len(failures), len(failures))
