"""The local backend on tiny random models: invariances of an update, masters, skipped steps, resume, memory."""

from __future__ import annotations

import gc
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from covey.algo.losses import LOSSES
from covey.algo.metrics import merge_metrics
from covey.algo.objective import Objective
from covey.algo.weights import AggregationParams, aggregation_weights
from covey.backends.base import MetricSum, UpdateStats
from covey.backends.local import LocalBackend
from covey.backends.masters import AdamWParams
from covey.models.base import PolicyModel
from covey.models.decoder import Decoder, DecoderSpec
from covey.models.hf import HFModel
from covey.tensors import TokenBatch, make_batch

SPEC = DecoderSpec(
    vocab_size=200,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    tie_word_embeddings=True,
    qkv_bias=False,
    qk_norm=False,
)
EOS = 2


def tiny(seed: int = 0) -> Decoder:
    """Same weights for the same seed; matrices of std 0.1, which gives log-probs between about -3 and -8."""
    decoder = Decoder(SPEC).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return decoder


def flat(tensors: Any) -> Tensor:
    return torch.cat([t.detach().float().flatten() for t in tensors])


def logp_loss(batch: TokenBatch, logp: Tensor, entropy: Tensor | None) -> tuple[Tensor, Mapping[str, MetricSum]]:
    """Plain negative log-likelihood, for tests that need any gradient."""
    return -(batch.weights * logp).sum(), {}


# --- the same update, computed in different ways ---

Row = tuple[list[int], float, bool]  # completion, advantage, trained (False: masked as truncated)
GROUPS: list[tuple[list[int], list[Row]]] = [
    ([5, 6, 7], [([20, 21, 30, 2], 1.2, True), ([22, 2], -0.7, True), ([23, 24, 25], -0.5, False)]),
    ([8, 9, 10, 11, 12, 13, 2, 14], [([23, 2], 0.7, True), ([31, 32, 33, 34, 35, 36, 2], -0.7, True)]),
    ([15], [([24, 25, 26, 27, 2], -1.0, True), ([2], 1.0, True)]),
]


@dataclass(frozen=True)
class How:
    """How an update is computed; none of it may change the result."""

    rows_per_micro: int = 1000
    shared: bool = True
    checkpointing: bool = False
    chunk_size: int = 512
    reverse: bool = False
    neighbour: bool = False


WAYS = {
    "micro-batch 1": How(rows_per_micro=1),
    "micro-batch 2": How(rows_per_micro=2),
    "prompts repeated per row": How(shared=False),
    "prompts repeated, micro-batch 3": How(shared=False, rows_per_micro=3),
    "gradient checkpointing": How(checkpointing=True),
    "chunks of 3": How(chunk_size=3),
    "rows and groups reversed": How(reverse=True),
    "reversed, micro-batch 2": How(reverse=True, rows_per_micro=2),
    "beside a long row": How(neighbour=True),
}


def grpo_batch(how: How, loss_type: str) -> TokenBatch:
    groups = [(prompt, list(rows)) for prompt, rows in GROUPS]
    if how.reverse:
        groups = [(prompt, rows[::-1]) for prompt, rows in groups[::-1]]
    rows = [row for _, members in groups for row in members]
    batch = make_batch([prompt for prompt, _ in groups], [[row[0] for row in members] for _, members in groups])
    mask = torch.cat([torch.full((len(ids),), float(trained)) for ids, _, trained in rows])
    # one nominal micro-batch: bnpo's own definition is a mean inside micro-batches
    params = AggregationParams(max_completion_length=8, rows_per_micro_batch=1000)
    batch = batch.with_fields(
        temperatures=torch.tensor([0.7 + len(ids) / 50 for ids, _, _ in rows]),
        mask=mask,
        advantages=torch.cat([torch.full((len(ids),), advantage) for ids, advantage, _ in rows]),
        weights=aggregation_weights(mask, batch.lens, LOSSES[loss_type].aggregation, params),
    )
    if how.neighbour:
        batch = with_long_neighbour(batch)
    return batch if how.shared else batch.unshared()


def with_long_neighbour(batch: TokenBatch) -> TokenBatch:
    """One more group of one untrained row, its prompt and completion far longer than all others."""
    extra = make_batch([list(range(40, 100))], [[list(range(100, 150))]])
    names = ("prompt_ids", "prompt_lens", "completion_ids", "lens", "advantages", "weights", "rollout_logprobs")
    names += ("temperatures",)
    joined = {name: torch.cat([getattr(batch, name), getattr(extra, name)]) for name in names}
    return replace(
        batch,
        group_of_row=torch.cat([batch.group_of_row, extra.group_of_row + batch.num_groups]),
        mask=torch.cat([batch.mask, torch.zeros(extra.num_tokens)]),
        **joined,
    )


