"""Exact Countdown solver: which values a set of numbers reaches when each is used exactly once, and how."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

OPERATORS = "+-*/"
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}

Value = int | Fraction
"""An exact value; whole numbers are always ``int``, which is what makes the solver fast."""


@dataclass(frozen=True, slots=True)
class Node:
    """``left operator right``, e.g. ``Node("*", Node("-", 9, 3), 4)`` for (9-3)*4."""

    operator: str
    left: Tree
    right: Tree


Tree = int | Node


def combine(operator: str, left: Value, right: Value) -> Value | None:
    """Exact ``left operator right``; None for a division by zero."""
    if operator == "+":
        result: Value = left + right
    elif operator == "-":
        result = left - right
    elif operator == "*":
        result = left * right
    elif right == 0:
        return None
    else:
        result = Fraction(left) / right
    if isinstance(result, Fraction) and result.denominator == 1:
        return result.numerator
    return result


def tree_value(tree: Tree) -> Value | None:
    """Exact value of a tree; None when it divides by zero somewhere."""
    if isinstance(tree, int):
        return tree
    left, right = tree_value(tree.left), tree_value(tree.right)
    return None if left is None or right is None else combine(tree.operator, left, right)


def tree_text(tree: Tree) -> str:
    """Text with few brackets, e.g. "(9-3)*4"; only the brackets of a+(b+c) and a*(b*c) go, which every order allows."""
    if isinstance(tree, int):
        return str(tree)
    rank = _PRECEDENCE[tree.operator]
    left, right = tree_text(tree.left), tree_text(tree.right)
    if isinstance(tree.left, Node) and _PRECEDENCE[tree.left.operator] < rank:
        left = f"({left})"
    if isinstance(tree.right, Node) and _PRECEDENCE[tree.right.operator] <= rank:
        same = tree.right.operator == tree.operator and tree.operator in "+*"
        right = right if same else f"({right})"
    return f"{left}{tree.operator}{right}"


def tree_steps(tree: Tree) -> list[tuple[Value, str, Value, Value]]:
    """Steps (left, operator, right, result) in the order in which they are computed; ValueError on a zero divisor."""
    if isinstance(tree, int):
        return []
    left, right = tree_value(tree.left), tree_value(tree.right)
    result = None if left is None or right is None else combine(tree.operator, left, right)
    if left is None or right is None or result is None:
        raise ValueError(f"{tree_text(tree)} divides by zero")
    return [*tree_steps(tree.left), *tree_steps(tree.right), (left, tree.operator, right, result)]


@dataclass(frozen=True, slots=True)
class Rules:
    """Which operators exist, and whether every intermediate result must be a whole number."""

    operators: str = OPERATORS
    integer_steps: bool = False


ANY_STEPS = Rules()
"""All four operators, any exact fraction on the way: what the answer checker allows."""


def reachable_values(nums: Sequence[int], rules: Rules = ANY_STEPS) -> frozenset[Value]:
    """All values that use each number exactly once. Six numbers take seconds, three or four take milliseconds."""
    return _Search(rules).values(tuple(sorted(nums)))


def solutions(nums: Sequence[int], target: int, rules: Rules = ANY_STEPS) -> Iterator[Tree]:
    """Yield every solution tree once; a+b and b+a (a*b and b*a) count as the same tree."""
    yield from _Search(rules).trees(tuple(sorted(nums)), target)


def solve(nums: Sequence[int], target: int, rules: Rules = ANY_STEPS) -> Tree | None:
    """One solution tree, or None when there is none."""
    return next(solutions(nums, target, rules), None)


def all_expressions(nums: Sequence[int], target: int, rules: Rules = ANY_STEPS) -> list[str]:
    """All solutions as distinct texts, shortest first; their number grows fast, so keep to three or four numbers."""
    return sorted({tree_text(tree) for tree in solutions(nums, target, rules)}, key=lambda text: (len(text), text))


@lru_cache(maxsize=8192)
def splits(nums: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """All unordered ways to part a sorted multiset into two non-empty sorted multisets (halves: smaller tuple first).

    Example: (2, 2, 6) gives ((2,), (2, 6)) and ((2, 2), (6,)).
    """
    found: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    positions = range(len(nums))
    for size in range(1, len(nums)):
        for chosen in itertools.combinations(positions, size):
            part = tuple(nums[i] for i in chosen)
            rest = tuple(nums[i] for i in positions if i not in chosen)
            found.add((part, rest) if part <= rest else (rest, part))
    return tuple(sorted(found))


@lru_cache(maxsize=16384)
def _small_values(nums: tuple[int, ...], rules: Rules) -> frozenset[Value]:
    """Values of at most three numbers, shared by all searches: they are few and are asked for again and again."""
    return _Search(rules).compute(nums)


class _Search:
    """Values bottom-up over sub-multisets, trees top-down by asking which operand is still missing."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._memo: dict[tuple[int, ...], frozenset[Value]] = {}

    def values(self, nums: tuple[int, ...]) -> frozenset[Value]:
        if len(nums) <= 3:
            return _small_values(nums, self.rules)
        if nums not in self._memo:
            self._memo[nums] = self.compute(nums)
        return self._memo[nums]

    def compute(self, nums: tuple[int, ...]) -> frozenset[Value]:
        if len(nums) == 1:
            return frozenset(nums)
        found: set[Value] = set()
        for part, rest in splits(nums):
            for left, right in itertools.product(self.values(part), self.values(rest)):
                if "+" in self.rules.operators:
                    found.add(_whole(left + right))
                if "-" in self.rules.operators:
                    found.add(_whole(left - right))
                    found.add(_whole(right - left))
                if "*" in self.rules.operators:
                    found.add(_whole(left * right))
                if "/" in self.rules.operators:
                    found.update(self._quotients(left, right))
        return frozenset(found)

    def _quotients(self, left: Value, right: Value) -> Iterator[Value]:
        for above, below in ((left, right), (right, left)):
            if below == 0:
                continue
            if isinstance(above, int) and isinstance(below, int) and above % below == 0:
                yield above // below
            elif not self.rules.integer_steps:
                yield _whole(Fraction(above) / below)

    def trees(self, nums: tuple[int, ...], target: Value) -> Iterator[Tree]:
        if len(nums) == 1:
            if nums[0] == target:
                yield nums[0]
            return
        for part, rest in splits(nums):
            for operator in self.rules.operators:
                orders = [(part, rest)] if operator in "+*" or part == rest else [(part, rest), (rest, part)]
                for first, second in orders:
                    yield from self._joined(operator, first, second, target)

    def _joined(self, operator: str, first: tuple[int, ...], second: tuple[int, ...], target: Value) -> Iterator[Tree]:
        # A commutative operator on two equal halves meets every pair twice; keep one of the two.
        mirrored = operator in "+*" and first == second
        right_values = self.values(second)
        for left_value in self.values(first):
            for right_value in self._missing(operator, left_value, target, right_values):
                for left, right in itertools.product(self.trees(first, left_value), self.trees(second, right_value)):
                    if not mirrored or tree_text(left) <= tree_text(right):
                        yield Node(operator, left, right)

    def _missing(self, operator: str, left: Value, target: Value, candidates: frozenset[Value]) -> Iterator[Value]:
        """Right operands among the candidates with ``left operator right == target``."""
        if operator in "*/" and left == 0:
            if target == 0:
                yield from (right for right in candidates if operator == "*" or right != 0)
            return
        if operator == "+":
            needed: Value | None = target - left
        elif operator == "-":
            needed = left - target
        elif operator == "*":
            needed = Fraction(target) / left
        else:
            needed = None if target == 0 else Fraction(left) / target
        # A whole Fraction equals and hashes like its int, so set membership needs no conversion.
        if needed is not None and needed in candidates:
            yield _whole(needed)


def _whole(value: Value) -> Value:
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value
