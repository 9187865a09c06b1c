"""From command-line words and a config file to one validated config. Names are exact: there are no abbreviations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.cli.config_file import read_config_file
from covey.cli.flags import (
    ALIASES,
    COMMANDS,
    FLAGS,
    OTHER_RLHF_TYPES,
    REQUIRED,
    RLHF_TYPES,
    commands_reading,
    fixed_flags,
)
from covey.cli.model_names import resolve_model
from covey.config import GRPOConfig
from covey.config.base import Composition, option_type, options
from covey.config.presets import describe
from covey.config.rules import refuse_unread
from covey.config.values import coerce, from_words, near_match, show
from covey.errors import UserError


@dataclass(frozen=True)
class Parsed:
    """A command ready to run: its config, what was asked for explicitly, and what to tell the user."""

    config: Composition
    given: Mapping[str, object]
    """Option name -> value, from the command line and the config file."""
    notes: tuple[str, ...]


def parse(command: str, words: Sequence[str]) -> Parsed:
    """The config of ``command`` from its flags; the command line beats ``--config file.yaml``.

    Raises UserError for an unknown, misspelt, repeated, missing, mistyped, refused or unread option.
    """
    typed = split_flags(command, words)
    notes: list[str] = []
    path = from_words("config", typed.pop("config"), str) if "config" in typed else None
    content = read_config_file(path) if path else {}
    if command == "rlhf":
        command = rlhf_command(typed.pop("rlhf_type", None), content.pop("rlhf_type", None))
    from_file = _from_file(command, path, content, notes) if path else {}
    from_line = _collect(command, typed, notes, from_words)
    given = _with_preset(from_file, notes) | _with_preset(from_line, notes)
    _check_required(command, given)
    if "model" in given:
        given["model"], note = resolve_model(str(given["model"]))
        notes += [note] if note else []
    if "system" in given:
        given["system"] = _system_text(given["system"])
    config = COMMANDS[command].from_dict(given)
    refuse_unread(config.to_dict(), [key for key in from_line if key != "preset"])
    notes += [
        f"--{key} {show(from_line[key])} (the command line beats the config file: {show(from_file[key])})"
        for key in from_line
        if key in from_file and from_line[key] != from_file[key]
    ]
    return Parsed(config, given, tuple(notes))


def _with_preset(values: dict[str, object], notes: list[str]) -> dict[str, object]:
    """The values of one source with its preset expanded, so that the command line's preset beats a config file."""
    if "preset" not in values:
        return values
    expanded = GRPOConfig.expanded(values)
    notes += describe(str(values["preset"]), values, expanded)
    return expanded


def split_flags(command: str, words: Sequence[str]) -> dict[str, list[str]]:
    """Flag -> its words: ``--flag a b``, ``--flag=a`` or ``--flag`` alone. A word such as ``-1`` is a value."""
    flags: dict[str, list[str]] = {}
    current: list[str] | None = None
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if name in flags:
                raise UserError(f"--{name} is given twice")
            current = flags[name] = [value] if equals else []
        elif current is None:
            raise UserError(f"unexpected word {word!r}; options start with --{_see_help(command)}")
        else:
            current.append(word)
    return flags


def _see_help(command: str) -> str:
    return f"; see covey {command} --help"


def _from_file(command: str, path: str, content: Mapping[str, Any], notes: list[str]) -> dict[str, object]:
    try:
        return _collect(command, content, notes, coerce)
    except UserError as error:
        raise UserError(f"--config {path}: {error}") from error


def _collect(
    command: str, source: Mapping[str, Any], notes: list[str], read: Callable[[str, Any, Any], Any]
) -> dict[str, object]:
    """Typed options by canonical name; fixed flags are answered here. ``read`` makes a value of (name, raw, type)."""
    known = options(COMMANDS[command])
    values: dict[str, object] = {}
    for spelled, raw in source.items():
        name = ALIASES.get(spelled, spelled)
        if name in values:
            raise UserError(f"--{spelled} is given twice: --{name} is the same option")
        if command == "rlhf" and name == "preset":
            values[name] = read(name, raw, str)
        elif name in known:
            values[name] = read(name, raw, option_type(COMMANDS[command], name))
        elif name in fixed_flags():
            notes.append(_fixed_note(name, _as_words(raw)))
        else:
            raise UserError(_unknown(command, spelled))
    return values


def _system_text(value: object) -> object:
    """A system message given as the path of a .txt file, as ms-swift allows it, is read here."""
    if not (isinstance(value, str) and value.endswith(".txt")):
        return value
    try:
        return Path(value).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--system {value}: cannot be read as a text file ({error})") from error


def _fixed_note(name: str, words: list[str]) -> str:
    line = fixed_flags()[name]
    value = " ".join(words) or "true"
    if value.lower() not in line.accepts:
        instead = f"; accepted: {' or '.join(line.accepts)}" if line.accepts else ""
        raise UserError(f"--{name} {value}: {line.reason}{instead}")
    return f"--{name} {value}: {line.note}"


def _as_words(raw: object) -> list[str]:
    items = raw if isinstance(raw, list) else [raw]
    return [show(item) for item in items]


def _unknown(command: str, name: str) -> str:
    if name == "preset":
        return "--preset: presets are the objectives of GRPO's family, for covey rlhf --rlhf_type grpo"
    readers = commands_reading(ALIASES.get(name, name))
    if readers:
        return f"--{name} is not read by covey {command}; it is read by covey {', covey '.join(readers)}"
    own = options(COMMANDS[command])
    near = near_match(name, own) or near_match(name, [line.name for line in FLAGS] + [*fixed_flags(), *ALIASES])
    hint = f" (did you mean --{near}?)" if near else ""
    return f"unknown flag --{name}{hint}{_see_help(command)}"


def rlhf_command(words: list[str] | None, from_file: object = None) -> str:
    """The command that ``--rlhf_type`` chooses, given as words on the command line or as a value of a config file."""
    kind = from_words("rlhf_type", words, str) if words is not None else from_file
    if kind is None:
        raise UserError("covey rlhf needs --rlhf_type: add --rlhf_type grpo")
    if kind not in RLHF_TYPES:
        known = ", ".join(RLHF_TYPES)
        why = "is not in this version" if kind in OTHER_RLHF_TYPES else "is not known"
        raise UserError(f"--rlhf_type {kind} {why}; this version has {known}")
    return RLHF_TYPES[str(kind)]


def _check_required(command: str, given: Mapping[str, object]) -> None:
    missing = {key: example for key, example in REQUIRED[command].items() if not given.get(key)}
    if missing:
        lines = [f"  add {example}" for example in missing.values()]
        raise UserError("\n".join([f"covey {command} needs {', '.join('--' + key for key in missing)}:", *lines]))
