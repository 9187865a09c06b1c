"""Coefficients that follow what they cause: the weight of the KL term and that of the entropy bonus."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

KLRule = Callable[[float, float, int], float]
"""(beta, mean KL per token in nats, completions of the optimizer step) -> the next beta."""


@dataclass(frozen=True, slots=True)
class ThresholdRule:
    """Beta times ``up`` where the KL is above ``high``, times ``down`` where it is below ``low`` (the source article).

    ValueError unless 0 <= low < high and down <= 1 <= up.
    """

    high: float = 0.1
    low: float = 0.01
    up: float = 1.2
    down: float = 0.8

    def __post_init__(self) -> None:
        if not (0 <= self.low < self.high and 0 < self.down <= 1 <= self.up < math.inf):
            raise ValueError(f"need 0 <= low < high and down <= 1 <= up, got {self}")

    def __call__(self, beta: float, kl: float, completions: int) -> float:
        if kl > self.high:
            return beta * self.up
        return beta * self.down if kl < self.low else beta


@dataclass(frozen=True, slots=True)
class ProportionalRule:
    """Beta times 1 + clip(KL / target - 1, -0.2, 0.2) * completions / horizon (Ziegler et al., 1909.08593).

    ``target`` is a mean KL per token in nats (their 6 nats are for a whole completion), ``horizon`` a number of
    completions. ValueError unless both are above 0.
    """

    target: float
    horizon: float

    def __post_init__(self) -> None:
        if not (0 < self.target < math.inf and 0 < self.horizon < math.inf):
            raise ValueError(f"target and horizon must be above 0, got {self}")

    def __call__(self, beta: float, kl: float, completions: int) -> float:
        error = min(max(kl / self.target - 1.0, -0.2), 0.2)
        return beta * (1.0 + error * completions / self.horizon)


@dataclass
class KLControl:
    """The weight of the KL term; fixed without a ``rule``.

    ``observe`` once per optimizer step, with the mean over all of its tokens.
    """

    beta: float
    rule: KLRule | None = None
    low: float = 0.0
    high: float = math.inf
    alarm: float = math.inf
    """Nats per token; a step that comes to lie above says so."""
    _alarmed: bool = False

    def observe(self, kl: float | None, completions: int) -> str | None:
        """Move beta; what a person should know of it, if anything. Without a KL, or with a broken one, beta stays."""
        if kl is None:
            return None
        if not math.isfinite(kl):
            return f"the KL of the step is {kl}: beta stays {self.beta:g}"
        if self.rule is not None:
            self.beta = min(max(self.rule(self.beta, kl, completions), self.low), self.high)
        before, self._alarmed = self._alarmed, kl > self.alarm
        if self._alarmed and not before:
            return f"KL spike: {kl:.3g} nats per token is above --kl_alarm {self.alarm:g}; beta is now {self.beta:g}"
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"beta": self.beta, "moves": self.rule is not None, "alarmed": self._alarmed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.rule is not None and state["moves"]:  # a fixed beta, before or now, is the one asked for
            self.beta = min(max(state["beta"], self.low), self.high)
        self._alarmed = state["alarmed"]


@dataclass
class EntropyControl:
    """The weight of the entropy bonus, raised while the entropy is at most ``target`` and lowered while it is above.

    It acts only while the entropy last seen is at most the target (Skywork-OR1, 2505.22312; the paper looks at the
    entropy of the step itself, which would cost a forward pass). ``target`` in nats per token.
    """

    coef: float
    target: float
    delta: float
    low: float = 0.0
    high: float = math.inf
    _last: float | None = None

    @property
    def weight(self) -> float:
        """The coefficient of the next optimizer step."""
        return self.coef if self._last is None or self._last <= self.target else 0.0

    def observe(self, entropy: float | None) -> None:
        """Once per optimizer step, with the mean over all of its tokens."""
        if entropy is None or not math.isfinite(entropy):
            return
        change = self.delta if entropy <= self.target else -self.delta
        self.coef, self._last = min(max(self.coef + change, self.low), self.high), entropy

    def state_dict(self) -> dict[str, Any]:
        return {"coef": self.coef, "last": self._last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.coef, self._last = min(max(state["coef"], self.low), self.high), state["last"]


@dataclass
class Coefficients:
    """The coefficients of the objective that may move, and what moves them."""

    kl: KLControl
    entropy: EntropyControl | None = None
    _held: list[tuple[float, int]] = field(default_factory=list)

    def observe(
        self, kl: float | None, entropy: float | None, completions: int, hold: bool = False
    ) -> tuple[str, ...]:
        """After an optimizer step: its mean KL and entropy per token, its completions; what a person should know.

        ``hold``: a KL term in the reward is that of the whole rollout, so beta waits for the rollout's last step and
        then sees the mean over all of them.
        """
        if self.entropy is not None:
            self.entropy.observe(entropy)
        if kl is not None:
            self._held.append((kl, completions))
        if hold or not self._held:
            return ()
        total = sum(count for _, count in self._held)
        mean = sum(value * count for value, count in self._held) / max(total, 1)
        self._held.clear()
        said = self.kl.observe(mean, total)
        return () if said is None else (said,)

    def state_dict(self) -> dict[str, Any]:
        """Without what is held back: a rollout that is not finished is made again."""
        return {"kl": self.kl.state_dict(), "entropy": self.entropy and self.entropy.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """A controller that the checkpoint's run did not have starts anew."""
        self.kl.load_state_dict(state["kl"])
        if self.entropy is not None and state["entropy"] is not None:
            self.entropy.load_state_dict(state["entropy"])
