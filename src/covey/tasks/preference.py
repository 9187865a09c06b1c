"""Rows with a chosen and a rejected answer, in the forms of TRL and ms-swift.

```json
{"prompt": "2+2", "chosen": "4", "rejected": "5"}
{"prompt": [{"role": "user", "content": "2+2"}], "chosen": [{"role": "assistant", "content": "4"}], "rejected": [...]}
{"chosen": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}], "rejected": [...]}
{"messages": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}], "rejected_response": "5"}
{"query": "2+2", "response": "4", "rejected_response": "5"}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FORMS = "chosen and rejected (with a prompt), or messages that end with the chosen answer and rejected_response"


def answer_text(value: object) -> str | None:
    """An answer given as text or as a list of one assistant message; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 1 and _is_assistant(value[0]):
        content: str = value[0]["content"]
        return content
    return None


def split_pair(row: Mapping[str, Any]) -> tuple[dict[str, Any], str, str]:
    """(the row without its answers, chosen, rejected). ValueError says what is wrong with the row."""
    rest = {key: value for key, value in row.items() if key not in _ANSWERS}
    if "chosen" in row and "rejected" in row:
        chosen, rejected = row["chosen"], row["rejected"]
        if "prompt" not in row and "messages" not in row and "query" not in row:
            turns, chosen, rejected = _split_dialogues(chosen, rejected)
            rest["messages"] = turns
    elif "rejected_response" in row and "messages" in row:
        turns = row["messages"]
        if not (isinstance(turns, list) and turns and _is_assistant(turns[-1])):
            raise ValueError("messages must end with the chosen answer, an assistant turn")
        rest["messages"], chosen, rejected = turns[:-1], turns[-1]["content"], row["rejected_response"]
    elif "rejected_response" in row and "response" in row:
        chosen, rejected = row["response"], row["rejected_response"]
    else:
        raise ValueError(f"no pair of answers; expected {_FORMS}")
    texts = []
    for name, value in (("chosen", chosen), ("rejected", rejected)):
        text = answer_text(value)
        if text is None or not text.strip():
            raise ValueError(f"the {name} answer must be text or one assistant message, found {value!r:.80}")
        texts.append(text)
    if texts[0] == texts[1]:
        raise ValueError("the chosen and the rejected answer are the same")
    return rest, texts[0], texts[1]


def pair_problems(row: Mapping[str, Any]) -> list[str]:
    """What is wrong with a row as a pair of answers; nothing for a good one."""
    try:
        split_pair(row)
    except ValueError as error:
        return [str(error)]
    return []


_ANSWERS = ("chosen", "rejected", "rejected_response", "response")


def _split_dialogues(chosen: object, rejected: object) -> tuple[list[Any], object, object]:
    """The turns that both have before their last one, which must be the assistant's, and these two."""
    if not (isinstance(chosen, list) and isinstance(rejected, list) and len(chosen) > 1 and len(rejected) > 1):
        raise ValueError("there is no prompt: chosen and rejected must then be whole dialogues")
    if chosen[:-1] != rejected[:-1]:
        raise ValueError("chosen and rejected differ before their last turn, so there is no common prompt")
    return chosen[:-1], chosen[-1:], rejected[-1:]


def _is_assistant(turn: object) -> bool:
    return isinstance(turn, dict) and turn.get("role") == "assistant" and isinstance(turn.get("content"), str)
