"""Data rows from a jsonl file, a local dataset folder or a Hugging Face dataset id, checked, then made into prompts.

A source is spelled ``file.jsonl``, ``folder``, ``owner/name`` or ``owner/name:subset``, each with an optional ``#N``
that draws N rows without replacement. The ``datasets`` package is imported only for folders and ids.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from covey.errors import UserError
from covey.tasks.base import PromptTemplate, Task, shown
from covey.types import Message, Prompt

BadRows = Literal["fail", "drop"]

PROMPT_FIELDS = ("messages", "prompt", "query")
"""Fields that may carry the prompt of a row, in order of preference: message list or plain text."""

RESERVED_COLUMNS = ("prompts", "completions")
"""Batch reward functions receive these two themselves, so a data column may not have these names."""

_ROLES = ("system", "user", "assistant", "tool")
_LISTED_ROWS = 20
_FILE_SUFFIXES = (".jsonl", ".json", ".ndjson")


@dataclass(frozen=True, slots=True)
class Row:
    """One data row. ``number`` counts from 1; in a jsonl file it is the line number (blank lines count)."""

    number: int
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one source, e.g. ``Table("rows.jsonl", (Row(1, {"nums": [4, 6], "target": 24}),))``."""

    source: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class LoadedPrompts:
    """Prompts of a source, and what was left out on the way (to be shown to the user)."""

    prompts: tuple[Prompt, ...]
    rows_dropped: int
    """Unusable rows skipped because of ``bad_rows="drop"``."""
    answers_removed: int
    """Rows whose message list ended with an assistant turn; that turn is not part of the prompt."""


def load_prompts(
    source: str | Table,
    *,
    task: Task | None,
    template: PromptTemplate | None,
    bad_rows: BadRows = "fail",
    seed: int = 0,
    split: str = "train",
) -> LoadedPrompts:
    """Read (unless a Table is given), check and convert all rows of a source.

    Rows use their own ``messages``, ``prompt`` or ``query``; when no row of the source has one, ``template`` writes the
    prompt from the columns. A template's system message is added to rows that have none. All other fields become
    ``Prompt.columns``. UserError lists every unusable row before anything is converted.
    """
    table = read_table(source, seed=seed, split=split) if isinstance(source, str) else source
    field_of = _prompt_field_finder(table.rows)

    def problems_of(row: Mapping[str, Any]) -> list[str]:
        found = task.validate_row(row) if task is not None else []
        field = field_of(row)
        if field is not None:
            found += _prompt_problems(row, field)
        elif template is None:
            found.append("no prompt (expected one of: messages, prompt, query)")
        elif not found:
            columns = row if task is None else task.normalize_row(row)
            found += [f'"{name}" is missing' for name in template.placeholders() if name not in columns]
        return found + [f'"{name}" is a reserved name' for name in RESERVED_COLUMNS if name in row]

    rows, dropped = check_rows(table, problems_of, bad_rows)
    converted = [_to_prompt(table.source, row, field_of(row.values), task, template) for row in rows]
    return LoadedPrompts(tuple(prompt for prompt, _ in converted), dropped, sum(removed for _, removed in converted))


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows at hand (dicts, or a ``datasets.Dataset``) as a table."""
    return Table("rows", tuple(Row(number, dict(values)) for number, values in enumerate(rows, start=1)))


def check_rows(
    table: Table, problems_of: Callable[[Mapping[str, Any]], list[str]], bad_rows: BadRows = "fail"
) -> tuple[tuple[Row, ...], int]:
    """Check every row; return the usable ones and how many were dropped.

    UserError with one report (up to 20 rows are listed, the rest counted) when a row is unusable and ``bad_rows`` is
    "fail", or when no usable row is left.
    """
    bad = [(row, problems) for row in table.rows if (problems := problems_of(row.values))]
    bad_numbers = {row.number for row, _ in bad}
    good = tuple(row for row in table.rows if row.number not in bad_numbers)
    if bad and (bad_rows == "fail" or not good):
        raise UserError(_report(table, bad, bad_rows))
    if not good:
        raise UserError(f"{table.source}: no rows.")
    return good, len(bad)


def read_table(source: str, *, seed: int = 0, split: str = "train") -> Table:
    """Read the rows of a source as they are; UserError on a missing or unreadable source, naming file and line."""
    location, count = _split_count(source)
    path = Path(location).expanduser()
    if path.is_dir():
        return _read_datasets(location, None, split, count, seed)
    if path.is_file():
        table = read_jsonl(path)
        return replace(table, rows=_draw(table.rows, count, seed, location))
    if path.suffix in _FILE_SUFFIXES or location.startswith(("/", ".", "~")) or location.count("/") > 1:
        raise UserError(f"dataset file {location} does not exist.")
    name, _, subset = location.partition(":")
    return _read_datasets(name, subset or None, split, count, seed)


def read_jsonl(path: Path) -> Table:
    """Read a file with one JSON object per line; blank lines are skipped. UserError names the file and line."""
    if path.suffix and path.suffix not in _FILE_SUFFIXES:
        raise UserError(f"{path} is not a jsonl file; write one JSON object per line into a file ending in .jsonl.")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as exc:
        raise UserError(f"{path} cannot be read: {exc.strerror or exc}.") from exc
    except UnicodeDecodeError as exc:
        raise UserError(f"{path} is not UTF-8 text (byte {exc.start}).") from exc
    return Table(str(path), tuple(_parse_lines(path, lines)))


def _parse_lines(path: Path, lines: Sequence[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise UserError(f"{path} line {number}: not valid JSON ({exc}).") from exc
        if not isinstance(values, dict):
            raise UserError(f"{path} line {number}: expected a JSON object, found {type(values).__name__}.")
        yield Row(number, values)


def _split_count(source: str) -> tuple[str, int | None]:
    location, mark, count = source.rpartition("#")
    if not mark or Path(source).expanduser().exists():
        return source, None
    if not count.isascii() or not count.isdigit() or int(count) < 1:
        raise UserError(f"dataset {source!r}: what follows '#' must be a number of rows, at least 1.")
    return location, int(count)


def _draw(rows: tuple[Row, ...], count: int | None, seed: int, source: str) -> tuple[Row, ...]:
    return rows if count is None else tuple(rows[i] for i in _drawn_positions(len(rows), count, seed, source))


def _drawn_positions(total: int, count: int, seed: int, source: str) -> list[int]:
    if count > total:
        raise UserError(f"dataset {source} has {total} rows; #{count} asks for more.")
    return random.Random(f"covey-rows:{seed}").sample(range(total), count)


def _read_datasets(name: str, subset: str | None, split: str, count: int | None, seed: int) -> Table:
    import datasets  # slow to import, and not needed for jsonl files

    folder = Path(name).expanduser()
    try:
        if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
            data = datasets.load_from_disk(str(folder))
        else:
            data = datasets.load_dataset(str(folder) if folder.is_dir() else name, subset, split=split)
    except (OSError, ValueError) as exc:
        raise UserError(
            f"dataset {name!r} is neither a local file nor folder, and loading it with 'datasets' failed: {exc}"
        ) from exc
    if isinstance(data, dict):
        if split not in data:
            raise UserError(f"dataset {name} has no split {split!r}; it has: {', '.join(map(str, data))}.")
        data = data[split]
    positions = range(len(data)) if count is None else _drawn_positions(len(data), count, seed, name)
    picked = data if count is None else data.select(positions)
    return Table(name, tuple(Row(i + 1, dict(values)) for i, values in zip(positions, picked, strict=True)))


def _prompt_field_finder(rows: Sequence[Row]) -> Callable[[Mapping[str, Any]], str | None]:
    """Which field holds a row's prompt; when any row of the source has one, a row without it lacks the usual one."""
    present = Counter(name for row in rows for name in PROMPT_FIELDS if name in row.values)
    usual = max(PROMPT_FIELDS, key=lambda name: present[name]) if present else None

    def field_of(row: Mapping[str, Any]) -> str | None:
        return next((name for name in PROMPT_FIELDS if name in row), usual)

    return field_of


