"""The objective as a backend sees it: ratios over several updates (known fault 6), metrics, masks (known fault 38)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from covey.algo.losses import LOSSES, ClipParams
from covey.algo.metrics import Metrics, merge_metrics, token_mean
from covey.algo.objective import Objective
from covey.tensors import TokenBatch, make_batch


def grpo(on_policy: bool = True, beta: float = 0.0, params: ClipParams | None = None) -> Objective:
    return Objective(LOSSES["grpo"].bind(params), "k3", beta, on_policy)


def ones_batch(lens: list[int]) -> TokenBatch:
    batch = make_batch([[1]], [[[7] * n for n in lens]])
    ones = torch.ones(batch.num_tokens)
    return batch.with_fields(advantages=ones, weights=ones / batch.num_tokens)


def values(metrics: Metrics) -> dict[str, float | None]:
    return merge_metrics([metrics])


def test_the_second_update_on_a_rollout_sees_a_moved_ratio() -> None:
    """Logits [0.3, -0.2, 0.1], action 0, advantage 1, SGD with rate 0.5.

    p0 = e^0.3 / (e^0.3 + e^-0.2 + e^0.1) = 0.41232; the gradient of -A * ratio is p - onehot, so the logits become
    [0.59384, -0.32504, -0.06880] and p0 becomes 0.52232: ratio 1.2668, past the clip at 1.2.
    """
    logits = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
    old = logits.detach().log_softmax(0)[:1]
    batch = ones_batch([1]).with_fields(old_logprobs=old, rollout_logprobs=old)
    ratios, clipped = [], []
    for _ in range(3):
        token_loss, metrics = grpo(on_policy=False)(batch, logits.log_softmax(0)[:1])
        (gradient,) = torch.autograd.grad((batch.weights * token_loss).sum(), logits)
        with torch.no_grad():
            logits -= 0.5 * gradient
        ratios.append(values(metrics)["ratio/mean"])
        clipped.append(values(metrics)["clip_ratio/high"])
    assert ratios[0] == 1.0
    assert ratios[1] == pytest.approx(1.2668, abs=5e-5)
    assert ratios[2] == ratios[1]  # clipped: no further push
    assert clipped == [0.0, 1.0, 1.0]


def test_clip_metrics_count_tokens_without_a_gradient() -> None:
    ratio = torch.tensor([0.7, 0.7, 1.3, 1.3, 4.0, 1.0])
    batch = ones_batch([6]).with_fields(
        advantages=torch.tensor([-1.0, 1.0, 1.0, -1.0, -1.0, 0.0]), old_logprobs=torch.zeros(6)
    )
    logp = ratio.log().requires_grad_()
    token_loss, metrics = grpo(on_policy=False, params=ClipParams(delta=3.0)).token_loss(batch, logp)
    token_loss.sum().backward()
    assert logp.grad is not None
    assert (logp.grad == 0).tolist() == [True, False, True, False, True, True]  # the last: advantage 0
    shown = values(metrics)
    assert shown["clip_ratio/low"] == pytest.approx(1 / 6)
    assert shown["clip_ratio/high"] == pytest.approx(2 / 6)
    assert shown["clip_ratio"] == pytest.approx(3 / 6)
    assert shown["ratio/mean"] == pytest.approx(9 / 6)
    assert shown["ratio/deviation"] == pytest.approx((0.3 + 0.3 + 0.3 + 0.3 + 3.0 + 0.0) / 6)


def test_on_policy_ratio_is_one_with_the_plain_policy_gradient() -> None:
    batch = ones_batch([2]).with_fields(advantages=torch.tensor([0.5, -2.0]))
    logp = torch.tensor([-1.0, -3.0], requires_grad=True)
    token_loss, metrics = grpo().token_loss(batch, logp)
    token_loss.sum().backward()
    assert token_loss.tolist() == [-0.5, 2.0]
    assert logp.grad is not None and logp.grad.tolist() == [-0.5, 2.0]
    assert values(metrics)["ratio/deviation"] == 0.0 and values(metrics)["clip_ratio"] == 0.0


def test_rollout_metrics_show_the_gap_between_engine_and_trainer() -> None:
    """Known fault 22: the engine gives log-probs without the temperature, -0.12693 instead of -0.01815."""
    batch = ones_batch([1]).with_fields(rollout_logprobs=torch.tensor([-0.12693]))
    shown = values(grpo()(batch, torch.tensor([-0.01815], requires_grad=True))[1])
    assert shown["rollout/logp_gap"] == pytest.approx(0.10878, abs=1e-5)
    # k3 of x = -0.10878 is exp(0.10878) - 0.10878 - 1
    assert shown["rollout/kl"] == pytest.approx(math.exp(0.10878) - 1.10878, abs=1e-5)


def test_rollout_metrics_compare_the_frozen_policy_not_the_moved_one() -> None:
    old = torch.tensor([-1.0])
    batch = ones_batch([1]).with_fields(rollout_logprobs=old, old_logprobs=old)
    assert values(grpo(on_policy=False)(batch, torch.tensor([-0.5]))[1])["rollout/logp_gap"] == 0.0


def test_metrics_of_unequal_micro_batches_add_up() -> None:
    generator = torch.Generator().manual_seed(1)
    batch = ones_batch([5, 1, 3])
    logp, ref, old, entropy = (torch.rand(4, 9, generator=generator) - 1.5).double().unbind()
    mask = torch.tensor([1.0] * 5 + [0.0] + [1.0] * 3).double()
    batch = batch.with_fields(mask=mask, ref_logprobs=ref, old_logprobs=old, rollout_logprobs=ref)
    objective = grpo(on_policy=False, beta=0.1)
    whole = values(objective(batch, logp, entropy)[1])
    pieces = zip(batch.split(1), logp.split([5, 1, 3]), entropy.split([5, 1, 3]), strict=True)
    merged = merge_metrics([objective(part, lp, h)[1] for part, lp, h in pieces])
    assert merged == pytest.approx(whole, abs=1e-12)
    trained = mask == 1
    x = (logp - ref)[trained]
    assert merged["kl"] == pytest.approx((torch.exp(-x) + x - 1).mean().item(), abs=1e-12)
    assert merged["entropy"] == pytest.approx(entropy[trained].mean().item(), abs=1e-12)


def test_a_fully_masked_batch_has_no_metrics_and_no_gradient() -> None:
    batch = ones_batch([2]).with_fields(mask=torch.zeros(2), weights=torch.zeros(2), ref_logprobs=torch.zeros(2))
    logp = torch.tensor([-1.0, -2.0], requires_grad=True)
    token_loss, metrics = grpo(beta=0.1)(batch, logp, entropy=torch.ones(2))
    (batch.weights * token_loss).sum().backward()
    assert logp.grad is not None and logp.grad.tolist() == [0.0, 0.0]
    assert set(values(metrics).values()) == {None}
    assert {"kl", "entropy", "clip_ratio", "rollout/kl", "ratio/deviation"} <= set(metrics)


def test_garbage_on_masked_tokens_reaches_nothing() -> None:
    def run(garbage: float) -> tuple[list[float], list[float], dict[str, float | None]]:
        mask = torch.tensor([1.0, 0.0, 1.0])
        batch = ones_batch([3]).with_fields(
            mask=mask,
            weights=mask / 2,
            advantages=torch.tensor([1.0, garbage, -1.0]),
            old_logprobs=torch.tensor([-1.0, -garbage, -1.0]),
            ref_logprobs=torch.tensor([-1.2, garbage, -0.9]),
            rollout_logprobs=torch.tensor([-1.1, garbage, -1.0]),
        )
        logp = torch.tensor([-1.05, garbage, -0.95], requires_grad=True)
        token_loss, metrics = grpo(on_policy=False, beta=0.5)(batch, logp, entropy=torch.tensor([1.0, garbage, 2.0]))
        (batch.weights * token_loss).sum().backward()
        assert logp.grad is not None
        return token_loss.tolist(), logp.grad.tolist(), values(metrics)

    clean = run(0.0)
    for garbage in (500.0, -500.0, float("inf"), float("nan")):  # exp(1000) overflows float32
        assert run(garbage) == clean


def test_beta_scales_the_kl_term_and_zero_needs_no_reference() -> None:
    batch = ones_batch([1]).with_fields(advantages=torch.zeros(1), ref_logprobs=torch.tensor([-1.0]))
    logp = torch.tensor([-2.0])
    objective = grpo(beta=0.5)
    assert objective.reads_ref and not objective.reads_old
    loss = objective(batch, logp)[0].item()
    assert loss == pytest.approx(0.5 * (math.e - 2), abs=1e-6)
    assert replace(objective, beta=1.0)(batch, logp)[0].item() == pytest.approx(2 * loss)
    free = replace(objective, beta=0.0)
    assert not free.reads_ref
    token_loss, metrics = free.token_loss(batch.with_fields(ref_logprobs=None), logp)
    assert token_loss.item() == 0.0 and "kl" not in metrics


def test_log_probs_that_the_objective_needs_can_not_be_forgotten() -> None:
    batch, logp = ones_batch([1]), torch.zeros(1)
    with pytest.raises(ValueError, match="old_logprobs are missing"):
        grpo(on_policy=False)(batch, logp)
    with pytest.raises(ValueError, match=r"the entropy is missing, but entropy_coef is 0\.1"):
        replace(grpo(), entropy_coef=0.1)(batch, logp)
    with pytest.raises(ValueError, match=r"ref_logprobs are missing, but beta is 0\.1"):
        grpo(beta=0.1)(batch, logp)
    for beta in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="beta must be"):
            grpo(beta=beta)


def test_on_policy_the_ratio_is_one_whatever_old_log_probs_the_batch_carries() -> None:
    """A correction or a KL term in the reward brings them along; they are not to be read twice."""
    batch, logp = ones_batch([1]), torch.tensor([-1.0])
    carried = batch.with_fields(old_logprobs=torch.tensor([-3.0]))
    assert grpo(on_policy=True)(carried, logp)[0].item() == grpo(on_policy=True)(batch, logp)[0].item() == -1.0
    shown = values(grpo(on_policy=True)(carried.with_fields(rollout_logprobs=torch.tensor([-3.0])), logp)[1])
    assert shown["ratio/deviation"] == 0.0 and shown["rollout/logp_gap"] == 0.0  # the gap is that of the sampler


def test_clip_ranges_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="epsilon must be between 0 and 1"):
        ClipParams(epsilon=1.0)
    with pytest.raises(ValueError, match="epsilon_high must be positive"):
        ClipParams(epsilon_high=0.0)
    with pytest.raises(ValueError, match=r"larger than 1 \+ epsilon_high = 1\.28, got 1\.2"):
        ClipParams(epsilon_high=0.28, delta=1.2)


def test_merging_leaves_gaps_not_nans() -> None:
    """Known fault 38: three steps, of which the second has no value for f2."""
    f1 = [(1.0, 1.0), (0.0, 3.0), (2.0, 4.0)]
    f2 = [(1.0, 2.0), token_mean(torch.tensor([float("nan")]), torch.zeros(1)), (2.0, 2.0)]
    parts = [{"f1": a, "f2": b} for a, b in zip(f1, f2, strict=True)]
    assert merge_metrics(parts) == {"f1": 3 / 8, "f2": 3 / 4}
    assert merge_metrics(parts[1:2]) == {"f1": 0.0, "f2": None}
    assert merge_metrics([{"f1": (1.0, 2.0)}, {"f3": (1.0, 1.0)}]) == {"f1": 0.5, "f3": 1.0}
    assert merge_metrics([]) == {}
