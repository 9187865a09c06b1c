"""Mathematics with a known answer (rows as of GSM8K and MATH), judged by the math-verify library.

The right answer is in the column ``answer`` or ``solution``: a number, LaTeX, text with a ``\\boxed{}``, or GSM8K's
text behind ``####``. A completion answers in its answer tags, or else with the last expression after its thought.
math-verify can be slow or hang on hostile input, so this task is judged in a process of its own, with a time limit.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any

from covey.errors import UserError
from covey.tasks.base import THINK_CLOSE, THINK_OPEN, extract_answer, shown

MAX_ANSWER = 2_000
"""Characters at the end of a completion in which its answer is looked for."""


class MathTask:
    """Verifier and row checks."""

    name = "math"
    quick = False

    def verify(self, text: str, columns: Mapping[str, Any]) -> bool | None:
        """Whether the answer in ``text`` equals that of the row; None when the row's can't be read (never right)."""
        gold = _parsed(_gold_text(columns))
        if not gold:
            return None
        answer = extract_answer(text)
        if answer is None:
            _, closing, answer = text.rpartition(THINK_CLOSE)
            if not closing and THINK_OPEN in text:
                return False  # the thought never ended
        found = _parsed(answer[-MAX_ANSWER:])
        # the right answer comes first: the comparison is not symmetric
        return bool(found) and bool(_library().verify(list(gold), list(found), timeout_seconds=None))

    def validate_row(self, row: Mapping[str, Any]) -> list[str]:
        """Problems of the field ``answer`` (or ``solution``)."""
        names = [name for name in ("answer", "solution") if name in row]
        if not names:
            return ['"answer" (or "solution") is missing']
        value = row[names[0]]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return [f'"{names[0]}" must be a number or text, found {shown(value)}']
        return [] if _parsed(_gold_text(row)) else [f'"{names[0]}" holds no answer that can be read: {shown(value)}']

    def normalize_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row as it is."""
        return dict(row)

    def difficulty(self, columns: Mapping[str, Any]) -> None:
        """Not known."""


def _gold_text(columns: Mapping[str, Any]) -> str:
    text = str(columns["answer"] if "answer" in columns else columns["solution"])
    return text.rpartition("####")[2].strip()


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Any, ...]:
    """What the library reads in a text, as it is or as LaTeX; empty when nothing."""
    library = _library()
    for form in (text, f"${text}$"):
        if found := library.parse(form, parsing_timeout=None):
            return tuple(found)
    return ()


@functools.cache
def _library() -> Any:
    try:
        import math_verify
    except ImportError as error:
        raise UserError("the task 'math' needs the package math-verify: pip install 'covey[math]'") from error
    # it warns at every call that its own time limit, a signal, is off: here a worker process is killed instead
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return math_verify