REQUIRED = {"cispo": {"epsilon_high": 1.1}}
OWN_RANGE: dict[str, dict[str, float]] = {name: {"epsilon": 0.05} for name in ("grpo", "dapo", "dr_grpo")}


def train(how: How, loss_type: str, beta: float, iterations: int) -> tuple[list[UpdateStats], Tensor]:
    """Statistics of every update on one rollout, and the weights after the last."""
    model = tiny()
    model.gradient_checkpointing = how.checkpointing
    # eps 1e-6: AdamW's first step is g / (|g| + eps), which blows up the rounding of gradients that are next to nothing
    params = AdamWParams(weight_decay=0.1, max_grad_norm=0.5, eps=1e-6)
    backend = LocalBackend(model, tiny(seed=1), params, chunk_size=how.chunk_size)
    on_policy = iterations == 1
    spec = LOSSES[loss_type]
    params = spec.with_options(OWN_RANGE.get(loss_type, {}) | REQUIRED.get(loss_type, {}))
    objective = Objective(spec.bind(params), "k3", beta, on_policy, entropy_coef=0.01, sequence_mask_delta=5.3)
    batch = grpo_batch(how, loss_type)
    if spec.marks is not None:  # chosen over the whole step, so not a matter of the split
        batch = batch.with_fields(marked=batch.completion_ids % 3 == 0)
    if not on_policy:
        batch = batch.with_fields(old_logprobs=backend.logprobs(batch.split(how.rows_per_micro))[0])
    if beta > 0:
        reference = backend.logprobs(batch.split(how.rows_per_micro), reference=True)[0]
        batch = batch.with_fields(ref_logprobs=reference)
    micros = batch.split(how.rows_per_micro)
    stats = [backend.update(micros, objective, lr=1e-3) for _ in range(iterations)]
    return stats, flat(model.parameters())


SETTINGS = [
    pytest.param("grpo", 0.0, 1, id="grpo"),
    pytest.param("dapo", 0.0, 1, id="dapo"),
    pytest.param("dr_grpo", 0.0, 1, id="dr_grpo"),
    pytest.param("grpo", 0.1, 1, id="grpo-kl"),
    pytest.param("dapo", 0.1, 2, id="dapo-kl-two-iterations"),
    pytest.param("grpo", 0.0, 2, id="grpo-two-iterations"),
    *(pytest.param(name, 0.0, 2, id=f"{name}-every-loss") for name in LOSSES),
]


@pytest.mark.parametrize(("loss_type", "beta", "iterations"), SETTINGS)
def test_how_an_update_is_computed_does_not_change_it(loss_type: str, beta: float, iterations: int) -> None:
    expected, weights = train(How(), loss_type, beta, iterations)
    moved = (weights - flat(tiny().parameters())).abs()
    assert moved.median() > 5e-4  # AdamW with rate 1e-3 moves every weight by about that: 1e-5 below is 1% of a step
    for name, how in WAYS.items():
        found, found_weights = train(how, loss_type, beta, iterations)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.loss == pytest.approx(theirs.loss, abs=1e-6, rel=1e-6), name
            assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=2e-6), name
            means, wanted = merge_metrics([ours.metrics]), merge_metrics([theirs.metrics])
            assert means == pytest.approx(wanted, abs=1e-5), name
        assert (found_weights - weights).abs().max() < 1e-5, name


def test_every_iteration_is_an_optimizer_step_on_frozen_old_logprobs() -> None:
    """Known fault 6: with two iterations over four micro-batches the ratio is 1 in the first and not in the second."""
    stats, _ = train(How(rows_per_micro=2), "grpo", 0.0, 2)
    first, second = (merge_metrics([s.metrics]) for s in stats)
    assert all(s.applied for s in stats)
    assert first["ratio/deviation"] == pytest.approx(0.0, abs=1e-6) and first["clip_ratio"] == 0.0
    assert second["ratio/deviation"] is not None and second["ratio/deviation"] > 1e-3


