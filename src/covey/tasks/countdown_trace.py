"""Worked solutions for the warm start: a systematic search that a small model can carry out.

One line per first operation on a pair: its value, the number that is left, then every second operation on these two up
to the first hit. Two things were learned from the first divergences of sampled traces (benchmarks/countdown): the
left-over number is written out, because a small model adds two numbers that stand side by side far more reliably than
one of them with a number it has to work out; and no line depends on whether the value is above or below the target,
because that comparison was the next most frequent slip. Example, 57 from 8, 11, 3::

    <think>8*11=88 3 +91 -85
    8+11=19 3 *57!</think>
    <answer>(8+11)*3</answer>
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from covey.tasks.base import think_and_answer
from covey.tasks.countdown_generator import Problem, random_expression
from covey.tasks.countdown_solver import solve

PRODUCT_CAP = 99


def _first_operations(a: int, b: int) -> Iterator[tuple[str, int]]:
    high, low = max(a, b), min(a, b)
    yield f"{a}*{b}", a * b  # first, because most solutions multiply: shorter traces
    yield f"{a}+{b}", a + b
    if high > low:
        yield f"{high}-{low}", high - low
    if low > 1 and high % low == 0:
        yield f"{high}/{low}", high // low


def _second_operations(value: int, rest: int, target: int) -> Iterator[tuple[str, int]]:
    if value * rest <= PRODUCT_CAP:
        yield "*", value * rest
    yield "+", value + rest
    if value < 10 <= target:
        return  # a one-digit value can't come down to a two-digit target
    yield "-", abs(value - rest)
    if rest > 1 and value % rest == 0:
        yield "/", value // rest


def _joined(expression: str, value: int, operator: str, rest: int) -> str:
    """The solving expression; a difference is written with its larger part first."""
    if operator in "*/":
        return f"({expression}){operator}{rest}"
    if operator == "-" and rest > value:
        return f"{rest}-({expression})"
    return f"{expression}{operator}{rest}"


def search_lines(nums: Sequence[int], target: int) -> Iterator[tuple[str, str, bool]]:
    """The lines of the search over three numbers up to the first hit: text, last expression tried, whether it hits."""
    for first, second in ((0, 1), (0, 2), (1, 2)):
        rest = nums[3 - first - second]
        for expression, value in _first_operations(nums[first], nums[second]):
            line, tried = f"{expression}={value} {rest}", ""
            for operator, result in _second_operations(value, rest, target):
                line += f" {operator}{result}"
                tried = _joined(expression, value, operator, rest)
                if result == target:
                    yield line + "!", tried, True
                    return
            yield line, tried, False


def worked_solution(nums: Sequence[int], target: int) -> str | None:
    """The completion a warm start learns from, or None if the search does not reach the target."""
    lines, tried, hit = _search(nums, target)
    return think_and_answer("\n".join(lines), tried) if hit else None


def exhausted_search(nums: Sequence[int], target: int) -> str | None:
    """The whole search when nothing reaches the target, answered with the last thing tried; None if something does.

    A model that slips passes over the hit. Unless it has seen a search come to its end it then goes on for ever.
    """
    lines, tried, hit = _search(nums, target)
    return None if hit else think_and_answer("\n".join(lines), tried)


def guess(problem: Problem, rng: random.Random) -> str:
    """An answer given at once, without a thought: a random expression, well-formed and nearly always wrong."""
    return think_and_answer("", random_expression(problem, rng))


def _search(nums: Sequence[int], target: int) -> tuple[list[str], str, bool]:
    found = list(search_lines(nums, target))
    _, tried, hit = found[-1]
    return [line for line, _, _ in found], tried, hit


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """What a warm start is shown: worked solutions, and shares of two other kinds."""

    guess_share: float = 0.0
    unsolvable_share: float = 0.0
    """Puzzles with the numbers of a training problem and a target that they can't reach, searched to the end."""

    def of(self, problem: Problem, targets: tuple[int, int], rng: random.Random) -> tuple[Problem, str] | None:
        """A puzzle and the completion shown for it, or None where the search does not reach the target.

        ``targets`` bounds the unreachable ones; where every target can be reached the puzzle stays as it is.
        """
        kind = rng.random()
        if kind < self.guess_share:
            return problem, guess(problem, rng)
        if kind < self.guess_share + self.unsolvable_share:
            low, high = targets
            for target in rng.sample(range(low, high + 1), high + 1 - low):
                text = exhausted_search(problem.nums, target)
                if text is not None and solve(problem.nums, target) is None:
                    return Problem(problem.nums, target), text
        text = worked_solution(problem.nums, problem.target)
        return None if text is None else (problem, text)
