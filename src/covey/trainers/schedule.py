"""Learning-rate schedules, as plain functions of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up to ``peak`` over ``warmup_steps``, then ``kind`` down to 0 at ``total_steps``."""

    kind: str
    peak: float
    warmup_steps: int
    total_steps: int

    def __call__(self, step: int) -> float:
        """Learning rate of optimizer step ``step``, counted from 1."""
        if step <= self.warmup_steps:
            return self.peak * step / self.warmup_steps
        done = (step - self.warmup_steps - 1) / max(1, self.total_steps - self.warmup_steps)
        if self.kind == "constant":
            return self.peak
        if self.kind == "linear":
            return self.peak * (1 - done)
        if self.kind == "cosine":
            return self.peak * 0.5 * (1 + math.cos(math.pi * done))
        raise ValueError(f"unknown schedule {self.kind!r}; known: constant, linear, cosine")


def warmup_steps(total_steps: int, steps: int, ratio: float) -> int:
    """Warm-up length from ``--warmup_steps`` or, when that is 0, ``--warmup_ratio`` (rounded up)."""
    return steps or math.ceil(total_steps * ratio)
