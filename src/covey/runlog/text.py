"""Text for a terminal: numbers, durations, curves, and model output that cannot harm the screen."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping

GAP = "-"
"""Shown for a metric without a value."""

_BARS = "▁▂▃▄▅▆▇█"
# Controls (terminal escapes), invisible and bidirectional marks, lone surrogates, private and unassigned, separators.
_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """``text`` with everything a terminal could obey spelled out (``\\x1b``); newlines stay, tabs become blanks."""
    return "".join(
        character if character == "\n" or unicodedata.category(character) not in _HARMFUL else _spell(character)
        for character in text
    )


def crop(text: str, max_chars: int, max_lines: int) -> str:
    """At most that many lines and characters, cut out of the middle: a completion ends with its answer."""
    lines = text.split("\n")
    if len(lines) > max_lines:
        tail = max_lines // 2
        head = max_lines - tail - 1
        lines = [*lines[:head], f"... ({len(lines) - head - tail} lines)", *lines[len(lines) - tail :]]
    text = "\n".join(lines)
    if len(text) <= max_chars:
        return text
    tail = max_chars // 2
    head = max(max_chars - tail - len(" ... "), 0)
    return f"{text[:head]} ... {text[len(text) - tail :]}"


def number(value: float | None, spec: str = ".3g") -> str:
    """``value`` in a format, ``-`` for None; a NaN or an infinity shows as what it is."""
    if value is None:
        return GAP
    return format(value, spec) if math.isfinite(value) else str(value)


def duration(seconds: float | None) -> str:
    """``65`` -> ``1:05``, ``3665`` -> ``1:01:05``, None -> ``-``."""
    if seconds is None:
        return GAP
    whole = max(round(seconds), 0)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def rewards_line(rewards: Mapping[str, float | None], total: float | None) -> str:
    """``reward 0.4 (format 1, accuracy -)``."""
    parts = ", ".join(f"{visible(name)} {number(value)}" for name, value in rewards.items())
    return f"reward {number(total)}" + (f" ({parts})" if parts else "")


class Curve:
    """A rate (0 to 1) over a whole stage in a fixed number of cells: memory does not grow with the steps."""

    def __init__(self, total_steps: int, width: int = 40) -> None:
        self._total = max(total_steps, 1)
        cells = min(width, self._total)
        self._sums = [0.0] * cells
        self._counts = [0] * cells

    def add(self, step: int, value: float | None) -> None:
        """Take in the value of a step (1 to total); a gap or a non-finite value leaves no mark."""
        if value is None or not math.isfinite(value):
            return
        position = min(max(step - 1, 0), self._total - 1)
        cell = position * len(self._sums) // self._total
        self._sums[cell] += value
        self._counts[cell] += 1

    def __str__(self) -> str:
        return "".join(
            _BARS[round(min(max(total / count, 0.0), 1.0) * (len(_BARS) - 1))] if count else " "
            for total, count in zip(self._sums, self._counts, strict=True)
        ).rstrip()


def _spell(character: str) -> str:
    return "    " if character == "\t" else character.encode("unicode_escape").decode("ascii")
