"""The solver against brute force over every expression string, evaluated by the independent answer checker."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest

from covey.tasks.countdown_expr import ExpressionError, is_correct, parse
from covey.tasks.countdown_solver import (
    Node,
    Rules,
    all_expressions,
    reachable_values,
    solutions,
    solve,
    splits,
    tree_steps,
    tree_text,
    tree_value,
)

SHAPES = {
    2: ["{0}{a}{1}"],
    3: ["({0}{a}{1}){b}{2}", "{0}{a}({1}{b}{2})"],
    4: [
        "(({0}{a}{1}){b}{2}){c}{3}",
        "({0}{a}({1}{b}{2})){c}{3}",
        "({0}{a}{1}){b}({2}{c}{3})",
        "{0}{a}(({1}{b}{2}){c}{3})",
        "{0}{a}({1}{b}({2}{c}{3}))",
    ],
}


def _brute_force(nums: tuple[int, ...]) -> set[Fraction]:
    values: set[Fraction] = set()
    for order in set(itertools.permutations(nums)):
        for operators in itertools.product("+-*/", repeat=len(nums) - 1):
            named = dict(zip("abc", operators, strict=False))
            for shape in SHAPES[len(nums)]:
                try:
                    values.add(parse(shape.format(*order, **named)).value())
                except ExpressionError:
                    continue
    return values


@pytest.mark.parametrize("nums", [(4, 6), (3, 3), (0, 5), (2, 3, 7), (5, 5, 1), (0, 0, 2), (3, 3, 8, 8), (1, 2, 5, 9)])
def test_reachable_values_equal_brute_force(nums: tuple[int, ...]) -> None:
    assert reachable_values(nums) == _brute_force(nums)


def test_values_of_two_numbers_by_hand() -> None:
    assert reachable_values([6, 4]) == {10, 2, -2, 24, Fraction(3, 2), Fraction(2, 3)}
    assert reachable_values([6, 4], Rules(integer_steps=True)) == {10, 2, -2, 24}
    assert reachable_values([6, 3], Rules("/", integer_steps=True)) == {2}
    assert reachable_values([6, 4], Rules("+*")) == {10, 24}
    assert reachable_values([0, 5], Rules("/")) == {0}  # 0/5; 5/0 has no value


def test_fraction_on_the_way() -> None:
    assert all_expressions([3, 3, 8, 8], 24) == ["8/(3-8/3)"]
    assert solve([3, 3, 8, 8], 24, Rules(integer_steps=True)) is None


def test_all_expressions_by_hand() -> None:
    assert all_expressions([2, 3, 4], 24) == ["2*3*4", "2*4*3"]
    expected = ["1*4*6", "1*6*4", "4*6/1", "4/1*6", "6/1*4", "4/(1/6)", "6/(1/4)"]
    assert all_expressions([1, 4, 6], 24) == expected
    assert all_expressions([2, 2], 0) == ["2-2"]
    assert all_expressions([5, 7], 100) == []


@pytest.mark.parametrize("integer_steps", [False, True])
def test_every_solution_passes_the_checker_and_a_solution_exists_exactly_when_reachable(integer_steps: bool) -> None:
    rng = random.Random(2)
    rules = Rules(integer_steps=integer_steps)
    for count in (3, 3, 3, 3, 4, 4):
        nums = [rng.randint(0, 12) for _ in range(count)]
        values = reachable_values(nums, rules)
        for target in (0, 1, 7, 24, -3):
            found = list(itertools.islice(solutions(nums, target, rules), 50))
            assert bool(found) == (target in values)
            for tree in found:
                assert is_correct(tree_text(tree), nums, target)
                if integer_steps:
                    assert all(isinstance(step[3], int) for step in tree_steps(tree))


def test_six_numbers() -> None:
    nums = [25, 3, 7, 50, 9, 2]
    tree = solve(nums, 352, Rules(integer_steps=True))
    assert tree is not None
    assert is_correct(tree_text(tree), nums, 352)


def test_trees_are_distinct() -> None:
    trees = list(solutions([2, 2, 2, 2], 8))
    assert len(trees) == len(set(trees))
    assert Node("+", Node("+", 2, 2), Node("+", 2, 2)) in trees
    total, product = Node("+", 2, 2), Node("*", 2, 2)
    assert (Node("+", total, product) in trees) != (Node("+", product, total) in trees)


def test_splits_of_a_multiset() -> None:
    assert splits((2, 2, 6)) == (((2,), (2, 6)), ((2, 2), (6,)))


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (Node("*", Node("-", 9, 3), 4), "(9-3)*4"),
        (Node("-", 9, Node("-", 4, 3)), "9-(4-3)"),
        (Node("-", Node("-", 9, 4), 3), "9-4-3"),
        (Node("+", 9, Node("+", 4, 3)), "9+4+3"),
        (Node("/", 9, Node("*", 4, 3)), "9/(4*3)"),
        (Node("*", 9, Node("/", 4, 3)), "9*(4/3)"),
        (Node("+", Node("*", 9, 4), Node("/", 6, 3)), "9*4+6/3"),
    ],
)
def test_text_has_the_value_of_the_tree(tree: Node, text: str) -> None:
    assert tree_text(tree) == text
    assert parse(text).value() == tree_value(tree)


def test_steps_are_in_the_order_of_computation() -> None:
    assert tree_steps(Node("*", Node("-", 9, 3), 4)) == [(9, "-", 3, 6), (6, "*", 4, 24)]
    with pytest.raises(ValueError, match="divides by zero"):
        tree_steps(Node("/", 4, Node("-", 3, 3)))
