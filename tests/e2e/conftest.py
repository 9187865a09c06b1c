"""Whole runs on models small enough for a test: random weights, but a real tokenizer, chat template and folder layout.

``covey`` runs a command line in this process; ``grpo`` and ``sft`` write the words of a short training run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from covey.cli.main import main

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|im_start|>", "<|im_end|>"]
CHARACTERS = ["\n", *map(chr, range(32, 127))]
MERGES = [("1", "2"), ("t", "h"), ("e", "r")]
"""So that decoding and encoding again does not give every sampled sequence back (known fault 10)."""

PLUGIN = '''
import signal

CALLS = []


def digits(completions, **columns):
    """Share of digits among eight tokens: something that the tiny model can learn."""
    return [sum(c.isdigit() for c in text) / 8 for text in completions]


def stop_in_call_2(completions, **columns):
    return _stopping(2, completions)


def stop_in_call_3(completions, **columns):
    return _stopping(3, completions)


def stop_in_call_4(completions, **columns):
    return _stopping(4, completions)


def _stopping(number, completions):
    """``digits``, with a Ctrl-C in its number-th call."""
    CALLS.append(number)
    if len(CALLS) == number:
        signal.raise_signal(signal.SIGINT)
    return digits(completions)


def uneven(completions, **columns):
    """Hardly ever the same for all completions of a group."""
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


def nobody(completions, **columns):
    return [None] * len(completions)


def constant(completions, **columns):
    return [0.7] * len(completions)


def too_few(completions, **columns):
    return [1.0]


def raises_from_call_2(completions, **columns):
    CALLS.append(0)
    if len(CALLS) >= 2:
        raise ZeroDivisionError("my own mistake")
    return digits(completions)


def tag_value(completions, tag, **columns):
    """Only the extra column decides, so that a row given to another completion shows."""
    return [float("abcde".index(t)) for t in tag]
'''


def save_tokenizer(folder: Path) -> int:
    """Save the tokenizer; its number of tokens."""
    words = [*SPECIAL, *CHARACTERS, *(a + b for a, b in MERGES)]
    core = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=MERGES))
    core.decoder = decoders.Fuse()
    hf = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=SPECIAL[1], pad_token=SPECIAL[1])
    hf.add_special_tokens({"additional_special_tokens": [SPECIAL[0]]})
    hf.chat_template = CHAT_TEMPLATE
    hf.save_pretrained(folder)
    return len(words)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with two layers of 64: the fast decoder."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    vocab = save_tokenizer(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None, eos_token_id=1,
        pad_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2: the generic path through the model's own forward, with learned positions."""
    folder = tmp_path_factory.mktemp("models") / "tiny-gpt2"
    vocab = save_tokenizer(folder)
    torch.manual_seed(0)
    shape = {"n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = GPT2Config(vocab_size=vocab, **shape, bos_token_id=1, eos_token_id=1, pad_token_id=1)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def no_weights(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model without its weights: an error that is not about them came before a model was loaded."""
    folder = tmp_path_factory.mktemp("models") / "no-weights"
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of reward functions."""
    path = tmp_path_factory.mktemp("plugins") / "my_rewards.py"
    path.write_text(PLUGIN)
    return path


@dataclass(frozen=True)
class Ended:
    """A command that has run in this process."""

    code: int
    out: str
    err: str


@pytest.fixture
def covey(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Ended]]:
    """``covey(*words)`` runs a command line in an empty current folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Ended:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    yield run


def flags(options: dict[str, Any]) -> list[str]:
    """``{"max_steps": 2, "reward_funcs": ["a", "b"]}`` as command-line words; None leaves an option out."""
    words = []
    for name, value in options.items():
        if value is not None:
            values = value if isinstance(value, list) else [str(value).lower() if isinstance(value, bool) else value]
            words += [f"--{name}", *map(str, values)]
    return words


@pytest.fixture
def grpo(tiny: Path, plugin: Path) -> Callable[..., list[str]]:
    """The words of a GRPO run of 3 on-policy steps of 2 groups of 4; keyword arguments change or add options."""

    def words(**changes: Any) -> list[str]:
        options = {
            "model": tiny, "dataset": "countdown", "countdown_num_puzzles": 8, "external_plugins": plugin,
            "reward_funcs": "digits", "num_generations": 4, "per_device_train_batch_size": 8, "learning_rate": 1e-2,
            "max_completion_length": 8, "max_steps": 3, "torch_dtype": "float32", "output_dir": "run",
        }  # fmt: skip
        options |= changes
        if str(options["reward_funcs"]).startswith("stop_in_call"):
            options["reward_workers"] = 0  # the Ctrl-C is for the trainer's own process
        return ["rlhf", "--rlhf_type", "grpo", *flags(options)]

    return words


@pytest.fixture
def sft(tiny: Path) -> Callable[..., list[str]]:
    """The words of a supervised run of 4 steps of 4 examples."""

    def words(**changes: Any) -> list[str]:
        options = {
            "model": tiny, "dataset": "rows.jsonl", "per_device_train_batch_size": 4, "learning_rate": 1e-2,
            "max_steps": 4, "torch_dtype": "float32", "output_dir": "run",
        }  # fmt: skip
        return ["sft", *flags({**options, **changes})]

    return words


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


@pytest.fixture(scope="session")
def lines_of() -> Callable[[Path | str], list[dict[str, Any]]]:
    """The records of a jsonl file, by a strict parser."""

    def read(path: Path | str) -> list[dict[str, Any]]:
        return [json.loads(line, parse_constant=_no_constant) for line in Path(path).read_text().splitlines()]

    return read


@pytest.fixture(scope="session")
def weights_of() -> Callable[[Path | str], dict[str, Tensor]]:
    """The weights in a model folder."""
    return lambda folder: load_file(Path(folder) / "model.safetensors")


@pytest.fixture(scope="session")
def same_weights() -> Callable[[dict[str, Tensor], dict[str, Tensor]], bool]:
    """Whether two sets of weights are equal bit for bit; tied copies may be written once or twice."""

    def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
        shared = a.keys() & b.keys()
        return bool(shared) and all(torch.equal(a[name], b[name]) for name in shared)

    return same


@pytest.fixture(scope="session")
def comparable() -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Metric lines without what depends on the clock and the process."""

    def strip(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {key: value for key, value in record.items() if not key.startswith(("time/", "tokens_per_s", "memory/"))}
            for record in records
        ]

    return strip
