"""Which prompts a rollout takes, and how many completions of each: in order, by stages, or by solve rate."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

from covey.control.order import stream_indices
from covey.control.outcomes import solve_rate
from covey.types import Group


class PromptSource(Protocol):
    """Positions in the list of training prompts."""

    @property
    def num_generations(self) -> int:
        """Completions per prompt of the next rollout."""
        ...

    def take(self, count: int) -> list[int]:
        """The next ``count`` prompts."""
        ...

    def observe(self, indices: Sequence[int], groups: Sequence[Group]) -> str | None:
        """The scored groups of a rollout, and which prompts they answer; says a move and its reason."""
        ...

    def metrics(self) -> dict[str, float | None]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Stream:
    """One prompt after another, in passes, each shuffled anew."""

    def __init__(self, size: int, num_generations: int, shuffle: bool, seed: int) -> None:
        self.num_generations = num_generations
        self._size, self._shuffle, self._seed = size, shuffle, seed
        self._position = 0

    def take(self, count: int) -> list[int]:
        start, self._position = self._position, self._position + count
        return stream_indices(self._size, start, count, self._shuffle, self._seed)

    def observe(self, indices: Sequence[int], groups: Sequence[Group]) -> str | None:
        return None

    def metrics(self) -> dict[str, float | None]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._position = state["position"]


class Stages:
    """From easy to hard, with a group size for each stage (the source article: 4, 8 and 16 completions).

    The prompts are sorted by ``difficulty`` and cut into as many equal parts as there are ``group_sizes``. A stage ends
    when the solve rate of ``PATIENCE`` rollouts in a row is at least ``advance``, or after ``longest`` rollouts; the
    last one has no end.
    """

    PATIENCE = 2

    def __init__(
        self,
        difficulty: Sequence[float],
        group_sizes: Sequence[int],
        advance: float,
        longest: int,
        shuffle: bool,
        seed: int,
    ) -> None:
        order = sorted(range(len(difficulty)), key=lambda i: (difficulty[i], i))
        bounds = [len(order) * k // len(group_sizes) for k in range(len(group_sizes) + 1)]
        self._parts = [order[low:high] for low, high in pairwise(bounds)]
        sized = zip(self._parts, group_sizes, strict=True)
        self._streams = [Stream(len(part), size, shuffle, seed) for part, size in sized]
        self._advance, self._longest = advance, longest
        self._stage = self._rollouts = self._solved = 0

    @property
    def num_generations(self) -> int:
        return self._streams[self._stage].num_generations

    def take(self, count: int) -> list[int]:
        return [self._parts[self._stage][i] for i in self._streams[self._stage].take(count)]

    def observe(self, indices: Sequence[int], groups: Sequence[Group]) -> str | None:
        rates = [found for group in groups if (found := solve_rate(group)) is not None]
        if not rates or self._stage + 1 == len(self._parts):
            return None
        rate = sum(solved / scored for solved, scored in rates) / len(rates)  # every prompt counts once
        self._rollouts += 1
        self._solved = self._solved + 1 if rate >= self._advance else 0
        if self._solved < self.PATIENCE and self._rollouts < self._longest:
            return None
        why = f"solve rate {rate:.2f}" if self._solved >= self.PATIENCE else f"{self._rollouts} rollouts are done"
        self._stage += 1
        self._rollouts = self._solved = 0
        return f"curriculum: stage {self._stage + 1} of {len(self._parts)}, groups of {self.num_generations}: {why}"

    def metrics(self) -> dict[str, float | None]:
        return {"curriculum/stage": float(self._stage + 1)}

    def state_dict(self) -> dict[str, Any]:
        return {
            "stage": self._stage,
            "rollouts": self._rollouts,
            "solved": self._solved,
            "streams": [stream.state_dict() for stream in self._streams],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._stage, self._rollouts, self._solved = state["stage"], state["rollouts"], state["solved"]
        for stream, saved in zip(self._streams, state["streams"], strict=True):
            stream.load_state_dict(saved)


class SolveRates:
    """Prompts that are sometimes solved first: drawn by the expected variance p(1 - p) of their outcome.

    What is known of a prompt is a Beta distribution over its solve rate p, Beta(1, 1) before it was ever tried.
    Every new group first discounts what was known by ``memory``, because the policy moves. Without replacement within
    a rollout as long as the prompts last. A group of G has a gradient with probability 1 - p^G - (1 - p)^G, which is
    largest at p = 0.5.
    """

    def __init__(
        self, size: int, num_generations: int, seed: int, memory: float
    ) -> None:
        self.num_generations = num_generations
        self._size, self._seed, self._memory = size, seed, memory
        self._draws = 0
        self._seen: dict[int, tuple[float, float]] = {}
        self._out: set[int] = set()

    def weight(self, index: int) -> float:
        """Expected p(1 - p): ab / ((a + b)(a + b + 1))."""
        solved, failed = self._seen.get(index, (0.0, 0.0))
        a, b = 1.0 + solved, 1.0 + failed
        return a * b / ((a + b) * (a + b + 1.0))

    def take(self, count: int) -> list[int]:
        rng = random.Random(f"covey-solve-rates:{self._seed}:{self._draws}")
        self._draws += 1
        taken: list[int] = []
        while len(taken) < count:
            if len(self._out) == self._size:
                self._out.clear()
            # Efraimidis and Spirakis (2006): the largest u^(1/w) are a weighted sample without replacement
            keys = {i: rng.random() ** (1.0 / self.weight(i)) for i in range(self._size) if i not in self._out}
            drawn = sorted(keys, key=lambda i: -keys[i])[: count - len(taken)]
            self._out.update(drawn)
            taken += drawn
        return taken

    def observe(self, indices: Sequence[int], groups: Sequence[Group]) -> str | None:
        self._out.clear()  # the rollout is over
        for index, group in zip(indices, groups, strict=True):
            found = solve_rate(group)
            if found is not None:
                solved, scored = found
                before = self._seen.get(index, (0.0, 0.0))
                self._seen[index] = (
                    self._memory * before[0] + solved,
                    self._memory * before[1] + scored - solved,
                )
        return None

    def metrics(self) -> dict[str, float | None]:
        tried = len(self._seen)
        rates = [solved / (solved + failed) for solved, failed in self._seen.values()]
        return {"curriculum/tried": float(tried), "curriculum/solve_rate": sum(rates) / tried if tried else None}

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self._draws, "seen": {index: list(value) for index, value in self._seen.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._draws = state["draws"]
        self._seen = {index: (value[0], value[1]) for index, value in state["seen"].items()}
