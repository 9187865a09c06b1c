"""The fast decoder against transformers on tiny random models: log-probs, gradients, decoding, the vocabulary head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from covey.models import logprob
from covey.models.base import PolicyModel
from covey.models.decoder import Decoder, spec_from_hf
from covey.models.hf import HFModel
from covey.models.logprob import gathered_logprobs, linear_logprobs
from covey.tensors import TokenBatch, make_batch

FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
TEMPERATURES = [0.7, 1.3, 1.0, 0.5, 1.5, 0.9]  # of the rows
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [15]]
COMPLETIONS = [[[20, 21, 2], [22, 2]], [[23]], [[24, 25, 26, 27, 2], [28, 2], [2]]]


def config(family: str, **changes: Any) -> Any:
    shape = {
        "vocab_size": 200,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
    }
    return FAMILIES[family][0](**(shape | changes))


def hf_model(family: str, **changes: Any) -> Any:
    """A random model; biases and norm weights too, which transformers would start at 0 and 1."""
    model = FAMILIES[family][1](config(family, **changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def gpt2() -> Any:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=200, n_positions=64, n_embd=32, n_layer=2, n_head=4)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def decoder_of(model: Any) -> Decoder:
    spec = spec_from_hf(model.config)
    assert spec is not None
    decoder = Decoder(spec)
    decoder.load_hf_state(model.state_dict())
    return decoder.eval()


def small_batch() -> TokenBatch:
    return make_batch(PROMPTS, COMPLETIONS).with_fields(temperatures=torch.tensor(TEMPERATURES))


def rows_alone(model: Any, prompts: Sequence[list[int]], completions: Sequence[Sequence[list[int]]]) -> Tensor:
    """Log-softmax [N, V] at TEMPERATURES for the completion positions, every row run alone and without padding."""
    owned = [(prompt, row) for prompt, rows in zip(prompts, completions, strict=True) for row in rows]
    parts = []
    for (prompt, row), temperature in zip(owned, TEMPERATURES, strict=False):
        logits = model(torch.tensor([prompt + row])).logits[0]
        parts.append(torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, -1))
    return torch.cat(parts)


def gradients(policy: PolicyModel) -> dict[str, Tensor]:
    """Gradients under Hugging Face names: a decoder whose weights are the gradients shows them by its own views."""
    if not isinstance(policy, Decoder):
        return {name: p.grad for name, p in policy.module.named_parameters() if p.grad is not None}
    holder = Decoder(policy.spec)
    with torch.no_grad():
        for target, source in zip(holder.parameters(), policy.parameters(), strict=True):
            assert source.grad is not None
            target.copy_(source.grad)
    return dict(holder.hf_state())


def largest_gap(left: Tensor, right: Tensor) -> float:
    return (left - right).abs().max().item()


CASES = [
    pytest.param("llama", {}, id="llama"),
    pytest.param("llama", {"tie_word_embeddings": False, "head_dim": 16}, id="llama-untied-wide-heads"),
    pytest.param(
        "llama",
        {"num_key_value_heads": 4, "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
        id="llama-mha",
    ),
    pytest.param("qwen2", {}, id="qwen2"),
    pytest.param("qwen2", {"tie_word_embeddings": False, "num_key_value_heads": 1}, id="qwen2-untied-mqa"),
    pytest.param("qwen3", {}, id="qwen3"),
    pytest.param("qwen3", {"tie_word_embeddings": False}, id="qwen3-untied"),
]


@pytest.mark.parametrize(("family", "changes"), CASES)
@pytest.mark.parametrize("generic", [False, True], ids=["decoder", "hf"])
def test_logprobs_and_gradients_are_those_of_transformers(family: str, changes: dict[str, Any], generic: bool) -> None:
    model = hf_model(family, **changes)
    batch = small_batch()
    weights = torch.randn(batch.num_tokens)
    full = rows_alone(model, PROMPTS, COMPLETIONS)
    expected = full.gather(1, batch.completion_ids[:, None]).squeeze(1)
    expected_entropy = -(full.exp() * full).sum(-1)
    (weights * expected + 0.3 * expected_entropy).sum().backward()
    expected_gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)

    policy: PolicyModel = HFModel(model) if generic else decoder_of(model)
    logp, entropy = policy.completion_logprobs(batch, chunk_size=4, with_entropy=True)
    assert logp.dtype == torch.float32 and entropy is not None
    (weights * logp + 0.3 * entropy).sum().backward()
    assert largest_gap(logp, expected) < 2e-5
    assert largest_gap(entropy, expected_entropy) < 2e-5
    found = gradients(policy)
    assert found.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        assert gradient.abs().max() > 0, name
        assert largest_gap(found[name], gradient) < 1e-5 * max(1.0, gradient.abs().max().item()), name


@pytest.mark.parametrize("generic", [False, True], ids=["decoder", "hf"])
def test_chunk_size_changes_nothing(generic: bool) -> None:
    """Known fault 32: chunks of 1, 3 and all give the same loss and gradient.

    In the generic path a chunk is a forward pass over other rows, so all layers round anew, not the projection alone.
    """
    bound = 3e-6 if generic else 1e-6
    model = hf_model("llama")
    policy: PolicyModel = HFModel(model) if generic else decoder_of(model)
    batch = small_batch()
    weights = torch.randn(batch.num_tokens) / batch.num_tokens
    results = []
    for chunk_size in (1000, 3, 1):
        policy.module.zero_grad(set_to_none=True)
        logp, entropy = policy.completion_logprobs(batch, chunk_size=chunk_size, with_entropy=True)
        assert entropy is not None
        loss = (weights * logp).sum()
        loss.backward()
        results.append((loss.detach(), logp.detach(), entropy, gradients(policy)))
    for loss, logp, entropy, found in results[1:]:
        assert largest_gap(loss, results[0][0]) < 1e-6
        assert largest_gap(logp, results[0][1]) < 1e-5
        assert largest_gap(entropy, results[0][2]) < 1e-5
        for name, gradient in results[0][3].items():
            assert largest_gap(found[name], gradient) < bound * max(1.0, gradient.abs().max().item()), name


def test_gradient_checkpointing_changes_nothing() -> None:
    decoder = decoder_of(hf_model("qwen3"))
    found = []
    for flag in (False, True):
        decoder.gradient_checkpointing = flag
        decoder.zero_grad(set_to_none=True)
        logp, entropy = decoder.completion_logprobs(small_batch(), chunk_size=100, with_entropy=False)
        assert entropy is None
        logp.mean().backward()
        found.append((logp.detach(), gradients(decoder)))
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(gradient, found[1][1][name]) for name, gradient in found[0][1].items())


# --- decoding ---


def decode_greedily(policy: PolicyModel, prompts: list[list[int]], steps: int) -> list[list[int]]:
    logits, state = policy.prefill(prompts, [1] * len(prompts), steps)
    rows = [logits.argmax(-1)]
    for _ in range(steps - 1):
        rows.append(state.step(rows[-1]).argmax(-1))
    return torch.stack(rows, 1).tolist()


@pytest.mark.parametrize(("family", "changes"), CASES)
def test_greedy_decoding_equals_generate_token_by_token(family: str, changes: dict[str, Any]) -> None:
    model = hf_model(family, **changes)
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, 200, (n,), generator=generator).tolist() for n in (4, 1, 9, 4, 17)]
    expected = []
    for prompt in prompts:
        ids = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        expected.append(ids[0, len(prompt) :].tolist())
    assert decode_greedily(decoder_of(model), prompts, 12) == expected
    assert decode_greedily(HFModel(model), prompts, 12) == expected


@pytest.mark.parametrize("kind", ["llama", "qwen3", "hf-llama", "hf-gpt2"])
def test_rows_and_groups_may_leave_while_decoding(kind: str) -> None:
    """Six rows of three prompts: one in the middle leaves, then a whole group (the longest), then all but one."""
    model = gpt2() if kind == "hf-gpt2" else hf_model(kind.removeprefix("hf-"))
    policy: PolicyModel = HFModel(model) if kind.startswith("hf") else decoder_of(model)
    sequences = [list(PROMPTS[k]) for k in (0, 0, 1, 1, 1, 2)]
    logits, state = policy.prefill(PROMPTS, [2, 3, 1], 10)
    schedule = {2: [0, 2, 4, 5], 3: [0, 3], 5: [1]}
    generator = torch.Generator().manual_seed(4)
    for step in range(8):
        with torch.no_grad():
            expected = torch.stack([model(torch.tensor([row])).logits[0, -1] for row in sequences])
        assert logits.dtype == torch.float32 and not logits.requires_grad
        assert largest_gap(logits, expected) < 1e-4, step
        if step in schedule:
            state.keep(torch.tensor(schedule[step]))
            sequences = [sequences[row] for row in schedule[step]]
        tokens = torch.randint(3, 200, (len(sequences),), generator=generator)
        sequences = [[*row, token] for row, token in zip(sequences, tokens.tolist(), strict=True)]
        logits = state.step(tokens)


# --- which models take the fast path ---

YARN = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 128}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 10000.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "unsupported",
    [
        pytest.param(lambda: config("llama", rope_parameters=LLAMA3), id="llama3-rope"),
        pytest.param(lambda: config("qwen2", rope_parameters=YARN), id="yarn"),
        pytest.param(lambda: config("llama", rope_scaling={"type": "linear", "factor": 2.0}), id="linear-old-spelling"),
        pytest.param(
            lambda: config("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=0), id="sliding"
        ),
        pytest.param(lambda: config("llama", mlp_bias=True), id="mlp-bias"),
        pytest.param(lambda: config("llama", attention_bias=True), id="attention-bias"),
        pytest.param(lambda: config("qwen3", attention_bias=True), id="qwen3-attention-bias"),
        pytest.param(lambda: config("llama", hidden_act="gelu"), id="gelu"),
        pytest.param(lambda: GPT2Config(), id="gpt2"),
    ],
)
def test_other_architectures_are_left_to_their_own_forward(unsupported: Any) -> None:
    assert spec_from_hf(unsupported()) is None


def test_the_spec_reads_the_config() -> None:
    spec = spec_from_hf(config("qwen2", rope_parameters={"rope_theta": 1e6, "rope_type": "default"}, rms_norm_eps=1e-5))
    assert spec is not None
    assert (spec.rope_theta, spec.rms_norm_eps, spec.qkv_bias, spec.qk_norm) == (1e6, 1e-5, True, False)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.intermediate_size) == (4, 2, 8, 48)


def test_a_foreign_state_is_refused() -> None:
    model = hf_model("llama", tie_word_embeddings=False)
    decoder = decoder_of(model)
    state = model.state_dict()
    lacking = {name: t for name, t in state.items() if name != "model.layers.1.mlp.up_proj.weight"}
    with pytest.raises(ValueError, match=r"lacks 1 weights.*layers\.1\.mlp\.up_proj"):
        decoder.load_hf_state(lacking)
    with pytest.raises(ValueError, match=r"does not know.*vision"):
        decoder.load_hf_state({**state, "vision.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"model\.norm\.weight: expected shape \(32,\), found \(1,\)"):
        decoder.load_hf_state({**state, "model.norm.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"lacks 1 weights.*lm_head"):
        decoder.load_hf_state({name: t for name, t in state.items() if name != "lm_head.weight"})


# --- the vocabulary projection ---


def test_logprobs_are_those_at_the_sampling_temperature() -> None:
    """Known fault 5. Logits [2, 0] at temperature 0.5 are [4, 0]: log-probs -ln(1 + e^-4) = -0.01815 and -4.01815."""
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
    ids = torch.tensor([0, 1])
    states, weight = torch.tensor([[1.0], [1.0]]), torch.tensor([[2.0], [0.0]])
    for logp, entropy in (
        linear_logprobs(states, weight, ids, 0.5, 1, True),
        gathered_logprobs(logits, ids, 0.5, True),
    ):
        assert logp.tolist() == pytest.approx([-0.01815, -4.01815], abs=5e-6)
        # p = 0.98201: entropy 0.98201 * 0.01815 + 0.01799 * 4.01815 = 0.09009
        assert entropy is not None and entropy.tolist() == pytest.approx([0.09009, 0.09009], abs=1e-5)
    assert gathered_logprobs(logits, ids, 1.0, False)[0].tolist() == pytest.approx([-0.12693, -2.12693], abs=5e-6)


def test_the_gradient_has_the_temperature_too() -> None:
    """d logp[0] / d logit = (onehot - p) / T: for p = 0.98201 and T = 0.5 it is (0.01799 / 0.5) * [1, -1]."""
    states = torch.ones(1, 1, requires_grad=True)
    weight = torch.tensor([[2.0], [0.0]], requires_grad=True)
    linear_logprobs(states, weight, torch.tensor([0]), 0.5, 1, False)[0].sum().backward()
    assert weight.grad is not None and weight.grad.squeeze(1).tolist() == pytest.approx([0.03597, -0.03597], abs=1e-5)
    assert states.grad is not None and states.grad.item() == pytest.approx(2 * 0.03597, abs=2e-5)


def test_logprobs_stay_finite_at_extreme_logits() -> None:
    states = torch.tensor([[1.0], [1.0]], requires_grad=True)
    logp, entropy = linear_logprobs(states, torch.tensor([[3e4], [-3e4]]), torch.tensor([0, 1]), 0.1, 8, True)
    logp.sum().backward()
    assert logp.tolist() == [0.0, -6e5]  # 2 * 3e4 / 0.1
    assert entropy is not None and entropy.tolist() == [0.0, 0.0]
    assert states.grad is not None and bool(states.grad.isfinite().all())


def test_only_completion_positions_meet_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known fault 32: of 60 tokens 8 are completion, so at most 9 positions are projected, at most 3 at a time."""
    decoder = decoder_of(hf_model("llama"))
    projected: list[int] = []
    real = logprob._chunk_logits

    def counting(states: Tensor, weight: Tensor, temperature: float) -> Tensor:
        projected.append(len(states))
        return real(states, weight, temperature)

    monkeypatch.setattr(logprob, "_chunk_logits", counting)
    batch = make_batch([list(range(3, 55))], [[list(range(60, 68))]])
    logp, _ = decoder.completion_logprobs(batch, chunk_size=3, with_entropy=True)
    assert sum(projected) <= 9 and max(projected) <= 3
    logp.sum().backward()
    assert sum(projected) <= 18  # the backward pass recomputes them once


