"""Demonstrations: traces are true arithmetic and end right; guesses and exhausted searches are well-formed, wrong."""

from __future__ import annotations

import random
import re

from covey.rewards.format import is_well_formed
from covey.tasks.base import extract_answer
from covey.tasks.countdown_expr import is_correct, parse
from covey.tasks.countdown_generator import CountdownSpec, problems
from covey.tasks.countdown_solver import solve
from covey.tasks.countdown_trace import Demonstrations, exhausted_search, guess, worked_solution

FAMILY = CountdownSpec(number_range=(1, 12), target_range=(13, 99))
LINE = re.compile(r"(\d+)([-+*/])(\d+)=(\d+) (\d+)((?: [-+*/]\d+)+)(!?)")


def value(a: int, operator: str, b: int) -> float:
    return {"+": a + b, "-": abs(a - b), "*": a * b, "/": a / b if b else 0.0}[operator]


def test_a_trace_in_full() -> None:
    think = "<think>8*11=88 3 +91 -85\n8+11=19 3 *57!</think>"
    assert worked_solution((8, 11, 3), 57) == think + "\n<answer>(8+11)*3</answer>"
    assert worked_solution((1, 1, 1), 99) is None


def test_every_problem_of_the_recipe_has_a_true_and_right_trace() -> None:
    checked = 0
    for problem in problems(FAMILY, "train"):
        text = worked_solution(problem.nums, problem.target)
        assert text is not None and is_well_formed(text)
        answer = extract_answer(text)
        assert answer is not None and is_correct(answer, problem.nums, problem.target)
        for line in text.removeprefix("<think>").split("</think>")[0].split("\n"):
            match = LINE.fullmatch(line)
            assert match is not None, line
            first, operator, second, result, rest = match.group(1, 2, 3, 4, 5)
            assert value(int(first), operator, int(second)) == int(result), line
            assert sorted(map(int, (first, second, rest))) == sorted(problem.nums), line
            for tried in match[6].split():
                assert value(int(result), tried[0], int(rest)) == int(tried[1:]), line
                checked += 1
    assert checked > 3000


def test_a_guess_has_no_thought_uses_the_numbers_and_nearly_always_misses() -> None:
    rng = random.Random(0)
    family = problems(FAMILY, "train")
    right = 0
    for problem in family:
        text = guess(problem, rng)
        assert text.startswith("<think></think>\n<answer>") and is_well_formed(text)
        answer = extract_answer(text)
        assert answer is not None and sorted(map(int, parse(answer).numbers)) == sorted(problem.nums)
        right += is_correct(answer, problem.nums, problem.target)
    assert 0 < right < len(family) / 20


def test_an_exhausted_search_tries_everything_and_answers_with_its_last_try() -> None:
    assert exhausted_search((8, 11, 3), 57) is None  # there is a hit
    text = exhausted_search((2, 7, 2), 78)
    assert text == (
        "<think>2*7=14 2 *28 +16 -12 /7\n2+7=9 2 *18 +11\n7-2=5 2 *10 +7\n"
        "2*2=4 7 *28 +11\n2+2=4 7 *28 +11\n2/2=1 7 *7 +8\n"
        "7*2=14 2 *28 +16 -12 /7\n7+2=9 2 *18 +11\n7-2=5 2 *10 +7</think>\n<answer>7-2+2</answer>"
    )
    assert is_well_formed(text)


def test_demonstrations_come_in_the_shares_asked_for() -> None:
    rng = random.Random(0)
    kinds = Demonstrations(guess_share=0.25, unsolvable_share=0.1)
    family = problems(FAMILY, "train")
    guesses = unsolvable = 0
    for problem in family:
        shown = kinds.of(problem, FAMILY.target_range, rng)
        assert shown is not None
        puzzle, text = shown
        answer = extract_answer(text)
        assert is_well_formed(text) and answer is not None and puzzle.nums == problem.nums
        guesses += "<think></think>" in text
        if puzzle != problem:
            unsolvable += 1
            assert solve(puzzle.nums, puzzle.target) is None
            assert FAMILY.target_range[0] <= puzzle.target <= FAMILY.target_range[1]
        elif "<think></think>" not in text:
            assert is_correct(answer, puzzle.nums, puzzle.target)
    assert 0.20 < guesses / len(family) < 0.30
    assert 0.07 < unsolvable / len(family) < 0.13
    assert [Demonstrations().of(p, FAMILY.target_range, rng) for p in family[:50]] == [
        (p, worked_solution(p.nums, p.target)) for p in family[:50]
    ]
