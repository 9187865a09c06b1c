"""Messages to prompt ids and sampled ids to text. Ids are never re-tokenized after that (known fault 10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jinja2 import TemplateError

from covey.errors import UserError
from covey.types import Message, Prompt


class ChatTokenizer:
    """A Hugging Face tokenizer behind the three calls Covey needs."""

    def __init__(self, tokenizer: Any) -> None:
        self.hf = tokenizer

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Prompt ids. A rendered template already spells its special tokens, so none are added; plain text (a model
        without a chat template) gets the tokenizer's own, as a BOS (known fault 7).

        UserError when the template refuses the messages, as some do with a system role."""
        if self.hf.chat_template is None:
            text = "\n".join(message["content"] for message in messages)
            return tuple(self.hf(text)["input_ids"])
        continued = messages[-1]["role"] == "assistant"
        try:
            text = self.hf.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=not continued, continue_final_message=continued
            )
        except (TemplateError, ValueError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise UserError(f"the model's chat template refuses messages with the roles {roles}: {error}") from error
        return tuple(self.hf(text, add_special_tokens=False)["input_ids"])

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Ids of a text that continues a prompt (a worked solution), without special tokens."""
        return tuple(self.hf(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, special tokens shown, spaces as they are."""
        text: str = self.hf.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


def tokenize_prompt(tokenizer: ChatTokenizer, prompt: Prompt, max_length: int | None, strategy: str) -> Prompt | None:
    """The prompt with its ids. One longer than ``max_length`` tokens is never cut: ``strategy`` "raise" refuses it
    (UserError naming it), "delete" gives None. UserError on a prompt without any token."""
    ids = tokenizer.encode(prompt.messages)
    if not ids:
        raise UserError(f"prompt {prompt.id} is empty: its messages give no tokens")
    if max_length is None or len(ids) <= max_length:
        return replace(prompt, token_ids=ids)
    if strategy == "raise":
        raise UserError(
            f"prompt {prompt.id} has {len(ids)} tokens, more than --max_length {max_length}; raise the limit or drop"
            " such prompts with --truncation_strategy delete (Covey never cuts a prompt)"
        )
    return None


def tokenize_prompts(
    tokenizer: ChatTokenizer, prompts: Sequence[Prompt], max_length: int | None, strategy: str
) -> tuple[list[Prompt], int]:
    """Prompts with their ids, and how many were dropped; see ``tokenize_prompt``. UserError when none is left."""
    kept = [p for prompt in prompts if (p := tokenize_prompt(tokenizer, prompt, max_length, strategy)) is not None]
    if not kept:
        raise UserError(f"all {len(prompts)} prompts are longer than --max_length {max_length} tokens")
    return kept, len(prompts) - len(kept)
