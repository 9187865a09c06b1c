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

from collections.abc import Iterator, Sequence

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


def worked_solution(nums: Sequence[int], target: int, patience: int | None = None) -> str | None:
    """The completion a warm start learns from, or None if the search does not reach the target.

    With ``patience`` n the search gives up after n lines without a hit and answers with the last thing it tried, which
    is well-formed and wrong: the hasty part of a mixed cold start.
    """
    lines: list[str] = []
    for line, tried, hit in search_lines(nums, target):
        lines.append(line)
        if hit or len(lines) == patience:
            return "<think>" + "\n".join(lines) + f"</think>\n<answer>{tried}</answer>"
    return None