def test_only_completion_positions_meet_the_head_of_any_other_model() -> None:
    model = gpt2()
    seen: list[int] = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[1]))
    batch = make_batch([list(range(3, 55))], [[list(range(60, 68))]])
    HFModel(model).completion_logprobs(batch, chunk_size=512, with_entropy=False)
    assert seen and max(seen) <= 9
    seen.clear()
    HFModel(model).prefill([list(range(3, 55)), [5, 6]], [2, 2], 4)
    assert seen == [1]


# --- learned positions ---


def test_a_row_does_not_feel_how_long_its_neighbours_are() -> None:
    """Known fault 11, on a model with learned positions: alone, beside longer prompts, and without any padding."""
    model = gpt2()
    policy = HFModel(model)
    row, prompt = [8, 9, 2], [5, 6, 7]
    single = make_batch([prompt], [[row]]).with_fields(temperatures=torch.tensor(TEMPERATURES[:1]))
    alone, _ = policy.completion_logprobs(single, chunk_size=512, with_entropy=False)
    beside = make_batch([prompt, list(range(20, 41))], [[row], [list(range(50, 62))]])
    beside = beside.with_fields(temperatures=torch.tensor(TEMPERATURES[:2]))
    padded, _ = policy.completion_logprobs(beside, chunk_size=512, with_entropy=False)
    with torch.no_grad():
        plain = rows_alone(model, [prompt], [[row]]).gather(1, torch.tensor(row)[:, None]).squeeze(1)
    assert largest_gap(alone, plain) < 1e-5
    assert largest_gap(padded[:3], plain) < 1e-5
    assert decode_greedily(policy, [prompt, list(range(20, 41))], 8)[0] == decode_greedily(policy, [prompt], 8)[0]
