"""One option value: read it from YAML, JSON, Python or command-line words into its declared type, or say what is wrong.

Errors name the option as the flag ``--name``; config-file keys and ``config.json`` keys have the same name.
"""

from __future__ import annotations

import difflib
import math
import re
import types
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from covey.errors import UserError

_INT = re.compile(r"[+-]?[0-9]+")
_BOOLS = {"true": True, "false": False}


def coerce(key: str, value: object, hint: Any) -> Any:
    """``value`` as the type ``hint`` (str, int, float, bool, Literal, ``X | None``, ``tuple[X, ...]``).

    Numbers may be written as text (YAML 1.1 reads ``1e-6`` as a string). Raises UserError naming ``key``.
    """
    if is_optional(hint):
        inner = without_none(hint)
        # the word none is an empty value, unless it is text or a choice of its own (--scale_rewards none)
        words = () if inner is str or "none" in get_args(inner) else ("none", "null")
        empty = value is None or (isinstance(value, str) and value.lower() in words)
        return None if empty else coerce(key, value, inner)
    if get_origin(hint) is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(coerce(key, item, get_args(hint)[0]) for item in items)
    if get_origin(hint) is Literal:
        return _choice(key, value, get_args(hint))
    result = _READERS[hint](value)
    if result is None:
        raise UserError(f"--{key}: expected {type_name(hint)}, got {value!r}")
    return result


def from_words(key: str, words: Sequence[str], hint: Any) -> Any:
    """The value of a flag given as the command-line words after it; a boolean flag alone means true."""
    inner = without_none(hint)
    if get_origin(inner) is tuple:
        if not words:
            raise UserError(f"--{key}: expected at least one value, separated by spaces")
        return coerce(key, list(words), hint)
    if inner is bool and not words:
        return True
    if len(words) != 1:
        raise UserError(f"--{key}: expected one value ({type_name(hint)}), got {len(words)}{_listed(words)}")
    return coerce(key, words[0], hint)


def type_name(hint: Any) -> str:
    """How help and errors call a type: ``a number``, ``true or false``, ``bfloat16|float32``, ``text ...``."""
    if is_optional(hint):
        return type_name(without_none(hint))
    if get_origin(hint) is tuple:
        return f"{type_name(get_args(hint)[0])} ..."
    if get_origin(hint) is Literal:
        return "|".join(get_args(hint))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names[hint]


def is_optional(hint: Any) -> bool:
    """True for ``X | None``."""
    return get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint)


def without_none(hint: Any) -> Any:
    """``X`` of ``X | None``; any other type as it is."""
    return next(arg for arg in get_args(hint) if arg is not type(None)) if is_optional(hint) else hint


def near_match(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name closest to a misspelt one, if any is as close as ``cutoff`` (1: equal)."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), None)


def require(ok: bool, key: str, value: object, allowed: str) -> None:
    """Raise UserError ``--key value: must be allowed`` unless ``ok``."""
    if not ok:
        raise UserError(f"--{key} {show(value)}: must be {allowed}")


def show(value: object) -> str:
    """A value as one would type it after its flag."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return " ".join(show(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _choice(key: str, value: object, choices: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in choices:
        return value
    near = near_match(value, choices) if isinstance(value, str) else None
    hint = f" (did you mean {near}?)" if near else ""
    raise UserError(f"--{key} {show(value)}: must be one of {', '.join(choices)}{hint}")


def _read_int(value: object) -> int | None:
    if isinstance(value, str):
        return int(value) if _INT.fullmatch(value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read_float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _read_bool(value: object) -> bool | None:
    if isinstance(value, str):
        return _BOOLS.get(value.lower())
    return value if isinstance(value, bool) else None


def _read_str(value: object) -> str | None:
    return value if isinstance(value, str) else None


_READERS: dict[Any, Any] = {int: _read_int, float: _read_float, bool: _read_bool, str: _read_str}


def _listed(words: Sequence[str]) -> str:
    return f": {' '.join(words[:6])}" if words else ""
