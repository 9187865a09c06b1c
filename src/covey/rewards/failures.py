"""When failures of a reward stop the run, and how they are told."""

from __future__ import annotations

import logging
import pickle
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from covey.rewards.functions import RewardError
from covey.rewards.workers import Call, Failure

_LOG = logging.getLogger("covey.rewards")

WINDOW, ENOUGH = 256, 32
"""The share of failures is taken over the last WINDOW completions, once there are ENOUGH."""
MAX_BATCHES = 3
"""Batches in a row on which a function may fail as a whole."""


class FailureGuard:
    """Watches one reward; ``max_failures`` is the share of completions on which it may fail, 1: any."""

    def __init__(self, name: str, max_failures: float) -> None:
        self._name, self._limit = name, max_failures
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self._batches = 0
        self._first: Failure | None = None

    def batch(self, result: object) -> bool:
        """What a call on a whole batch gave; whether it is to be repeated row by row.

        RewardError when that becomes a habit: a rank or a mean over the batch would silently be something else.
        """
        if not isinstance(result, Failure):
            self._batches = 0
            return False
        self._first = self._first or result
        self._batches += 1
        if self._batches >= MAX_BATCHES:
            raise RewardError(
                f"{headline(self._name, result)} on {MAX_BATCHES} batches in a row. Row by row it may mean something"
                f" else (a rank, a mean over the batch), so the run stops:\n{result.text}"
            )
        told = headline(self._name, result)
        _LOG.warning("rewards: %s on a whole batch; asking it one by one: %s", told, result.last_line)
        return True

    def completions(self, results: Sequence[object]) -> list[Failure]:
        """The failures among the results of a batch, said; RewardError with the first one when they are too many."""
        failures = [result for result in results if isinstance(result, Failure)]
        self._recent.extend(isinstance(result, Failure) for result in results)
        if not failures:
            return failures
        self._first = first = self._first or failures[0]
        share = sum(self._recent) / len(self._recent)
        here = len(failures) / len(results)
        too_many = len(self._recent) >= ENOUGH and share > self._limit
        too_many = too_many or (len(results) >= ENOUGH and here > self._limit) or here == 1
        if too_many and self._limit < 1:
            raise RewardError(
                f"reward {self._name!r} failed on {len(failures)} of {len(results)} completions, {share:.0%} of the"
                f" last {len(self._recent)} (--max_reward_failures {self._limit:g}). The first failure:"
                f"\n{headline(self._name, first)}\n{first.text}"
            )
        _LOG.warning("rewards: %s", _described(self._name, failures, len(results)))
        return failures


class Hopeless:
    """Whether nothing but failures has come of a function, often enough not to wait for the other calls."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._tally: dict[int, list[int]] = {call.function: [0, 0] for call in calls}

    def __call__(self, number: int, result: Any) -> bool:
        tally = self._tally[self._calls[number].function]
        failed = isinstance(result, Failure)
        tally[failed] += 1
        return failed and tally[False] == 0 and tally[True] >= ENOUGH


def unpicklable(name: str, call: Call, error: Exception) -> RewardError:
    """Names the column of a call that can't be sent to another process."""
    for prompt in call.arguments[0]:
        for column, value in prompt.columns.items():
            try:
                pickle.dumps(value)
            except Exception:
                return RewardError(
                    f"reward {name!r}: the column {column!r} holds a {type(value).__name__} that can not be sent to its"
                    f" process ({error}); leave it out, or use --reward_workers 0"
                )
    return RewardError(f"reward {name!r}: its arguments can not be sent to its process ({error})")


def headline(name: str, failure: Failure) -> str:
    """What happened, in a few words."""
    what = {
        "error": "raised",
        "timeout": "took too long",
        "died": "lost its process",
        "nan": "returned no number",
        "given up": "was not asked any more",
        "invalid": "returned something else than scores",
    }
    return f"reward {name!r} {what[failure.kind]}"


def _described(name: str, failures: Sequence[Failure], rows: int) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(failure.kind for failure in failures).items())
    why = failures[0].last_line
    return f"{name} failed on {len(failures)} of {rows} completions ({kinds}), which get no score of it: {why}"