def _prompt_problems(row: Mapping[str, Any], field: str) -> list[str]:
    if field not in row:
        return [f'"{field}" is missing']
    value = row[field]
    if isinstance(value, str):
        return [] if value.strip() else [f'"{field}" is blank']
    if not isinstance(value, list):
        return [f'"{field}" must be text or a list of messages, found {shown(value)}']
    for turn in value:
        if not isinstance(turn, dict) or turn.get("role") not in _ROLES or not isinstance(turn.get("content"), str):
            wanted = f'messages with "role" ({"/".join(_ROLES)}) and text "content"'
            return [f'"{field}" must hold {wanted}, found {shown(turn)}']
    if not any(turn["role"] == "user" for turn in value):
        return [f'"{field}" has no user message']
    return []


def _to_prompt(
    source: str, row: Row, field: str | None, task: Task | None, template: PromptTemplate | None
) -> tuple[Prompt, bool]:
    columns = dict(row.values) if task is None else task.normalize_row(row.values)
    identity = f"{Path(source).name}:{row.number}"
    if field is None:
        messages = cast(PromptTemplate, template).render(columns)
        return Prompt(identity, messages, columns), False
    value = columns.pop(field)
    turns = [Message(role="user", content=value)] if isinstance(value, str) else _messages(value)
    removed = turns[-1]["role"] == "assistant"
    if removed:
        turns = turns[:-1]
    framed = tuple(turns) if template is None else template.frame(turns)
    return Prompt(identity, framed, columns), removed


def _messages(value: Sequence[Mapping[str, str]]) -> list[Message]:
    return [Message(role=turn["role"], content=turn["content"]) for turn in value]


def _report(table: Table, bad: Sequence[tuple[Row, list[str]]], bad_rows: BadRows) -> str:
    advice = "; fix them, or skip them with --bad_rows drop" if bad_rows == "fail" else ", so none is left"
    lines = [f"{table.source}: {len(bad)} of {len(table.rows)} rows cannot be used{advice}:"]
    for row, problems in bad[:_LISTED_ROWS]:
        lines.append(f"  row {row.number}: {'; '.join(problems)} (fields present: {', '.join(row.values) or 'none'})")
    if len(bad) > _LISTED_ROWS:
        lines.append(f"  and {len(bad) - _LISTED_ROWS} more")
    return "\n".join(lines)
