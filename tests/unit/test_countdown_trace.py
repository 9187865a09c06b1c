"""Worked solutions: every trace is true arithmetic, finds a right answer, and a hasty one is well-formed and wrong."""

from __future__ import annotations

import re

from covey.rewards.format import is_well_formed
from covey.tasks.base import extract_answer
from covey.tasks.countdown_expr import is_correct, parse
from covey.tasks.countdown_generator import CountdownSpec, problems
from covey.tasks.countdown_trace import worked_solution

FAMILY = CountdownSpec(number_range=(1, 12), target_range=(13, 99))
LINE = re.compile(r"(\d+)([-+*/])(\d+)=(\d+) (\d+)((?: [-+*/]\d+)+)(!?)")


def value(a: int, operator: str, b: int) -> float:
    return {"+": a + b, "-": abs(a - b), "*": a * b, "/": a / b if b else 0.0}[operator]


def test_a_trace_in_full() -> None:
    think = "<think>8*11=88 3 +91 -85\n8+11=19 3 *57!</think>"
    assert worked_solution((8, 11, 3), 57) == think + "\n<answer>(8+11)*3</answer>"
    assert worked_solution((8, 11, 3), 57, patience=1) == "<think>8*11=88 3 +91 -85</think>\n<answer>8*11-3</answer>"
    assert worked_solution((8, 11, 3), 57, patience=2) == worked_solution((8, 11, 3), 57)
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


def test_a_hasty_trace_is_well_formed_uses_the_numbers_and_misses() -> None:
    misses = 0
    for problem in problems(FAMILY, "train"):
        text = worked_solution(problem.nums, problem.target, patience=1)
        assert text is not None and is_well_formed(text)
        answer = extract_answer(text)
        assert answer is not None and sorted(map(int, parse(answer).numbers)) == sorted(problem.nums)
        misses += not is_correct(answer, problem.nums, problem.target)
    assert misses > len(problems(FAMILY, "train")) / 2
