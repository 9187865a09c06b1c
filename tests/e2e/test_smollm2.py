"""The embedded model itself: engine, trainer and transformers agree on SmolLM2-135M-Instruct."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from covey.algo.objective import Objective
from covey.backends.local import LocalBackend
from covey.backends.masters import AdamWParams
from covey.models.decoder import Decoder
from covey.models.embedded import fetch
from covey.models.load import LoadedModel, load_model
from covey.rollout.base import Sampling
from covey.rollout.torch_engine import TorchEngine
from covey.tensors import TokenBatch, make_batch
from covey.types import Completion, Message, Prompt

CPU = torch.device("cpu")
QUESTIONS = [
    "What is the capital of France?",
    "24 from 8, 6, 2",
    "Name three colours.",
    "Write a haiku about rain.",
    "What is 7 times 8?",
    "Who wrote Hamlet?",
    "Translate 'good morning' into Spanish.",
    "List the days of the week.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes.",
    "What is a prime number?",
    "Say hello.",
    "How many legs does a spider have?",
    "What is the largest planet?",
    "Define photosynthesis in one sentence.",
    "Continue: once upon a time",
    "Write a Python function that adds two numbers.",
    "What comes after Tuesday?",
    "Is water wet?",
    "Count from one to ten.",
]


@pytest.fixture(scope="module")
def folder() -> str:
    return str(fetch("smollm2-135m"))


@pytest.fixture(scope="module")
def loaded(folder: str) -> LoadedModel:
    return load_model(folder, CPU)


def prompts_of(loaded: LoadedModel, texts: Sequence[str]) -> list[Prompt]:
    turns = [(Message(role="user", content=text),) for text in texts]
    return [Prompt(f"q{i}", turn, {}, loaded.tokenizer.encode(turn)) for i, turn in enumerate(turns)]


def engine_of(loaded: LoadedModel) -> TorchEngine:
    return TorchEngine(loaded.policy, loaded.tokenizer.decode, loaded.end_ids)


def batch_of(prompts: Sequence[Prompt], groups: Sequence[Sequence[Completion]]) -> TokenBatch:
    batch = make_batch([p.token_ids for p in prompts], [[c.token_ids for c in group] for group in groups])
    logprobs = torch.tensor([value for group in groups for c in group for value in c.logprobs])
    temperatures = torch.tensor([c.temperature for group in groups for c in group])
    ones = torch.ones(batch.num_tokens)
    batch = batch.with_fields(rollout_logprobs=logprobs, temperatures=temperatures)
    return batch.with_fields(advantages=ones, weights=ones / batch.num_tokens)


def test_the_embedded_model_is_what_it_says(loaded: LoadedModel) -> None:
    assert isinstance(loaded.policy, Decoder)
    assert sum(p.numel() for p in loaded.policy.parameters()) == 134_515_008
    assert loaded.end_ids == (2,)
    prompt = Prompt("plain", (), {}, tuple(loaded.tokenizer.hf("The capital of France is")["input_ids"]))
    [[answer]] = engine_of(loaded).generate([prompt], 1, Sampling(temperature=0, max_new_tokens=2), seed=(0,))
    assert answer.text == " Paris."


def test_greedy_text_equals_transformers_generate(folder: str, loaded: LoadedModel) -> None:
    prompts = prompts_of(loaded, QUESTIONS)
    ours = engine_of(loaded).generate(prompts, 1, Sampling(temperature=0, max_new_tokens=24), seed=(0,))
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for prompt, [completion] in zip(prompts, ours, strict=True):
        ids = torch.tensor([prompt.token_ids])
        theirs = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, pad_token_id=2
        )[0, ids.shape[1] :].tolist()
        assert list(completion.token_ids) == theirs, prompt.messages


def test_engine_and_trainer_log_probs_agree_in_fp32(loaded: LoadedModel) -> None:
    """The ratio of the trainer to the engine on the first step is 1 within 1e-4, at a temperature that is not 1."""
    prompts = prompts_of(loaded, QUESTIONS[:3])
    sampling = Sampling(temperature=0.8, max_new_tokens=24)
    batch = batch_of(prompts, engine_of(loaded).generate(prompts, 4, sampling, seed=(1, 0)))
    backend = LocalBackend(loaded.policy, None, AdamWParams())
    trainer = backend.logprobs(batch.split(5))[0]
    assert (trainer - batch.rollout_logprobs).abs().max() < 1e-4
    assert ((trainer - batch.rollout_logprobs).exp() - 1).abs().max() < 1e-4


def test_bf16_engine_and_trainer_stay_close(folder: str) -> None:
    """Mean |ratio - 1| in bf16, as the objective reports it in every run.

    The raw model answers open questions at 2 to 3 nats a token, where rounding shows most: 0.022 was measured (0.038
    before the residual stream and the chosen logit were float32). The warm start of the main job is at 0.005.
    """
    loaded = load_model(folder, CPU)
    backend = LocalBackend(loaded.policy, None, AdamWParams(), compute_dtype=torch.bfloat16)
    prompts = prompts_of(loaded, QUESTIONS[:4])
    batch = batch_of(prompts, engine_of(loaded).generate(prompts, 4, Sampling(max_new_tokens=32), seed=(2, 0)))
    trainer = backend.logprobs([batch])[0]
    assert ((trainer - batch.rollout_logprobs).exp() - 1).abs().mean() < 0.03
    objective = Objective(lambda inputs: (inputs.logp * 0.0, {}), "k3", 0.0, on_policy=True)
    _, metrics = objective(batch, trainer)
    gap, count = metrics["rollout/logp_gap"]
    assert 0 < gap / count < 0.03


class LargestTensor(TorchDispatchMode):
    """Records the bytes of the largest tensor any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for item in tree_leaves(result):
            if isinstance(item, torch.Tensor):
                self.size = max(self.size, item.numel() * item.element_size())
        return result


def test_log_probs_never_make_all_logits(loaded: LoadedModel) -> None:
    """Known fault 32: 4 rows of 256 + 16 tokens. Full fp32 logits would take 214 MB; the largest tensor of the pass is
    the head itself (113 MB, a view), and no logits beyond one chunk."""
    prompt = list(range(100, 356))
    batch = make_batch([prompt] * 4, [[[1000 + 16 * row + t for t in range(16)]] for row in range(4)])
    with torch.no_grad(), LargestTensor() as largest:
        loaded.policy.completion_logprobs(batch, chunk_size=32, with_entropy=True)
    assert largest.size == 49152 * 576 * 4
