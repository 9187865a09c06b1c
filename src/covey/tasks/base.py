"""The task protocol, prompt templates and the think/answer tags shared by every task."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from covey.errors import UserError
from covey.types import Message

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")


class Task(Protocol):
    """One kind of problem. Instances hold no state between calls."""

    name: str

    @property
    def quick(self) -> bool:
        """``verify`` takes milliseconds on any text; otherwise it needs a process and a time limit."""
        ...

    def verify(self, text: str, columns: Mapping[str, Any]) -> bool | float | None:
        """Judge a completion text against the columns of its row; None means "cannot be judged"."""
        ...

    def validate_row(self, row: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with a data row (empty when it is usable); each entry names the field and the find."""
        ...

    def difficulty(self, columns: Mapping[str, Any]) -> float | None:
        """How hard a row is for this task, on any scale that grows; None: not known."""
        ...

    def normalize_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of a valid row in which the task's columns have their standard names."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTemplate:
    """Turns the columns of a row into chat messages.

    ``{column}`` in ``user`` is replaced by the value of that column, a list joined by ", ". Other braces stay.
    Example: ``PromptTemplate(user="{target} from {nums}")`` with ``nums=[4, 6], target=24`` gives "24 from 4, 6".
    """

    user: str
    system: str | None = None
    assistant_prefix: str | None = None
    """Opens the answer; stored as a last assistant message, which the completion continues."""

    def placeholders(self) -> tuple[str, ...]:
        """Names of the columns that ``user`` reads, in order of first use."""
        return tuple(dict.fromkeys(_PLACEHOLDER.findall(self.user)))

    def render(self, columns: Mapping[str, Any]) -> tuple[Message, ...]:
        """Messages for one row; UserError when a placeholder has no column."""
        missing = [name for name in self.placeholders() if name not in columns]
        if missing:
            raise UserError(
                f"the prompt template {self.user!r} reads {', '.join(missing)}; "
                f"the row has only: {', '.join(columns) or 'no columns'}."
            )
        # Model data never reaches str.format, whose fields can walk attributes.
        text = _PLACEHOLDER.sub(lambda match: _as_text(columns[match.group(1)]), self.user)
        return self.frame((Message(role="user", content=text),))

    def frame(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Add the system message (unless the first message is one) and the assistant prefix to given messages."""
        framed = list(messages)
        if self.system is not None and not (framed and framed[0]["role"] == "system"):
            framed.insert(0, Message(role="system", content=self.system))
        if self.assistant_prefix is not None:
            framed.append(Message(role="assistant", content=self.assistant_prefix))
        return tuple(framed)


@dataclass(frozen=True, slots=True)
class Probe:
    """A completion whose verdict is known, for ``covey check-reward``."""

    name: str
    text: str
    columns: Mapping[str, Any]
    right: bool
    why: str


def think_and_answer(thought: str, answer: str) -> str:
    """A completion in the form that the reward ``format`` wants."""
    return f"{THINK_OPEN}{thought}{THINK_CLOSE}\n{ANSWER_OPEN}{answer}{ANSWER_CLOSE}"


def extract_answer(text: str) -> str | None:
    """Return the inside of the one answer block that follows the last closing think tag, or None.

    Text without any think tag is searched as a whole. Drafts inside the thought do not count; no or several answer
    tags, or an answer inside a thought that was never closed, give None. Time is linear in the text.
    """
    _, closing, region = text.rpartition(THINK_CLOSE)
    if not closing and THINK_OPEN in text:
        return None
    if region.count(ANSWER_OPEN) != 1 or region.count(ANSWER_CLOSE) != 1:
        return None
    start = region.index(ANSWER_OPEN) + len(ANSWER_OPEN)
    end = region.index(ANSWER_CLOSE)
    if end < start or THINK_OPEN in region[:start]:
        return None
    return region[start:end]


def shown(value: object) -> str:
    """A short description of a wrong value for messages, e.g. "str '24'" or "null"."""
    if value is None:
        return "null"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _as_text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    return str(value)
