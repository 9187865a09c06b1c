"""Messages to prompt ids: no BOS twice or missing, no cut prompt, one clear message for what cannot be encoded."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from covey.errors import UserError
from covey.models.tokenizer import ChatTokenizer, tokenize_prompts
from covey.types import Message, Prompt

WORDS = ["<bos>", "<unk>", "<eos>", "a", "b", "user", "assistant", "system", ":", "<end>", "<think>"]
ID = {word: index for index, word in enumerate(WORDS)}
TEMPLATE = (
    "<bos> {% for m in messages %}{{ m.role }} : {{ m.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}assistant :{% endif %}"
)
BOS_AND_TEXT = "<bos> {{ messages[0].content }}"


def tokenizer(template: str | None) -> ChatTokenizer:
    """Words are tokens; the post-processor adds BOS (id 0) to plain text, as many tokenizers do; eos = pad = 2."""
    core = Tokenizer(models.WordLevel(ID, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    hf = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<bos>", unk_token="<unk>", eos_token="<eos>", pad_token="<eos>"
    )
    hf.chat_template = template
    return ChatTokenizer(hf)


def turn(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def words(ids: tuple[int, ...]) -> str:
    return " ".join(WORDS[i] for i in ids)


# --- BOS ---


def test_a_template_that_spells_bos_gets_no_second_one() -> None:
    """Known fault 7: the naive route gives [0, 0, 3, 4]."""
    chat = tokenizer(BOS_AND_TEXT)
    assert chat.encode([turn("user", "a b")]) == (0, 3, 4)
    assert chat.hf("<bos> a b")["input_ids"] == [0, 0, 3, 4]  # the trap is really there


def test_plain_text_gets_the_tokenizers_own_bos() -> None:
    """Known fault 7, the other way round: [3, 4] would make such a model babble."""
    plain = tokenizer(None)
    assert plain.encode([turn("user", "a b")]) == (0, 3, 4)
    assert plain.encode([turn("system", "b"), turn("user", "a b")]) == (0, 4, 3, 4)


def test_a_continuation_gets_no_special_tokens() -> None:
    assert tokenizer(TEMPLATE).encode_text("a b <end>") == (3, 4, ID["<end>"])
    assert tokenizer(None).encode_text("a b") == (3, 4)


# --- templates ---


def test_the_prompt_ends_where_the_assistant_begins() -> None:
    ids = tokenizer(TEMPLATE).encode([turn("system", "b"), turn("user", "a b")])
    assert words(ids) == "<bos> system : b <end> user : a b <end> assistant :"


def test_an_assistant_message_at_the_end_is_continued() -> None:
    """A prompt may open the answer ("<think>"): no end of turn after it and no second header."""
    ids = tokenizer(TEMPLATE).encode([turn("user", "a"), turn("assistant", "<think> b")])
    assert words(ids) == "<bos> user : a <end> assistant : <think> b"


def test_an_assistant_turn_in_the_middle_is_closed() -> None:
    ids = tokenizer(TEMPLATE).encode([turn("user", "a"), turn("assistant", "b"), turn("user", "b")])
    assert words(ids) == "<bos> user : a <end> assistant : b <end> user : b <end> assistant :"


def test_a_role_the_template_refuses_is_a_user_error() -> None:
    refuses = tokenizer("{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}a")
    assert refuses.encode([turn("user", "b")]) == (3,)
    with pytest.raises(UserError, match=r"system, user.*no system role"):
        refuses.encode([turn("system", "a"), turn("user", "b")])


def test_decoding_shows_special_tokens_and_changes_no_space() -> None:
    assert tokenizer(TEMPLATE).decode((3, 2, 4, 9)) == "a <eos> b <end>"
    assert tokenizer(TEMPLATE).decode(()) == ""


# --- length policy ---


def prompt(name: str, text: str) -> Prompt:
    return Prompt(name, (turn("user", text),), {"tag": name})


THREE = [prompt("short", "a"), prompt("long", "a b a b"), prompt("exact", "a b")]  # 2, 5 and 3 tokens with BOS


def test_delete_drops_long_prompts_and_counts_them() -> None:
    kept, dropped = tokenize_prompts(tokenizer(BOS_AND_TEXT), THREE, 3, "delete")
    assert [(p.id, p.token_ids, p.columns) for p in kept] == [
        ("short", (0, 3), {"tag": "short"}),
        ("exact", (0, 3, 4), {"tag": "exact"}),
    ]
    assert dropped == 1


def test_raise_names_the_prompt_its_length_and_the_way_out() -> None:
    message = r"prompt long has 5 tokens, more than --max_length 3.*--truncation_strategy delete"
    with pytest.raises(UserError, match=message):
        tokenize_prompts(tokenizer(BOS_AND_TEXT), THREE, 3, "raise")


@pytest.mark.parametrize("strategy", ["raise", "delete"])
@pytest.mark.parametrize("limit", [None, 5, 1000])
def test_a_limit_that_nothing_exceeds_changes_nothing(limit: int | None, strategy: str) -> None:
    kept, dropped = tokenize_prompts(tokenizer(BOS_AND_TEXT), THREE, limit, strategy)
    assert dropped == 0
    assert [p.token_ids for p in kept] == [(0, 3), (0, 3, 4, 3, 4), (0, 3, 4)]
    assert [p.messages for p in kept] == [p.messages for p in THREE]


def test_dropping_everything_is_an_error() -> None:
    with pytest.raises(UserError, match="all 3 prompts are longer than --max_length 1"):
        tokenize_prompts(tokenizer(BOS_AND_TEXT), THREE, 1, "delete")


def test_an_empty_prompt_is_an_error() -> None:
    with pytest.raises(UserError, match="prompt nothing is empty"):
        tokenize_prompts(tokenizer("{{ messages[0].content }}"), [prompt("nothing", "")], None, "raise")