def test_the_kl_term_pulls_to_the_reference() -> None:
    free, _ = train(How(), "grpo", 0.0, 1)
    held, _ = train(How(), "grpo", 0.1, 1)
    kl = merge_metrics([held[0].metrics])["kl"]
    assert kl is not None and kl > 0.01 and "kl" not in free[0].metrics
    assert held[0].loss > free[0].loss + 1e-3 and held[0].grad_norm != pytest.approx(free[0].grad_norm, rel=1e-3)


def test_the_applied_gradient_is_the_weighted_sum_and_nothing_else() -> None:
    """The contract of backends/base.py: no division by micro-batches, rows or tokens."""
    batch = grpo_batch(How(), "dr_grpo")
    model = tiny()
    logp, _ = model.completion_logprobs(batch, chunk_size=512, with_entropy=False)
    (batch.weights * -logp).sum().backward()
    norm = flat(p.grad for p in model.parameters()).norm().item()
    stats = LocalBackend(tiny(), None, AdamWParams()).update(batch.split(3), logp_loss, 1e-4)
    assert stats.grad_norm == pytest.approx(norm, rel=1e-5)
    assert stats.loss == pytest.approx(-(batch.weights * logp).sum().item(), abs=1e-6)


def test_reference_logprobs_need_a_reference() -> None:
    with pytest.raises(RuntimeError, match="no reference model"):
        LocalBackend(tiny(), None, AdamWParams()).logprobs([grpo_batch(How(), "grpo")], reference=True)


# --- end tokens ---


def hf_tiny() -> HFModel:
    return HFModel(GPT2LMHeadModel(GPT2Config(vocab_size=200, n_positions=64, n_embd=32, n_layer=2, n_head=4)).eval())


@pytest.mark.parametrize("make", [tiny, hf_tiny], ids=["decoder", "hf"])
def test_an_end_token_that_is_also_the_pad_token_is_trained_and_seen(make: Any) -> None:
    """Known fault 8: pad = eos = 2. The first EOS alone gives a gradient, and prompt ids equal to it are attended."""
    prompt = [2, 5, 6, 2, 7]
    batch = make_batch([prompt, [9] * 12], [[[20, EOS]], [[21] * 6]])
    only_eos = torch.zeros(batch.num_tokens)
    only_eos[1] = 1.0
    model: PolicyModel = make()
    stats = LocalBackend(model, None, AdamWParams()).update([batch.with_fields(weights=only_eos)], logp_loss, 0.0)
    assert stats.grad_norm > 0.1

    before, _ = LocalBackend(model, None, AdamWParams()).logprobs([batch])
    for position in (0, 3):
        changed = list(prompt)
        changed[position] = 50
        after, _ = LocalBackend(model, None, AdamWParams()).logprobs(
            [make_batch([changed, [9] * 12], [[[20, EOS]], [[21] * 6]])]
        )
        assert (before - after)[:2].abs().max() > 1e-4
        assert torch.allclose(before[2:], after[2:], atol=1e-5)


# --- precision ---


def test_tiny_steps_add_up_in_the_masters() -> None:
    """Learning rate 3e-6 on weights near 0.02, where bf16 numbers are 1.2e-4 apart: pure bf16 would never move.

    With a gradient that keeps its direction AdamW moves a weight by about the rate each step: 40 steps are 1.2e-4.
    """
    model = tiny()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(0.2)
    backend = LocalBackend(model, None, AdamWParams(), compute_dtype=torch.bfloat16)
    assert {tensor.dtype for _, tensor in backend.named_weights()} == {torch.bfloat16}
    start = [m.clone() for m in backend.state_dict()["masters"]]
    rounded = flat(model.parameters())
    batch = make_batch([[5, 6, 7]], [[[20, 21, EOS]]]).with_fields(weights=torch.ones(3))
    backend.update([batch], logp_loss, 3e-6)
    masters = backend.state_dict()["masters"]
    assert all(m.dtype == torch.float32 for m in masters)
    step = (flat(masters) - flat(start)).abs()
    assert step.max() == pytest.approx(3e-6, rel=0.01)
    moved = step > 2e-6
    assert (flat(model.parameters()) != rounded)[moved].float().mean() < 0.2
    for _ in range(39):
        backend.update([batch], logp_loss, 3e-6)
    masters = backend.state_dict()["masters"]
    assert (flat(masters) - flat(start)).abs()[moved].median() > 6e-5
    assert (flat(model.parameters()) != rounded)[moved].float().mean() > 0.4
    assert torch.equal(flat(model.parameters()), flat(m.bfloat16() for m in masters))


