"""Means over the steps between two log lines, where "no value" stays "no value".

Metric keys of a GRPO run (a line of metrics.jsonl): ``step, reward/mean, reward/std, reward/<name>,
frac_reward_zero_std, kl, beta, clip_ratio, entropy, grad_norm, lr, completions/mean_length, completions/clipped_ratio,
accuracy_when_formatted, time/rollout_s, time/reward_s, time/train_s, time/step_s, tokens_per_s, memory/rss_gb``;
README.md explains them and those that come with an option.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from covey.runlog.jsonl import NONFINITE_KEY

COUNT_PREFIX = "n/"
"""``n/<key>``: over how many steps the mean of ``<key>`` runs, written where that is fewer than the window has."""


@dataclass(frozen=True, slots=True)
class WindowMeans:
    """The means of one window. Example: f2 abstains in the second of three steps: ``counts["reward/f2"]`` is 2."""

    steps: int
    means: Mapping[str, float | None]
    """None: no step of the window had a value."""
    counts: Mapping[str, int]
    """How many steps had a value, per key."""
    nonfinite: int
    """NaN or infinite values that came in; they count as no value."""

    def as_metrics(self) -> dict[str, float | None]:
        """For the log: the means, ``n/<key>`` where steps are missing, and ``nonfinite_values`` if there were any."""
        missing: dict[str, float | None] = {
            COUNT_PREFIX + key: count for key, count in self.counts.items() if count < self.steps
        }
        bad: dict[str, float | None] = {NONFINITE_KEY: self.nonfinite} if self.nonfinite else {}
        return {**self.means, **missing, **bad}


class MetricWindow:
    """Collects the metrics of steps until they are logged; keeps sums only, and not a single tensor."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._steps = 0
        self._nonfinite = 0

    def add(self, metrics: Mapping[str, float | None]) -> None:
        """Take in the metrics of one step; None, a missing key and a non-finite value all mean "no value"."""
        self._steps += 1
        for key, value in metrics.items():
            self._counts.setdefault(key, 0)
            if value is None:
                continue
            number = float(value)  # detaches: a tensor would keep its graph alive
            if not math.isfinite(number):
                self._nonfinite += 1
                continue
            self._sums[key] = self._sums.get(key, 0.0) + number
            self._counts[key] += 1

    def flush(self) -> WindowMeans:
        """The means since the last flush; the window starts anew."""
        means = {key: self._sums[key] / count if count else None for key, count in self._counts.items()}
        result = WindowMeans(self._steps, means, self._counts, self._nonfinite)
        self._sums, self._counts = {}, {}
        self._steps = self._nonfinite = 0
        return result
