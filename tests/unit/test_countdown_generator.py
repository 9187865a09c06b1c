"""Puzzles: solvable, deterministic, and split as problems, whatever the seed and the order of the numbers."""

from __future__ import annotations

import itertools
import random

import pytest

from covey.errors import UserError
from covey.tasks.base import PromptTemplate
from covey.tasks.countdown import problem_to_prompt
from covey.tasks.countdown_expr import is_correct, parse
from covey.tasks.countdown_generator import (
    CountdownSpec,
    Problem,
    count_problems,
    is_enumerable,
    problems,
    random_expression,
    sample_problems,
    split_of,
)
from covey.tasks.countdown_solver import reachable_values, solve, tree_text

SMALL = CountdownSpec()
LARGE = CountdownSpec(num_numbers=(4, 5), number_range=(1, 50), target_range=(10, 99))


@pytest.mark.parametrize(
    ("highest", "targets", "total"),
    [(9, (5, 60), 1578), (9, (10, 99), 1360), (20, (5, 60), 11728), (20, (10, 99), 12166)],
)
def test_sizes_of_the_three_number_families(highest: int, targets: tuple[int, int], total: int) -> None:
    assert count_problems(CountdownSpec(number_range=(1, highest), target_range=targets)) == total


def test_listing_is_the_whole_family() -> None:
    spec = CountdownSpec(num_numbers=(2, 2), number_range=(1, 3), operators="+*/", target_range=(2, 4))
    # pairs 11 12 13 22 23 33: sums 2 3 4 4 5 6, products 1 2 3 4 6 9, whole quotients 1 2 3 1 - 1; kept: 2..4
    expected = {((1, 1), 2), ((1, 2), 2), ((1, 2), 3), ((1, 3), 3), ((1, 3), 4), ((2, 2), 4)}
    listed = [*problems(spec, "train"), *problems(spec, "heldout")]
    assert len(listed) == count_problems(spec) == 6
    assert {(problem.nums, problem.target) for problem in listed} == expected


def test_train_and_heldout_are_disjoint_and_about_one_to_three() -> None:
    train, heldout = problems(SMALL, "train"), problems(SMALL, "heldout")
    assert not set(train) & set(heldout)
    assert 0.71 < len(heldout) / (len(train) + len(heldout)) < 0.79
    assert count_problems(SMALL, "heldout") == len(heldout)


def test_split_ignores_order_seed_and_family() -> None:
    wider = CountdownSpec(number_range=(1, 12), target_range=(1, 99), require_integer_steps=False)
    drawn = sample_problems(wider, "train", 2000, seed=1) + sample_problems(LARGE, "train", 300, seed=2)
    held = sample_problems(SMALL, "heldout", 300, seed=9) + sample_problems(LARGE, "heldout", 300, seed=2)
    assert not {problem.key for problem in drawn} & {problem.key for problem in held}
    assert {split_of(problem) for problem in drawn} == {"train"}
    assert {split_of(problem) for problem in held} == {"heldout"}
    for problem in held[:50]:
        for nums in itertools.permutations(problem.nums):
            assert split_of(Problem(nums, problem.target)) == "heldout"


def test_split_is_frozen() -> None:
    # Literals of the first release: a change here silently leaks held-out puzzles into old training sets.
    sides = [split_of(Problem((3, 4, 9), target)) for target in range(20, 30)]
    assert "".join(side[0] for side in sides) == "hhhhthhhtt"


@pytest.mark.parametrize("spec", [SMALL, CountdownSpec(num_numbers=(4, 4), number_range=(1, 5)), LARGE])
def test_every_puzzle_is_solvable_within_its_rules(spec: CountdownSpec) -> None:
    for problem in sample_problems(spec, "heldout", 30, seed=0):
        assert spec.num_numbers[0] <= len(problem.nums) <= spec.num_numbers[1]
        assert all(spec.number_range[0] <= number <= spec.number_range[1] for number in problem.nums)
        assert spec.target_range[0] <= problem.target <= spec.target_range[1]
        tree = solve(problem.nums, problem.target, spec.rules)
        assert tree is not None
        assert is_correct(tree_text(tree), problem.nums, problem.target)


