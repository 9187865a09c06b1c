"""``covey chat`` and ``covey sample``: talk to a model, or draw completions of given prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from covey.build.objects import device_of, dtype_of, engine_of, sampling_of
from covey.config import ChatConfig, ModelConfig, SampleConfig
from covey.models.load import LoadedModel, load_model
from covey.types import Message, Prompt


def _load(config: ModelConfig) -> LoadedModel:
    return load_model(config.model, device_of(config.device), dtype_of(config))


def _prompt(loaded: LoadedModel, name: str, messages: Sequence[Message]) -> Prompt:
    return Prompt(name, tuple(messages), {}, loaded.tokenizer.encode(messages))


def _framed(system: str | None, text: str) -> list[Message]:
    system_turn = [] if system is None else [Message(role="system", content=system)]
    return [*system_turn, Message(role="user", content=text)]


def sample(config: SampleConfig) -> None:
    """Print one json line per completion: prompt, completion, finish_reason, tokens."""
    loaded = _load(config.model)
    options = config.sample
    prompts = [_prompt(loaded, f"prompt:{i}", _framed(options.system, t)) for i, t in enumerate(options.prompt)]
    sampling = sampling_of(config.sampling)
    groups = engine_of(loaded).generate(prompts, options.num_samples, sampling, seed=(options.seed,))
    for text, group in zip(options.prompt, groups, strict=True):
        for completion in group:
            record = {
                "prompt": text,
                "completion": completion.text,
                "finish_reason": completion.finish_reason,
                "tokens": len(completion.token_ids),
            }
            print(json.dumps(record, ensure_ascii=False))


def chat(config: ChatConfig) -> None:
    """A conversation on the terminal; an empty line or end of input ends it. Piped input is answered line by line."""
    loaded = _load(config.model)
    engine = engine_of(loaded)
    sampling = sampling_of(config.sampling)
    messages: list[Message] = []
    if config.chat.system is not None:
        messages.append(Message(role="system", content=config.chat.system))
    interactive = sys.stdin.isatty()
    if interactive:
        print("an empty line ends the chat", file=sys.stderr)
    turn = 0
    while True:
        try:
            text = input("> " if interactive else "")
        except EOFError:
            return
        if not text.strip():
            return
        messages.append(Message(role="user", content=text))
        prompt = _prompt(loaded, f"turn:{turn}", messages)
        [[completion]] = engine.generate([prompt], 1, sampling, seed=(config.chat.seed, turn))
        print(completion.text, flush=True)
        messages.append(Message(role="assistant", content=completion.text))
        turn += 1
