"""Calls the rewards of a run on a batch of completions, keeps their failures apart, and sums them by weight.

What can go wrong with a reward, and what comes of it: an exception, no result in time, a crashed process, a NaN or an
infinity: the row has no score of this reward (as if it had returned None), and the failure is counted and said. A
result that is not one score per completion stops the run, and so do too many failures, with the first of them.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace, TracebackType
from typing import Any, Self

from covey.rewards.functions import InvalidResult, RewardError, RewardFunction, with_prefix
from covey.rewards.workers import Call, Failure, WorkerPool
from covey.types import Completion, Prompt, Scored

_LOG = logging.getLogger("covey.rewards")

WINDOW, ENOUGH = 256, 32
"""The share of failures is taken over the last WINDOW completions, once there are ENOUGH."""


@dataclass(frozen=True, slots=True)
class RewardLimits:
    """How rewards of the user's run."""

    workers: int = 0
    """Processes they run in; 0: this one, without a time limit."""
    timeout_s: float = 30.0
    """For one call: of a completion, of the completions of a prompt, or of a batch, as the function takes them."""
    max_failures: float = 0.1
    """Share of completions on which a reward may fail."""


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
    _progress: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(global_step=0, max_steps=0))
    _pool: WorkerPool | None = None

    def __post_init__(self) -> None:
        self._recent = {function.name: deque[bool](maxlen=WINDOW) for function in self.functions}
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

        A total is the weighted sum over the rewards that gave the row a score, None when none did. RewardError when a
        function does not return one score per completion, or fails too often.
        """
        if len(prompts) != len(completions):
            raise ValueError(f"{len(prompts)} prompts for {len(completions)} completions")
        seen = [with_prefix(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
        found = self._all_results(prompts, seen)
        columns: dict[str, list[float | None]] = {}
        stats: dict[str, RewardStats] = {}
        for name, results in zip(self.names, found, strict=True):
            failures = [result for result in results if isinstance(result, Failure)]
            self._stop_if_broken(name, [isinstance(result, Failure) for result in results], failures)
            columns[name] = [None if isinstance(result, Failure) else result for result in results]
            stats[name] = _stats(columns[name], failures)
            if failures:
                _LOG.warning("rewards: %s", _described(name, failures, len(results)))
        scored = tuple(
            Scored(completion, rewards, self._total(rewards))
            for row, completion in enumerate(completions)
            for rewards in ({name: scores[row] for name, scores in columns.items()},)
        )
        unscored = sum(item.total is None for item in scored)
        if unscored:
            _LOG.warning("rewards: %d of %d completions got no score and are left out", unscored, len(scored))
        return ScoredBatch(scored, stats, unscored)

    def _all_results(self, prompts: Sequence[Prompt], seen: Sequence[Completion]) -> list[list[float | Failure | None]]:
        """Per function and row, a score, None or a Failure."""
        jobs = [(f, rows) for f, function in enumerate(self.functions) for rows in function.parts(prompts)]
        results = self._run(jobs, prompts, seen)
        again: list[tuple[int, list[int]]] = []
        for (f, rows), result in zip(jobs, results, strict=True):
            if isinstance(result, Failure) and len(rows) > 1 and self.functions[f].divisible:
                _LOG.warning("rewards: %s on a whole batch; asking it one by one", _headline(self.names[f], result))
                again += [(f, [row]) for row in rows]
        jobs, results = jobs + again, results + self._run(again, prompts, seen)
        found: list[list[float | Failure | None]] = [[None] * len(seen) for _ in self.functions]
        for (f, rows), result in zip(jobs, results, strict=True):
            for k, row in enumerate(rows):
                found[f][row] = result if isinstance(result, Failure) else _finite(self.names[f], result[k])
        return found

    def _run(
        self, jobs: Sequence[tuple[int, list[int]]], prompts: Sequence[Prompt], seen: Sequence[Completion]
    ) -> list[Any | Failure]:
        """One list of scores or a Failure per job; RewardError on a result that is not one score per completion."""
        limit = self.limits.timeout_s
        calls = [
            Call(f, ([prompts[row] for row in rows], [seen[row] for row in rows], self._progress), limit)
            for f, rows in jobs
        ]
        results: list[Any | Failure] = [None] * len(calls)
        apart = [k for k, call in enumerate(calls) if self._pool is not None and call.function in self.isolated]
        for k in sorted(set(range(len(calls))) - set(apart)):
            results[k] = _called(self.functions[calls[k].function], calls[k].arguments)
        if self._pool is not None and apart:
            for k, result in zip(apart, self._pool.run([calls[k] for k in apart], self.check), strict=True):
                results[k] = result
        for result in results:
            if isinstance(result, Failure) and result.kind == "invalid":
                raise InvalidResult(result.text)
        return results

    def _stop_if_broken(self, name: str, failed: Sequence[bool], failures: Sequence[Failure]) -> None:
        recent = self._recent[name]
        recent.extend(failed)
        share = sum(recent) / len(recent) if recent else 0.0
        if share > self.limits.max_failures and (all(failed) or len(recent) >= ENOUGH):
            raise RewardError(
                f"reward {name!r} failed on {len(failures)} of {len(failed)} completions, {share:.0%} of the last"
                f" {len(recent)} (--max_reward_failures {self.limits.max_failures:g}). The first failure:"
                f"\n{_headline(name, failures[0])}\n{failures[0].text}"
            )

    def _total(self, rewards: Mapping[str, float | None]) -> float | None:
        terms = [
            weight * score for weight, score in zip(self.weights, rewards.values(), strict=True) if score is not None
        ]
        return sum(terms) if terms else None


def _called(function: RewardFunction, arguments: tuple[Any, ...]) -> Any | Failure:
    """A call in this process, with the outcome that it would have in a worker."""
    try:
        return function.scores(*arguments)
    except InvalidResult:
        raise
    except RewardError as error:
        return Failure("error", str(error))
    except Exception:
        return Failure("error", traceback.format_exc().rstrip())


def _finite(name: str, score: float | None) -> float | Failure | None:
    if score is None or math.isfinite(score):
        return score
    return Failure("nan", f"it returned {score}")


def _headline(name: str, failure: Failure) -> str:
    what = {"error": "raised", "timeout": "took too long", "died": "lost its process", "nan": "returned no number"}
    return f"reward {name!r} {what[failure.kind]}"


def _described(name: str, failures: Sequence[Failure], rows: int) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(failure.kind for failure in failures).items())
    last_line = failures[0].text.splitlines()[-1]
    return f"{name} failed on {len(failures)} of {rows} completions ({kinds}), which get no score of it: {last_line}"


def _stats(scores: Iterable[float | None], failures: Sequence[Failure]) -> RewardStats:
    rows = list(scores)
    given = [score for score in rows if score is not None]
    mean = sum(given) / len(given) if given else None
    return RewardStats(mean, len(given), len(rows) - len(given) - len(failures), len(failures))
