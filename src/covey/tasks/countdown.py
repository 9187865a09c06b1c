"""The Countdown task: prompts, row checks and the verifier. Puzzles come from ``countdown_generator``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from covey.tasks.base import PromptTemplate, extract_answer, shown
from covey.tasks.countdown_expr import is_correct
from covey.tasks.countdown_generator import Problem
from covey.tasks.countdown_solver import solutions
from covey.types import Prompt

__all__ = ["DEFAULT_TEMPLATE", "CountdownTask", "PromptTemplate", "problem_to_prompt"]

_COUNTED_SOLUTIONS = 32

DEFAULT_TEMPLATE = PromptTemplate(user="{target} from {nums}")


def problem_to_prompt(problem: Problem, template: PromptTemplate = DEFAULT_TEMPLATE) -> Prompt:
    """The prompt of a puzzle; its id names the problem, whatever the order of the numbers."""
    key = problem.key
    columns = {"nums": list(problem.nums), "target": problem.target}
    identity = f"countdown:{','.join(map(str, key.nums))}:{key.target}"
    return Prompt(identity, template.render(columns), columns)


class CountdownTask:
    """Verifier and row checks: ``extract_answer`` finds the answer, ``countdown_expr`` judges it."""

    name = "countdown"
    quick = True

    def verify(self, text: str, columns: Mapping[str, Any]) -> bool:
        """Whether the one final answer in ``text`` solves the row. Never raises on text; under 50 ms on any text."""
        answer = extract_answer(text)
        return answer is not None and is_correct(answer, _numbers(columns), columns["target"])

    def validate_row(self, row: Mapping[str, Any]) -> list[str]:
        """Problems of the fields ``nums`` (or ``numbers``) and ``target``."""
        found: list[str] = []
        names = [name for name in ("nums", "numbers") if name in row]
        if not names:
            found.append('"nums" (or "numbers") is missing')
        found += [text for name in names if (text := _numbers_problem(name, row[name]))]
        if len(names) == 2 and row["nums"] != row["numbers"]:
            found.append('"nums" and "numbers" differ')
        if "target" not in row:
            found.append('"target" is missing')
        elif not _is_int(row["target"]):
            found.append(f'"target" must be an integer, found {shown(row["target"])}')
        return found

    def difficulty(self, columns: Mapping[str, Any]) -> float:
        """Puzzles with more numbers are harder, and among those the ones with fewer solutions (counted up to 32)."""
        nums = _numbers(columns)
        found = sum(1 for _ in itertools.islice(solutions(nums, columns["target"]), _COUNTED_SOLUTIONS))
        return len(nums) - found / (_COUNTED_SOLUTIONS + 1)

    def normalize_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Adds ``nums`` when the row calls it ``numbers``; everything else is kept."""
        return {**row, "nums": list(_numbers(row))}


def _numbers(columns: Mapping[str, Any]) -> Sequence[int]:
    numbers: Sequence[int] = columns["nums"] if "nums" in columns else columns["numbers"]
    return numbers


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _numbers_problem(name: str, value: object) -> str | None:
    if not isinstance(value, (list, tuple)):
        return f'"{name}" must be a list of integers, found {shown(value)}'
    if not value:
        return f'"{name}" is empty'
    for item in value:
        if not _is_int(item):
            return f'"{name}" must hold integers only, found {shown(item)}'
        if item < 0:
            return f'"{name}" holds {item}; answers are written with plain digits, so negative numbers cannot be used'
    return None
