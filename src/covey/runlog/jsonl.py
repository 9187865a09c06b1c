"""Strict JSON: what is written here parses with any parser, and a torn last line does not lose a file."""

from __future__ import annotations

import json
import math
import numbers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey.errors import UserError

NONFINITE_KEY = "nonfinite_values"
"""Written into a line, beside the nulls, when NaN or infinite values of it were replaced: how many."""


def to_json(value: Any) -> tuple[Any, int]:
    """``value`` as plain JSON types, and the number of NaN or infinite floats in it that became ``None``.

    Anything JSON does not know (dates, fractions, arrays in a user's column) becomes its ``str``.
    """
    if value is None or isinstance(value, str | bool | int):
        return value, 0
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational):
        number = float(value)
        return (number, 0) if math.isfinite(number) else (None, 1)
    if isinstance(value, numbers.Integral):
        return int(value), 0
    if isinstance(value, Mapping):
        pairs = {str(key): to_json(item) for key, item in value.items()}
        return {key: item for key, (item, _) in pairs.items()}, sum(bad for _, bad in pairs.values())
    if isinstance(value, list | tuple | set | frozenset):
        items = [to_json(item) for item in value]
        return [item for item, _ in items], sum(bad for _, bad in items)
    return str(value), 0


def to_line(record: Mapping[str, Any]) -> str:
    """One line of JSON with its newline; non-finite floats are null and counted under ``NONFINITE_KEY``."""
    cleaned, bad = to_json(record)
    if bad:
        cleaned[NONFINITE_KEY] = cleaned.get(NONFINITE_KEY, 0) + bad
    # ASCII only: some readers take U+2028 in a text for the end of the line.
    return json.dumps(cleaned, allow_nan=False) + "\n"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a jsonl file. A last line that is torn (the process died while writing) is left out.

    Raises UserError, naming file and line, when any other line is not a JSON object.
    """
    lines = path.read_bytes().split(b"\n")
    while lines and not lines[-1].strip():
        lines.pop()
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not an object")
        except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
            if number == len(lines):
                break
            raise UserError(f"{path}, line {number}: not a JSON object ({error}); repair or remove it") from error
        records.append(record)
    return records


def write_atomic(path: Path, text: str) -> None:
    """Write a whole file so that a reader, or a crash, finds either the old content or the new, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
