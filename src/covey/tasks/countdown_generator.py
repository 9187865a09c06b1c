"""Countdown puzzles: families, the fixed train/held-out split, listing, sampling, and a random baseline answer.

A *problem* is a multiset of numbers and a target; the order in which the numbers are shown is not part of it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from covey.errors import UserError
from covey.tasks.countdown_solver import (
    ANY_STEPS,
    OPERATORS,
    Node,
    Rules,
    Tree,
    Value,
    combine,
    reachable_values,
    tree_text,
)

Split = Literal["train", "heldout"]

HELDOUT_FRACTION = 0.75
"""Share of all problems that no training set may hold. A constant, so that every spec and seed agree on the split."""

_SPLIT_SALT = "covey-countdown-split-1"

# Seconds to enumerate one multiset, measured per count of numbers; larger counts are always sampled.
_SECONDS_PER_MULTISET = {2: 2e-5, 3: 1e-4, 4: 5e-4}
_ENUMERATION_BUDGET_S = 2.5


@dataclass(frozen=True, slots=True)
class Problem:
    """One puzzle as shown, e.g. ``Problem((9, 3, 4), 24)``."""

    nums: tuple[int, ...]
    target: int

    @property
    def key(self) -> Problem:
        """The problem itself: numbers sorted. Two puzzles are the same problem when their keys are equal."""
        return Problem(tuple(sorted(self.nums)), self.target)


@dataclass(frozen=True, slots=True)
class CountdownSpec:
    """A family of puzzles. All ranges include both ends."""

    num_numbers: tuple[int, int] = (3, 3)
    number_range: tuple[int, int] = (1, 9)
    operators: str = OPERATORS
    target_range: tuple[int, int] = (5, 60)
    require_integer_steps: bool = True
    """Every puzzle then has a solution without fractions on the way (the checker accepts any exact solution)."""

    def __post_init__(self) -> None:
        limits = {"num_numbers": (2, 6), "number_range": (1, 1000), "target_range": (-100_000, 100_000)}
        for name, (low, high) in limits.items():
            first, last = {
                "num_numbers": self.num_numbers,
                "number_range": self.number_range,
                "target_range": self.target_range,
            }[name]
            if not low <= first <= last <= high:
                raise UserError(
                    f"countdown {name} is {first}..{last}; it must go from low to high within {low}..{high}."
                )
        if not self.operators or set(self.operators) - set(OPERATORS) or len(set(self.operators)) < len(self.operators):
            raise UserError(f"countdown operators are {self.operators!r}; choose distinct ones among {OPERATORS!r}.")

    @property
    def rules(self) -> Rules:
        """What a solution of a puzzle may do."""
        return Rules(self.operators, self.require_integer_steps)


def split_of(problem: Problem) -> Split:
    """The side of the split a problem is on: a fixed hash of its sorted numbers and target, nothing else."""
    key = problem.key
    text = f"{_SPLIT_SALT}:{','.join(map(str, key.nums))}:{key.target}"
    draw = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) / 2**64
    return "heldout" if draw < HELDOUT_FRACTION else "train"


def is_enumerable(spec: CountdownSpec) -> bool:
    """Whether all problems of the family can be listed within a few seconds; larger families are sampled."""
    width = spec.number_range[1] - spec.number_range[0] + 1
    seconds = 0.0
    for count in range(spec.num_numbers[0], spec.num_numbers[1] + 1):
        seconds += math.comb(width + count - 1, count) * _SECONDS_PER_MULTISET.get(count, math.inf)
    return seconds <= _ENUMERATION_BUDGET_S


def problems(spec: CountdownSpec, split: Split) -> list[Problem]:
    """All solvable problems of one side of the split, sorted by (count, numbers, target), numbers ascending.

    UserError when the family is too large to list (see ``is_enumerable``).
    """
    if not is_enumerable(spec):
        raise UserError(f"{spec} holds too many problems to list; use sample_problems.")
    return [problem for problem in _all_problems(spec) if split_of(problem) == split]


def count_problems(spec: CountdownSpec, split: Split | None = None) -> int:
    """Number of distinct solvable problems, of one side of the split or in total; same limit as ``problems``."""
    if split is None:
        return len(problems(spec, "train")) + len(problems(spec, "heldout"))
    return len(problems(spec, split))


def sample_problems(spec: CountdownSpec, split: Split, n: int, seed: int) -> list[Problem]:
    """``n`` problems of one side of the split, each with its numbers in a random order.

    Without replacement while the family lasts, then whole reshuffled passes. Listed families are drawn uniformly over
    problems; families too large to list are drawn by growing random expressions, so problems with more solutions come
    more often. The same arguments always give the same list.
    """
    rng = random.Random(f"covey-countdown:{split}:{seed}")
    pool = problems(spec, split) if is_enumerable(spec) else _grow(spec, split, n, rng)
    if not pool and n > 0:
        raise UserError(f"{spec} has no solvable {split} problem; widen number_range or target_range.")
    drawn: list[Problem] = []
    while len(drawn) < n:
        drawn += rng.sample(pool, min(len(pool), n - len(drawn)))
    return [Problem(tuple(rng.sample(item.nums, len(item.nums))), item.target) for item in drawn]


def random_expression(problem: Problem, rng: random.Random) -> str:
    """A well-formed expression that uses each number once, operators and brackets at random (a baseline answer).

    Every step joins two random parts by a random operator, all equally likely; an operator that would divide by zero
    is drawn again.
    """
    drawn = _random_tree(problem.nums, ANY_STEPS, rng)
    assert drawn is not None  # "+" never fails
    return tree_text(drawn[0])


@lru_cache(maxsize=8)
def _all_problems(spec: CountdownSpec) -> tuple[Problem, ...]:
    low, high = spec.target_range
    found: list[Problem] = []
    for count in range(spec.num_numbers[0], spec.num_numbers[1] + 1):
        for nums in itertools.combinations_with_replacement(range(*_half_open(spec.number_range)), count):
            values = reachable_values(nums, spec.rules)
            targets = sorted(int(value) for value in values if isinstance(value, int) and low <= value <= high)
            found += [Problem(nums, target) for target in targets]
    return tuple(found)


def _half_open(bounds: tuple[int, int]) -> tuple[int, int]:
    return bounds[0], bounds[1] + 1


def _grow(spec: CountdownSpec, split: Split, n: int, rng: random.Random) -> list[Problem]:
    """Up to ``n`` distinct problems; fewer when many draws in a row find nothing new (a nearly exhausted family)."""
    found: dict[Problem, None] = {}
    idle = 0
    for problem in _random_problems(spec, rng):
        if len(found) >= n or idle > 20_000:
            break
        fresh = problem is not None and problem not in found and split_of(problem) == split
        idle = 0 if fresh else idle + 1
        if fresh and problem is not None:
            found[problem] = None
    return list(found)


def _random_problems(spec: CountdownSpec, rng: random.Random) -> Iterator[Problem | None]:
    """Endless problems that some random expression solves; None where a draw leaves the rules or the target range."""
    low, high = spec.target_range
    while True:
        count = rng.randint(*spec.num_numbers)
        nums = [rng.randint(*spec.number_range) for _ in range(count)]
        drawn = _random_tree(nums, spec.rules, rng)
        value = None if drawn is None else drawn[1]
        yield Problem(tuple(sorted(nums)), value) if isinstance(value, int) and low <= value <= high else None


def _random_tree(nums: Sequence[int], rules: Rules, rng: random.Random) -> tuple[Tree, Value] | None:
    """A random tree over all numbers with its value; None when no operator fits the last two parts drawn."""
    parts: list[tuple[Tree, Value]] = [(number, number) for number in nums]
    while len(parts) > 1:
        right_tree, right = parts.pop(rng.randrange(len(parts)))
        left_tree, left = parts.pop(rng.randrange(len(parts)))
        for operator in rng.sample(rules.operators, len(rules.operators)):
            value = combine(operator, left, right)
            if value is not None and (isinstance(value, int) or not rules.integer_steps):
                parts.append((Node(operator, left_tree, right_tree), value))
                break
        else:
            return None
    return parts[0]
