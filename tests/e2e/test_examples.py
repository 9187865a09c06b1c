"""The files under examples/ do what they say; the one-file twin computes what Covey computes."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import runpy
import shlex
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from covey.algo.advantages import group_advantages as covey_advantages
from covey.algo.losses import ClipParams, clipped_policy_loss
from covey.algo.objective import Objective
from covey.algo.weights import AggregationParams, aggregation_weights
from covey.cli.flags import ALIASES, FLAGS, fixed_flags
from covey.cli.parse import parse
from covey.rewards import build_reward_set
from covey.rewards.plugin import load_plugin
from covey.tensors import make_batch
from covey.types import Completion, Prompt

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def twin() -> Any:
    return load(EXAMPLES / "minimal_grpo.py")


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- minimal_grpo.py


def test_the_twin_is_one_short_file_without_covey() -> None:
    text = (EXAMPLES / "minimal_grpo.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    assert "import covey" not in text and "from covey" not in text


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_toy_model_learns(twin: Any, seed: int) -> None:
    """A random model is right by chance in 1 of 14 x 14 completions; seen after 50 steps: reward 0.79 to 0.90."""
    history = twin.main(["--tiny", "--steps", "50", "--seed", str(seed)])

    def mean(name: str, steps: slice) -> float:
        values = [metrics[name] for metrics in history[steps]]
        return sum(values) / len(values)

    first, last = slice(0, 3), slice(-10, None)
    assert mean("reward", first) < 0.15
    assert mean("reward", last) - mean("reward", first) > 0.4
    assert mean("accuracy", last) - mean("accuracy", first) > 0.2  # not the format alone


def test_the_step_does_not_depend_on_the_micro_batch(twin: Any) -> None:
    runs = [
        twin.main(["--tiny", "--steps", "3", "--beta", "0.1", "--rows_per_micro_batch", rows])[-1]
        for rows in ("160", "24")
    ]
    assert runs[0] == pytest.approx(runs[1], abs=1e-4)


def test_equal_rewards_give_exact_zeros(twin: Any) -> None:
    # 0.4 and 0.4 + 2**-25 differ by the rounding of a float32 sum
    rewards = torch.tensor([[0.4, 0.4, 0.4], [0.4, 0.4 + 2**-25, 0.4], [1.0, 0.0, 0.5]])
    advantages = twin.group_advantages(rewards)
    assert (advantages[:2] == 0).all()
    # std of (1, 0, 0.5) with ddof=1 is 0.5
    assert advantages[2].tolist() == pytest.approx([0.5 / 0.5001, -0.5 / 0.5001, 0.0])


def test_twin_and_covey_have_the_same_gradient(twin: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    lens, width, beta = [3, 1, 2, 3], 3, 0.3
    trained = torch.tensor([[float(column < n) for column in range(width)] for n in lens])
    rewards = torch.tensor([1.0, 0.4, 0.0, 0.4])
    old, ref, logp = (-3 * torch.rand(4, width, generator=generator) for _ in range(3))

    padded = logp.clone().requires_grad_()
    advantages = twin.group_advantages(rewards.view(2, 2)).view(-1, 1)
    args = Namespace(epsilon=0.2, beta=beta)
    loss = ((trained / trained.sum()) * twin.token_loss(padded, old, ref, advantages, args)).sum()
    loss.backward()

    kept = trained.bool()
    flat = logp[kept].clone().requires_grad_()
    batch = make_batch([[5], [6]], [[[1] * lens[0], [1] * lens[1]], [[1] * lens[2], [1] * lens[3]]])
    rows = covey_advantages(rewards, batch.group_of_row, estimator="grpo", scale="group")
    batch = batch.with_fields(
        advantages=rows.repeat_interleave(batch.lens),
        weights=aggregation_weights(batch.mask, batch.lens, "token-mean", AggregationParams()),
        old_logprobs=old[kept],
        ref_logprobs=ref[kept],
    )
    objective = Objective(lambda inputs: clipped_policy_loss(inputs, ClipParams()), "k3", beta, on_policy=False)
    covey_loss, _ = objective(batch, flat)
    covey_loss.backward()

    assert loss.item() == pytest.approx(covey_loss.item(), abs=1e-6)
    assert padded.grad is not None and flat.grad is not None
    assert torch.allclose(padded.grad[kept], flat.grad, atol=1e-6)
    assert (padded.grad[~kept] == 0).all()


CHECKS = {
    "<think>8*(5-2)</think>\n<answer>8*(5-2)</answer>": (1.0, 1.0),
    "<think></think><answer> (5 - 2) * 8 </answer>": (1.0, 1.0),
    "<think></think><answer>8*3</answer>": (1.0, 0.0),  # 24, but not with the numbers given
    "<think></think><answer>8*5-2</answer>": (1.0, 0.0),  # 38
    "<think></think><answer>8/(5-5)*2</answer>": (1.0, 0.0),  # division by zero
    "<think></think><answer>8**2-5</answer>": (1.0, 0.0),
    "<think></think><answer>-(2-5)*8</answer>": (1.0, 0.0),  # no signs, as in the docstring's grammar
    "<think></think><answer>__import__('os')</answer>": (1.0, 0.0),
    "<think></think><answer>" + "(" * 5000 + "</answer>": (1.0, 0.0),
    "<think></think><answer> </answer>": (0.0, 0.0),
    "8*(5-2)": (0.0, 0.0),  # no tags: no format reward
    "<think></think><answer>8*(5-2)</answer><answer>8*(5-2)</answer>": (0.0, 0.0),
}


@pytest.mark.parametrize("text", CHECKS)
def test_the_checker_of_the_twin(twin: Any, text: str) -> None:
    assert twin.score(text, twin.Puzzle((2, 8, 5), 24)) == CHECKS[text]


def test_a_model_folder_plays(twin: Any, tmp_path: Path) -> None:
    save_random_model(tmp_path)
    options = ["--prompts_per_step", "2", "--num_generations", "2", "--max_completion_length", "4", "--steps", "2"]
    history = twin.main(["--model", str(tmp_path), *options])
    # a random model never writes a tag: all rewards 0, all groups equal, and at most 4 tokens
    assert [(m["reward"], m["equal groups"]) for m in history] == [(0.0, 1.0)] * 2
    assert all(1 <= m["length"] <= 4 for m in history)


def test_padding_shifts_nothing(twin: Any) -> None:
    torch.manual_seed(0)
    policy = twin.toy_player().policy.eval()
    short, long, completion = [4, 2], [5, 6, 7, 8, 9], [3, 1]
    ids = torch.tensor([[0, 0, 0, *short, *completion], [*long, *completion]])
    attention = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7])
    together = twin.logprobs(policy, ids, attention, 5, 1.0)
    alone = twin.logprobs(policy, ids[:1, 3:], attention[:1, 3:], 2, 1.0)
    assert torch.allclose(together[:1], alone, atol=1e-5)


# --- own_reward.py and train_in_python.py


def test_own_rewards_are_found_and_called() -> None:
    plugins = load_plugin(EXAMPLES / "own_reward.py")
    rewards = build_reward_set(["short_answer", "uses_the_numbers"], plugins=plugins)
    prompt = Prompt("p", ({"role": "user", "content": "24 from 2, 8, 5"},), {"nums": [2, 8, 5], "target": 24})
    completion = Completion((1,) * 50, (0.0,) * 50, "8*5", "stop")
    (scored,) = rewards.score([prompt], [completion]).scored
    # 50 of 200 tokens; 8 and 5 of three numbers
    assert scored.rewards == {"short_answer": 0.75, "uses_the_numbers": pytest.approx(2 / 3)}


def save_random_model(folder: Path) -> None:
    """A two-layer Llama with random weights, a word-level tokenizer and a chat template."""
    words = ["<unk>", "<end>", "hello", *(f"w{i}" for i in range(29))]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")),
        unk_token="<unk>",
        eos_token="<end>",
        chat_template="{% for m in messages %}{{ m['content'] }} {% endfor %}",
    )
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        eos_token_id=1,
        bos_token_id=None,
        pad_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def test_train_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    save_random_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train_in_python.py", "model"])
    runpy.run_path(str(EXAMPLES / "train_in_python.py"), run_name="__main__")
    assert "3 steps; the model is in runs" in capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    # at most 1 for the word, less 0.01 for each of at most 16 tokens
    assert all(math.isfinite(line["reward/says_hello"]) and -0.16 <= line["reward/says_hello"] < 1 for line in lines)
    LlamaForCausalLM.from_pretrained(folder / "final")


# --- README.md


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def shell_commands() -> list[list[str]]:
    lines = "".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


def test_the_python_block_is_the_example() -> None:
    code = (EXAMPLES / "train_in_python.py").read_text(encoding="utf-8")
    assert code.partition("\n\n")[2].strip() in [block.strip() for block in blocks("python")]


def test_commands_of_the_readme_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/mine/final").mkdir(parents=True)
    (tmp_path / "runs/warm/final").mkdir(parents=True)
    config = {"rlhf_type": "grpo", "model": "smollm2-135m", "dataset": "countdown", "reward_funcs": ["format"]}
    (tmp_path / "runs/mine/config.json").write_text(json.dumps(config))
    covey = [words[1:] for words in shell_commands() if words[0] == "covey"]
    assert len(covey) >= 9
    for command, *words in covey:
        if command == "recipe":
            assert (ROOT / words.pop(0)).is_file()
        if command != "models":
            parse(command, words)


def test_make_targets_and_files_of_the_readme_exist() -> None:
    targets = {words[1] for words in shell_commands() if words[0] == "make"}
    targets |= set(re.findall(r"`make ([\w-]+)`", README))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"countdown", "test"} <= targets
    assert not [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)]
    assert not [link for link in re.findall(r"\]\(([\w./-]+)\)", README) if not (ROOT / link).is_file()]


def test_flags_of_the_readme_exist() -> None:
    known = {line.name for line in FLAGS} | {"config", "rlhf_type", "preset"} | set(ALIASES) | fixed_flags().keys()
    own = {"tiny", "help"}  # of minimal_grpo.py, of every command
    assert not set(re.findall(r"--([a-z]\w+)", README)) - known - own


# --- ARCHITECTURE.md


def test_the_tree_names_every_module() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    tree = text.partition("```\n")[2].partition("```")[0]
    named = set(re.findall(r"\w+\.py", tree))
    modules = {path.name for path in (ROOT / "src/covey").rglob("*.py")}
    others = {path.name for folder in ("examples", "scripts") for path in (ROOT / folder).glob("*.py")}
    assert not modules - named, "say in one line what these are"
    assert not named - modules - others, "these are gone"