def test_fractional_family_holds_more_problems() -> None:
    spec = CountdownSpec(num_numbers=(4, 4), number_range=(3, 8), target_range=(24, 24), require_integer_steps=False)
    whole = CountdownSpec(num_numbers=(4, 4), number_range=(3, 8), target_range=(24, 24))
    extra = {p.key for s in ("train", "heldout") for p in problems(spec, s)} - {
        p.key for s in ("train", "heldout") for p in problems(whole, s)
    }
    assert Problem((3, 3, 8, 8), 24) in extra
    assert 24 in reachable_values((3, 3, 8, 8))


def test_samples_are_deterministic_and_depend_on_the_seed() -> None:
    for spec in (SMALL, LARGE):
        first = sample_problems(spec, "train", 50, seed=4)
        assert first == sample_problems(spec, "train", 50, seed=4)
        assert first != sample_problems(spec, "train", 50, seed=5)


def test_sampling_is_without_replacement_while_the_family_lasts_then_in_whole_passes() -> None:
    pool = problems(SMALL, "heldout")
    drawn = [problem.key for problem in sample_problems(SMALL, "heldout", 2 * len(pool) + 5, seed=3)]
    assert set(drawn[: len(pool)]) == set(drawn[len(pool) : 2 * len(pool)]) == set(pool)
    assert drawn[: len(pool)] != drawn[len(pool) : 2 * len(pool)]
    large = [problem.key for problem in sample_problems(LARGE, "train", 400, seed=3)]
    assert len(set(large)) == 400


def test_numbers_are_shown_in_random_order() -> None:
    shown = sample_problems(SMALL, "train", 200, seed=0)
    assert any(problem.nums != problem.key.nums for problem in shown)


def test_large_family_is_not_listed() -> None:
    assert is_enumerable(SMALL) and not is_enumerable(LARGE)
    with pytest.raises(UserError, match="sample_problems"):
        problems(LARGE, "train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_numbers": (1, 3)}, "num_numbers is 1..3"),
        ({"num_numbers": (3, 7)}, "num_numbers is 3..7"),
        ({"number_range": (9, 1)}, "number_range is 9..1"),
        ({"target_range": (60, 5)}, "target_range is 60..5"),
        ({"operators": ""}, "operators"),
        ({"operators": "+^"}, "operators"),
        ({"operators": "++"}, "operators"),
    ],
)
def test_bad_spec_is_refused(change: dict[str, tuple[int, int] | str], message: str) -> None:
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        CountdownSpec(**change)  # type: ignore[arg-type]


def test_family_without_puzzles_is_refused() -> None:
    spec = CountdownSpec(number_range=(1, 2), target_range=(900, 999))
    with pytest.raises(UserError, match="no solvable"):
        sample_problems(spec, "train", 1, seed=0)


def test_random_expression_uses_each_number_once() -> None:
    rng = random.Random(0)
    texts = set()
    for _ in range(300):
        text = random_expression(Problem((2, 2, 9), 1), rng)
        texts.add(text)
        assert sorted(parse(text).numbers) == ["2", "2", "9"]
        parse(text).value()  # never divides by zero
    assert len(texts) > 20
    assert random_expression(Problem((2, 2, 9), 1), random.Random(3)) == random_expression(
        Problem((2, 2, 9), 1), random.Random(3)
    )


def test_prompt_of_a_puzzle() -> None:
    prompt = problem_to_prompt(Problem((9, 3, 4), 24))
    assert prompt.id == "countdown:3,4,9:24"
    assert prompt.messages == ({"role": "user", "content": "24 from 9, 3, 4"},)
    assert prompt.columns == {"nums": [9, 3, 4], "target": 24}
    template = PromptTemplate(user="Make {target} {from} [{nums}] {}", system="S", assistant_prefix="<think>")
    with pytest.raises(UserError, match="from"):
        problem_to_prompt(Problem((9, 3), 27), template)
    framed = problem_to_prompt(
        Problem((9, 3), 27), PromptTemplate(user="{target}: {nums} {}", system="S", assistant_prefix="<think>")
    )
    assert [(turn["role"], turn["content"]) for turn in framed.messages] == [
        ("system", "S"),
        ("user", "27: 9, 3 {}"),
        ("assistant", "<think>"),
    ]
