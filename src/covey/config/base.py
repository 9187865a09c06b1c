"""What every config class shares: type checks at construction, and a flat dictionary form that parses back to itself.

A *section* holds the options of one component; a *composition* holds the sections one command reads. Every option name
is unique within a composition and is at once its flag (``--beta``), its config-file key and its ``config.json`` key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, make_dataclass, replace
from typing import Any, ClassVar, Self, get_type_hints

from covey.config.values import coerce, near_match
from covey.errors import UserError


@dataclass(frozen=True)
class Section:
    """Options of one component. Construction coerces every field to its type and then calls ``check``."""

    prefix: ClassVar[str] = ""
    """Put before a field name to make the option name (``countdown_`` + ``target_min``)."""

    def __post_init__(self) -> None:
        for name, hint in field_types(type(self)).items():
            object.__setattr__(self, name, coerce(self.prefix + name, getattr(self, name), hint))
        self.check()

    def check(self) -> None:
        """Refuse values out of range (UserError)."""


@dataclass(frozen=True)
class TableSection(Section):
    """Options made from a table (of losses, of rewards), all optional: None keeps what the table's line says."""

    def given(self) -> dict[str, Any]:
        """The options that are set."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    @classmethod
    def with_options(cls, name: str, types: Mapping[str, Any]) -> type:
        """A section class of this kind with these options."""
        optional = [(key, kind | None, None) for key, kind in types.items()]
        return make_dataclass(name, optional, bases=(cls,), frozen=True)


@dataclass(frozen=True)
class Composition:
    """The sections one command reads; its fields are sections, each with its default."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Refuse combinations across sections (UserError)."""

    def to_dict(self) -> dict[str, Any]:
        """Every option by name, JSON-ready (tuples as lists)."""
        return {
            key: _plain(getattr(getattr(self, section), name)) for key, (section, name) in options(type(self)).items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """The defaults of this command with ``values`` (by option name) put over them.

        Raises UserError for an unknown name (with the nearest known one), a wrong type or a refused value.
        """
        known = options(cls)
        by_section: dict[str, dict[str, object]] = {}
        for key, value in values.items():
            if key not in known:
                raise UserError(f"unknown option {key}{did_you_mean(key, known)}")
            section, name = known[key]
            by_section.setdefault(section, {})[name] = value
        return cls(**{name: replace(_default_sections(cls)[name], **given) for name, given in by_section.items()})


def did_you_mean(key: str, known: Mapping[str, object]) -> str:
    """``: did you mean NAME?`` for a misspelt option, or nothing."""
    near = near_match(key, known)
    return f": did you mean {near}?" if near else ""


def field_types(section: type[Section]) -> dict[str, Any]:
    """Field name -> resolved type of a section."""
    hints = get_type_hints(section)
    return {field.name: hints[field.name] for field in fields(section)}


def options(composition: type[Composition]) -> dict[str, tuple[str, str]]:
    """Option name -> (section, field) of a composition."""
    table: dict[str, tuple[str, str]] = {}
    for section, kind in section_types(composition).items():
        for name in field_types(kind):
            key = kind.prefix + name
            if key in table:
                raise TypeError(f"{composition.__name__} has two options called {key}")
            table[key] = (section, name)
    return table


def default_values(composition: type[Composition]) -> dict[str, Any]:
    """Option name -> default of a composition, JSON-ready."""
    sections = _default_sections(composition)
    return {key: _plain(getattr(sections[section], name)) for key, (section, name) in options(composition).items()}


def changed_options(config: Composition) -> list[str]:
    """Names of the options whose value is not the default of their command."""
    defaults = default_values(type(config))
    return [key for key, value in config.to_dict().items() if value != defaults[key]]


def section_types(composition: type[Composition]) -> dict[str, type[Section]]:
    """Section name -> section class of a composition."""
    hints = get_type_hints(composition)
    return {field.name: hints[field.name] for field in fields(composition)}


def option_type(composition: type[Composition], key: str) -> Any:
    """The declared type of an option."""
    section, name = options(composition)[key]
    return field_types(section_types(composition)[section])[name]


def _default_sections(composition: type[Composition]) -> dict[str, Any]:
    return {field.name: field.default for field in fields(composition)}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
