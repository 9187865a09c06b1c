"""The ladder against groups without variance: a remedy more while there are too many of them, one less when they go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Remedy = Literal["drop", "refill", "budget", "group_size", "temperature"]
"""drop: such groups leave the denominators; refill: other prompts are sampled in their place (DAPO's dynamic sampling);
budget: more samples of the same prompt until it has both outcomes; larger groups; a higher temperature."""


@dataclass
class Ladder:
    """The remedies in force. ``rungs`` are added one at a time, ``always`` are never taken away.

    It climbs after ``patience`` rollouts in a row with a share of groups of one outcome above ``high``, and steps down
    after as many below ``low``.
    """

    rungs: tuple[Remedy, ...] = ()
    always: frozenset[Remedy] = frozenset()
    high: float = 0.7
    low: float = 0.4
    patience: int = 2
    level: int = 0
    _above: int = 0
    _below: int = 0

    @property
    def remedies(self) -> frozenset[Remedy]:
        """Those in force for the next rollout."""
        return self.always | frozenset(self.rungs[: self.level])

    def observe(self, share: float | None) -> str | None:
        """The share of groups with one outcome among those sampled in a rollout; says a move and its reason."""
        if share is None or not self.rungs:
            return None
        self._above = self._above + 1 if share > self.high else 0
        self._below = self._below + 1 if share < self.low else 0
        if self._above >= self.patience and self.level < len(self.rungs):
            return self._move(1, f"{share:.2f} of the groups have one outcome, above {self.high:g}")
        if self._below >= self.patience and self.level > 0:
            return self._move(-1, f"only {share:.2f} of the groups have one outcome, below {self.low:g}")
        return None

    def _move(self, by: int, why: str) -> str:
        changed = self.rungs[self.level if by > 0 else self.level - 1]
        self.level += by
        self._above = self._below = 0
        verb = "on" if by > 0 else "off"
        return f"ladder: {changed} {verb} (rung {self.level} of {len(self.rungs)}): {why} {self.patience} times running"

    def state_dict(self) -> dict[str, Any]:
        return {"level": self.level, "above": self._above, "below": self._below}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.level = min(state["level"], len(self.rungs))
        self._above, self._below = state["above"], state["below"]
