"""The flags are frozen: a change of a name, type, default or ms-swift default is a diff of tests/data/flags.json.

``python tests/unit/test_flags_snapshot.py`` writes the file anew.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from covey.cli.flags import ALIASES, COMMANDS, FIXED, FLAGS, REQUIRED, NotInSwift, flag
from covey.config.base import default_values, option_type, options
from covey.config.values import type_name

SNAPSHOT = Path(__file__).parents[1] / "data" / "flags.json"


def current() -> dict[str, Any]:
    return {
        "commands": {
            command: {
                key: {
                    "path": ".".join(path),
                    "type": type_name(option_type(config, key)),
                    "default": default_values(config)[key],
                }
                for key, path in options(config).items()
            }
            for command, config in COMMANDS.items()
        },
        "ms_swift_defaults": {line.name: line.swift for line in FLAGS if not isinstance(line.swift, NotInSwift)},
        "fixed": {name: list(line.accepts) for line in FIXED for name in line.names},
        "aliases": ALIASES,
    }


def test_flags_are_as_recorded() -> None:
    assert current() == json.loads(SNAPSHOT.read_text(encoding="utf-8"))


def test_every_option_has_a_flag_and_every_flag_an_option() -> None:
    read = {key for config in COMMANDS.values() for key in options(config)}
    assert {line.name for line in FLAGS} == read


def test_every_name_stands_for_one_thing() -> None:
    names = [line.name for line in FLAGS] + [name for line in FIXED for name in line.names] + list(ALIASES)
    assert [name for name, times in Counter(names).items() if times > 1] == []


def test_aliases_and_required_flags_exist() -> None:
    assert all(flag(target).name == target for target in ALIASES.values())
    assert all(key in options(COMMANDS[command]) for command, needed in REQUIRED.items() for key in needed)


def test_a_fixed_flag_that_accepts_a_value_says_what_happens() -> None:
    assert [line.names for line in FIXED if bool(line.accepts) != bool(line.note) or not line.reason] == []


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(current(), indent=1) + "\n", encoding="utf-8")