def test_bf16_micro_batches_add_up_in_float32() -> None:
    """1 + 100 * 2^-9 added up in bf16 stays 1 (spacing 2^-7); the masters' gradient must hold the sum 1.195."""
    model = tiny()
    backend = LocalBackend(model, None, AdamWParams(max_grad_norm=1e9), compute_dtype=torch.bfloat16)
    batch = make_batch([[5, 6, 7]], [[[20, 21, EOS]]])
    one = backend.update([batch.with_fields(weights=torch.ones(3))], logp_loss, 0.0).grad_norm
    small = [batch.with_fields(weights=torch.full((3,), 2.0**-9))] * 100
    many = backend.update([batch.with_fields(weights=torch.ones(3)), *small], logp_loss, 0.0).grad_norm
    assert many / one == pytest.approx(1 + 100 * 2.0**-9, rel=1e-3)


def test_bf16_keeps_the_rotary_frequencies_of_other_models() -> None:
    """A frequency rounded to bf16 is wrong by up to 0.4%: a whole radian at position 250."""
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        rope_parameters=rope,
    )
    model = LlamaForCausalLM(config).eval()
    before = model.model.rotary_emb.inv_freq.clone()
    LocalBackend(HFModel(model), None, AdamWParams(), compute_dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert torch.equal(model.model.rotary_emb.inv_freq, before) and before.dtype == torch.float32


# --- steps that must not happen ---


def snapshot(backend: LocalBackend) -> bytes:
    """Every byte of weights and optimizer state."""
    buffer = io.BytesIO()
    torch.save(backend.state_dict(), buffer)
    return buffer.getvalue()


def nan_loss(batch: TokenBatch, logp: Tensor, entropy: Tensor | None) -> tuple[Tensor, Mapping[str, MetricSum]]:
    return (logp * float("nan")).sum(), {}


def infinite_gradient(
    batch: TokenBatch, logp: Tensor, entropy: Tensor | None
) -> tuple[Tensor, Mapping[str, MetricSum]]:
    return (logp - logp.detach()).sqrt().sum(), {}  # value 0, slope infinite


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_without_a_usable_gradient_changes_no_bit(dtype: torch.dtype) -> None:
    """Zero advantages, everything masked, NaN, infinity: neither weights (decay!) nor moments nor step count move."""
    batch = grpo_batch(How(), "grpo")
    objective = Objective(LOSSES["grpo"].bind(), "k3", 0.0, True)
    backend = LocalBackend(tiny(), None, AdamWParams(weight_decay=0.5), compute_dtype=dtype)
    assert backend.update(batch.split(2), objective, 1e-3).applied
    before, weights = snapshot(backend), flat(t for _, t in backend.named_weights())

    equal = batch.with_fields(advantages=torch.zeros(batch.num_tokens))
    zeros = torch.zeros(batch.num_tokens)
    for micros in ([equal], batch.with_fields(mask=zeros, weights=zeros).split(3), []):
        stats = backend.update(micros, objective, 1e-3)
        assert (stats.applied, stats.loss, stats.grad_norm) == (False, 0.0, 0.0)
        assert snapshot(backend) == before
    for broken in (nan_loss, infinite_gradient):
        stats = backend.update([batch], broken, 1e-3)
        assert not stats.applied and not stats.grad_norm < float("inf")
        assert snapshot(backend) == before
    assert torch.equal(flat(t for _, t in backend.named_weights()), weights)

    twin = LocalBackend(tiny(), None, AdamWParams(weight_decay=0.5), compute_dtype=dtype)
    for _ in range(2):
        twin.update(batch.split(2), objective, 1e-3)
    assert backend.update(batch.split(2), objective, 1e-3).applied
    assert snapshot(backend) == snapshot(twin)  # nothing of the refused gradients is left


class Interrupt(Exception):
    pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_interrupted_update_leaves_nothing_behind(dtype: torch.dtype) -> None:
    """Stopped in the backward pass of the second micro-batch, when the last layer has its gradients already."""
    batch = grpo_batch(How(), "grpo")
    model = tiny()
    backend = LocalBackend(model, None, AdamWParams(), compute_dtype=dtype)
    calls: list[int] = []

    def stop(gradient: Tensor) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise Interrupt

    before = snapshot(backend)
    handle = model.get_parameter("blocks.0.norm1.weight").register_hook(stop)
    with pytest.raises(Interrupt):
        backend.update(batch.split(2), logp_loss, 1e-3)
    handle.remove()
    assert snapshot(backend) == before
    clean = LocalBackend(tiny(), None, AdamWParams(), compute_dtype=dtype)
    assert backend.update([batch], logp_loss, 1e-3) == clean.update([batch], logp_loss, 1e-3)
    assert snapshot(backend) == snapshot(clean)


def test_gradient_clipping_limits_the_norm() -> None:
    """SGD-like check through AdamW's first moment: after one step m = (1 - beta1) * clipped gradient."""
    batch = grpo_batch(How(), "grpo").with_fields(weights=torch.ones(24))
    backend = LocalBackend(tiny(), None, AdamWParams(max_grad_norm=0.25))
    stats = backend.update([batch], logp_loss, 1e-3)
    moments = flat(entry["exp_avg"] for entry in backend.state_dict()["optimizer"]["state"].values())
    assert stats.grad_norm > 1.0
    assert moments.norm().item() == pytest.approx(0.1 * 0.25, rel=1e-4)


def test_decay_touches_matrices_only() -> None:
    """Rate 0.1, decay 0.5: a weight with zero gradient shrinks by 1 - 0.05. Untied, so an unused id has no gradient."""
    model = Decoder(replace(SPEC, tie_word_embeddings=False)).eval()
    before = model.embed.weight[150].clone()
    backend = LocalBackend(model, None, AdamWParams(weight_decay=0.5))
    batch = make_batch([[5]], [[[20, EOS]]]).with_fields(weights=torch.ones(2))
    backend.update([batch], logp_loss, 0.1)
    assert torch.allclose(model.embed.weight[150], before * 0.95)
    groups = backend.state_dict()["optimizer"]["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]
    assert [len(group["params"]) for group in groups] == [2 + 4 * 2, 1 + 2 * 2]


# --- resume ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(dtype: torch.dtype) -> None:
    """Known fault 28: 6 steps straight against 3, save, load into a fresh backend, 3."""
    batch = grpo_batch(How(), "grpo")
    objective = Objective(LOSSES["grpo"].bind(), "k3", 0.0, True)
    params = AdamWParams(weight_decay=0.1)

    def steps(backend: LocalBackend, first: int, last: int) -> None:
        for step in range(first, last):
            backend.update(batch.split(2), objective, 1e-3 * (step + 1))

    straight = LocalBackend(tiny(), None, params, compute_dtype=dtype)
    steps(straight, 0, 6)
    half = LocalBackend(tiny(), None, params, compute_dtype=dtype)
    steps(half, 0, 3)
    saved = snapshot(half)
    resumed = LocalBackend(tiny(seed=7), None, params, compute_dtype=dtype)
    resumed.load_state_dict(torch.load(io.BytesIO(saved), weights_only=True))
    assert snapshot(resumed) == saved
    published = dict(resumed.named_weights())
    assert all(torch.equal(tensor, published[name]) for name, tensor in half.named_weights())
    steps(resumed, 3, 6)
    assert snapshot(resumed) == snapshot(straight)


# --- memory ---


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def test_300_updates_do_not_grow_the_process() -> None:
    """Known fault 34: rollouts of 200 tokens; the tensors alive after 100 and after 300 updates are the same."""
    backend = LocalBackend(tiny(), tiny(1), AdamWParams())
    objective = Objective(LOSSES["grpo"].bind(), "k3", 0.1, False)
    generator = torch.Generator().manual_seed(5)
    marks: list[tuple[int, int]] = []
    for step in range(1, 301):
        rows = torch.randint(3, 200, (4, 50), generator=generator).tolist()
        batch = make_batch([[5, 6, 7], [8, 9]], [rows[:2], rows[2:]])
        batch = batch.with_fields(advantages=torch.randn(200, generator=generator), weights=torch.full((200,), 1 / 200))
        (old, _), (ref, _) = backend.logprobs([batch]), backend.logprobs([batch], reference=True)
        batch = batch.with_fields(old_logprobs=old, ref_logprobs=ref)
        assert backend.update([batch], objective, 1e-4).applied
        if step in (100, 300):
            marks.append((live_tensors(), psutil.Process().memory_info().rss))
    (tensors_100, rss_100), (tensors_300, rss_300) = marks
    assert tensors_300 == tensors_100
    assert rss_300 <= rss_100 + 10 * 2**20
