"""Identities between algorithms and invariances (section 10 of the facts sheet), on random batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from covey.algo.advantages import group_advantages
from covey.algo.contrastive import Contrast
from covey.algo.losses import LOSSES, ClipParams
from covey.algo.objective import Objective
from covey.algo.preference import PreferenceObjective
from covey.algo.weights import AggregationParams, aggregation_weights
from covey.tensors import TokenBatch, make_batch

CONSTANTS = AggregationParams(max_completion_length=9, rows_per_micro_batch=100)
NEEDED: dict[str, dict[str, float]] = {"cispo": {"epsilon_high": 1.2}}
SEEDS = [0, 1, 2]


def random_batch(seed: int, lens: tuple[int, ...] = (3, 5, 2, 4)) -> tuple[TokenBatch, Tensor]:
    """One group of rows with random log-probs, near and far from the old ones, and advantages that sum to 0."""
    generator = torch.Generator().manual_seed(seed)
    batch = make_batch([[1]], [[[7] * n for n in lens]])
    total = batch.num_tokens

    def draw(scale: float) -> Tensor:
        return scale * torch.randn(total, generator=generator, dtype=torch.float64)

    logp = -1 + draw(0.3)
    rewards = torch.rand(len(lens), generator=generator, dtype=torch.float64)
    advantages = group_advantages(rewards, batch.group_of_row, "grpo")
    batch = batch.with_fields(
        mask=torch.ones(total, dtype=torch.float64),
        advantages=advantages[batch.row_of_token],
        old_logprobs=logp + draw(0.3),
        ref_logprobs=logp + draw(0.3),
        rollout_logprobs=logp,
        rewards=rewards,
    )
    return batch, logp


def weighed(batch: TokenBatch, aggregation: str) -> TokenBatch:
    weights = aggregation_weights(batch.mask, batch.lens, aggregation, CONSTANTS, group_of_row=batch.group_of_row)
    return batch.with_fields(weights=weights)


def value_and_gradient(objective: Any, batch: TokenBatch, logp: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logp.clone().requires_grad_()
    loss = objective(batch, leaf)[0]
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def run(loss: str, batch: TokenBatch, logp: Tensor, on_policy: bool = False, **options: Any) -> tuple[Tensor, Tensor]:
    spec = LOSSES[loss]
    objective = Objective(spec.bind(spec.with_options(NEEDED.get(loss, {}) | options)), "k3", 0.0, on_policy)
    marked = None if spec.marks is None else torch.zeros(batch.num_tokens, dtype=torch.bool)
    return value_and_gradient(objective, weighed(batch, spec.aggregation).with_fields(marked=marked), logp)


def same(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> bool:
    return all(torch.allclose(x, y, atol=1e-12, rtol=1e-10) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_gspo_is_gspo_token_while_a_row_has_one_advantage(seed: int) -> None:
    batch, logp = random_batch(seed)
    one = run("gspo", batch, logp, epsilon=0.1)
    assert same(one, run("gspo", batch, logp, epsilon=0.1, importance_sampling_level="sequence_token"))


@pytest.mark.parametrize("seed", SEEDS)
def test_delta_is_the_dual_clip(seed: int) -> None:
    """max(clipped loss, -c A) for A < 0 (1912.09729)."""
    batch, logp = random_batch(seed)
    leaf = logp.clone().requires_grad_()
    ratio = (leaf - batch.old_logprobs).exp()
    a = batch.advantages
    plain = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a)
    dual = torch.where(a < 0, torch.minimum(plain, -1.3 * a), plain)
    loss = (weighed(batch, "seq-mean-token-mean").weights * dual).sum()
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert same(run("grpo", batch, logp, delta=1.3), (loss.detach(), gradient))


@pytest.mark.parametrize("seed", SEEDS)
def test_rloo_is_dr_grpo_times_g_over_g_minus_1(seed: int) -> None:
    batch, _ = random_batch(seed)
    assert batch.rewards is not None
    plain = group_advantages(batch.rewards, batch.group_of_row, "grpo", "none")
    assert torch.allclose(group_advantages(batch.rewards, batch.group_of_row, "rloo"), 4 / 3 * plain)


@pytest.mark.parametrize("seed", SEEDS)
def test_infonca_of_a_certain_preference_is_dpo(seed: int) -> None:
    """Two completions and rewards so far apart that the target is (1, 0): -log softmax of scaled log-ratios."""
    batch, logp = random_batch(seed, (3, 4))
    batch = batch.with_fields(rewards=torch.tensor([1000.0, 0.0], dtype=torch.float64))

    def infonca(part: TokenBatch, leaf: Tensor) -> Any:
        return Contrast("infonca", 1.0, 0.1, 1.0, 1)(part, leaf - part.ref_logprobs)

    assert same(
        value_and_gradient(infonca, batch, logp),
        value_and_gradient(PreferenceObjective("sigmoid", 0.1, 1), batch, logp),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_gvpo_with_a_detached_mean_has_the_same_gradient(seed: int) -> None:
    batch, logp = random_batch(seed)
    assert batch.rewards is not None
    leaf = logp.clone().requires_grad_()
    score = 0.1 * torch.zeros(4, dtype=torch.float64).index_add(0, batch.row_of_token, leaf - batch.old_logprobs)
    gap = (score - score.mean().detach()) - (batch.rewards - batch.rewards.mean())
    (detached,) = torch.autograd.grad(gap.square().sum() / 6, leaf)

    def gvpo(part: TokenBatch, values: Tensor) -> Any:
        return Contrast("gvpo", 1.0, 0.1, 1.0, 1)(part, values - part.old_logprobs)

    assert torch.allclose(value_and_gradient(gvpo, batch, logp)[1], detached)


PLAIN_ON_POLICY = ["grpo", "dapo", "ppo", "dr_grpo", "bnpo", "cispo", "dppo", "vespo", "sapo", "clip_cov", "kl_cov"]


@pytest.mark.parametrize("loss", PLAIN_ON_POLICY)
def test_on_policy_the_gradient_is_that_of_reinforce(loss: str) -> None:
    batch, logp = random_batch(0)
    spec = LOSSES[loss]
    plain = value_and_gradient(
        Objective(LOSSES["reinforce"].bind(), "k3", 0.0, True), weighed(batch, spec.aggregation), logp
    )
    assert torch.allclose(run(loss, batch, logp, on_policy=True)[1], plain[1], atol=1e-12)


@pytest.mark.parametrize("loss", ["gspo", "gmpo"])
def test_on_policy_a_ratio_per_sequence_is_reinforce_on_row_means(loss: str) -> None:
    """The ratio of a row moves with the mean of its log-probs, so every token gets A over the length of its row."""
    batch, logp = random_batch(0)
    found = run(loss, batch, logp, on_policy=True)[1]
    expected = -batch.advantages / (batch.lens.double().repeat_interleave(batch.lens) * 4)
    assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("loss", [name for name in LOSSES if name not in ("kl_cov",)])
def test_losses_are_of_degree_one_in_the_advantage(loss: str) -> None:
    """What makes a correction a factor on the advantage. (kl_cov has a term of its own on marked tokens.)"""
    batch, logp = random_batch(1)
    one = run(loss, batch, logp)
    scaled = run(loss, batch.with_fields(advantages=2.5 * batch.advantages), logp)
    assert same((2.5 * one[0], 2.5 * one[1]), scaled)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_order_of_the_rows_is_free(loss: str) -> None:
    batch, logp = random_batch(2)
    parts = list(logp.split(batch.lens.tolist()))
    order = [2, 0, 3, 1]
    tokens = torch.cat([torch.arange(len(logp)).split(batch.lens.tolist())[i] for i in order])
    shuffled = make_batch([[1]], [[[7] * int(batch.lens[i]) for i in order]]).with_fields(
        **{
            name: getattr(batch, name)[tokens]
            for name in ("mask", "advantages", "old_logprobs", "ref_logprobs", "rollout_logprobs")
        }
    )
    loss_value, gradient = run(loss, batch, logp)
    other_value, other = run(loss, shuffled, torch.cat([parts[i] for i in order]))
    assert torch.allclose(loss_value, other_value) and torch.allclose(gradient[tokens], other)


def test_a_contrast_of_masked_or_unscored_rows_leaves_them_out() -> None:
    batch, logp = random_batch(0)
    assert batch.rewards is not None
    rewards = batch.rewards.clone()
    rewards[1] = float("nan")
    two = batch.with_fields(rewards=rewards)
    kept = two.select_rows([0, 2, 3])
    term = Contrast("infonca", 1.0, 0.1, 1.0, 1)
    ratio = logp - batch.old_logprobs
    tokens = batch.row_of_token != 1
    assert torch.allclose(term(two, ratio)[0], term(kept, ratio[tokens])[0])
    alone = batch.with_fields(rewards=torch.tensor([1.0] + [float("nan")] * 3, dtype=torch.float64))
    value, metrics = term(alone, ratio)
    assert value.item() == 0 and metrics["contrastive"] == (0.0, 0.0)


def test_clip_params_keep_their_published_ranges() -> None:
    assert (ClipParams().lower, ClipParams().upper) == (0.8, 1.2)
    gspo = ClipParams(importance_sampling_level="sequence")
    assert (gspo.lower, gspo.upper) == (1 - 3e-4, 1 + 4e-4)
