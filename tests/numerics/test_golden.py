"""Value and gradient of every loss against numbers that were cross-checked with TRL, verl and ms-swift.

``tests/data/golden.json`` is float64, rounded to 10 decimals. Its fixtures are padded, with garbage on the pads; here
they are flattened by their mask, as a TokenBatch is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from covey.algo.advantages import Scale, group_advantages
from covey.algo.kl import KL_ESTIMATORS
from covey.algo.losses import LOSSES, ClipParams
from covey.algo.objective import Objective
from covey.algo.weights import AggregationParams, aggregation_weights
from covey.tensors import TokenBatch, make_batch

TOLERANCE = 2e-10
CONSTANTS = AggregationParams(max_completion_length=8, rows_per_micro_batch=4)


@cache
def golden() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())
    return loaded


def case(name: str) -> dict[str, Any]:
    return next(c for c in golden()["cases"] if c["name"] == name)


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_close(actual: Tensor, expected: Any) -> None:
    torch.testing.assert_close(actual.detach(), tensor(expected), atol=TOLERANCE, rtol=0)


@dataclass(frozen=True)
class Fixture:
    batch: TokenBatch  # old and reference log-probs filled, weights not
    logp: Tensor  # [N], requires grad
    mask: Tensor  # [R, T] bool, where the flat tokens stood

    def flat(self, padded: Any) -> Tensor:
        return tensor(padded)[self.mask]


def fixture_a() -> Fixture:
    a = golden()["fixtures"]["A"]
    mask = tensor(a["mask"]).bool()
    flat = {name: tensor(a[name])[mask] for name in ("logp", "old_logp", "ref_logp", "rollout_logp")}
    batch = make_batch([[1]], [[[7] * n for n in a["lengths"]]])
    batch = batch.with_fields(
        mask=torch.ones_like(flat["logp"]),
        advantages=tensor(a["advantages"])[batch.row_of_token],
        old_logprobs=flat["old_logp"],
        ref_logprobs=flat["ref_logp"],
        rollout_logprobs=flat["rollout_logp"],
    )
    return Fixture(batch, flat["logp"].clone().requires_grad_(), mask)


def weigh(batch: TokenBatch, aggregation: str, constants: AggregationParams = CONSTANTS) -> TokenBatch:
    return batch.with_fields(weights=aggregation_weights(batch.mask, batch.lens, aggregation, constants))


def check_loss(name: str, loss_type: str, params: ClipParams | None = None, kl: str = "k3", beta: float = 0.0) -> None:
    a, expected = fixture_a(), case(name)["expected"]
    batch = weigh(a.batch, LOSSES[loss_type].aggregation)
    objective = Objective(LOSSES[loss_type].bind(params), kl, beta, on_policy=False)
    loss = (batch.weights * objective(batch, a.logp)[0]).sum()
    loss.backward()
    assert_close(loss, expected["loss"])
    assert a.logp.grad is not None
    assert_close(a.logp.grad, a.flat(expected["grad_logp"]).tolist())


@pytest.mark.parametrize(
    ("name", "estimator", "scale", "eps"),
    [
        ("grpo_advantage_eps1e-4", "grpo", "group", 1e-4),
        ("grpo_advantage_eps1e-6", "grpo", "group", 1e-6),
        ("dr_grpo_advantage", "grpo", "none", 1e-4),
        ("rloo_advantage", "rloo", "none", 1e-4),
    ],
)
def test_advantages_of_one_group(name: str, estimator: str, scale: Scale, eps: float) -> None:
    rewards = tensor(case(name)["inputs"]["rewards"])
    assert_close(group_advantages(rewards, torch.zeros(4).long(), estimator, scale, eps), case(name)["expected"])


def test_advantages_with_the_std_of_the_batch() -> None:
    golden_case = case("liteppo_group_mean_batch_std")
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    assert_close(
        group_advantages(tensor(golden_case["inputs"]["rewards"]), groups, "grpo", "batch"), golden_case["expected"]
    )


def test_advantages_of_summed_rewards_in_two_groups() -> None:
    golden_case = case("grpo_sum_then_normalize_same_rewards")
    rewards = tensor(golden_case["inputs"]["rewards"]) @ tensor([1.0, 0.5])
    groups = torch.tensor([0, 0, 1, 1])
    assert_close(group_advantages(rewards, groups, "grpo", "group"), golden_case["expected"])


def test_kl_values() -> None:
    a, expected = fixture_a(), case("kl_estimator_values_token")["expected"]
    ref = a.batch.ref_logprobs
    assert ref is not None
    for name in ("k1", "k2", "k3"):
        assert_close(KL_ESTIMATORS[name](a.logp, ref, None), a.flat(expected[name]).tolist())


@pytest.mark.parametrize(
    ("estimator", "key"),
    [
        ("k1", "E_grad_k1_in_loss"),
        ("k2", "E_grad_k2_in_loss"),
        ("k3", "E_grad_k3_in_loss"),
        ("k3_unbiased", "E_grad_ratio_times_k3"),
        ("k3+", "E_grad_k2_plus_nothing (k3+ straight-through)"),
    ],
)
def test_kl_expected_gradient(estimator: str, key: str) -> None:
    """Sampling is replaced by the exact expectation over three actions, with the sampling policy held fixed."""
    golden_case = case("kl_estimator_expected_gradients")
    logits = tensor(golden_case["options"]["policy_logits"]).requires_grad_()
    ref = tensor(golden_case["options"]["ref_logits"]).log_softmax(0)
    logp = logits.log_softmax(0)
    (logp.detach().exp() * KL_ESTIMATORS[estimator](logp, ref, None)).sum().backward()
    assert logits.grad is not None
    assert_close(logits.grad, golden_case["expected"][key])


def test_grpo_loss() -> None:
    check_loss("grpo_loss", "grpo")


@pytest.mark.parametrize(
    ("name", "kl"),
    [
        ("grpo_loss_kl_k3", "k3"),
        ("grpo_loss_kl_k3_unbiased", "k3_unbiased"),
        ("grpo_loss_kl_k2", "k2"),
        ("grpo_loss_kl_k3plus", "k3+"),
    ],
)
def test_grpo_loss_with_kl(name: str, kl: str) -> None:
    check_loss(name, "grpo", kl=kl, beta=0.04)


def test_two_sided_clip() -> None:
    check_loss("two_sided_delta3_equals_dualclip3", "grpo", ClipParams(delta=3.0))


def test_dapo_loss() -> None:
    check_loss("dapo_loss", "dapo")  # its own default: 0.2 below, 0.28 above


def test_dr_grpo_loss() -> None:
    check_loss("dr_grpo_loss_L8", "dr_grpo")


def test_bnpo_loss_of_one_micro_batch() -> None:
    check_loss("bnpo_trl_loss_eq_token_mean_local", "bnpo")


def test_on_policy_needs_no_old_logprobs() -> None:
    a, expected = fixture_a(), case("grpo_onpolicy_old_is_none")["expected"]
    batch = weigh(a.batch, "grpo").with_fields(old_logprobs=None)
    objective = Objective(LOSSES["grpo"].bind(), "k3", 0.0, on_policy=True)
    loss = (batch.weights * objective(batch, a.logp)[0]).sum()
    loss.backward()
    assert_close(loss, expected["loss"])
    assert a.logp.grad is not None
    assert_close(a.logp.grad, a.flat(expected["grad_logp"]).tolist())


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_gradient_accumulation_two_by_two(loss_type: str) -> None:
    """Two micro-batches of two rows; the weights are those of the whole step (bnpo: nominal micro-batches of two)."""
    a, expected = fixture_a(), case("grad_accum_2x2_vs_full_batch")["expected"]
    constants = AggregationParams(max_completion_length=8, rows_per_micro_batch=2)
    batch = weigh(a.batch, LOSSES[loss_type].aggregation, constants)
    objective = Objective(LOSSES[loss_type].bind(ClipParams()), "k3", 0.0, on_policy=False)
    logp_parts = a.logp.split([int(part.num_tokens) for part in batch.split(2)])
    for part, logp in zip(batch.split(2), logp_parts, strict=True):
        (part.weights * objective(part, logp)[0]).sum().backward(retain_graph=True)
    assert a.logp.grad is not None
    assert_close(a.logp.grad, a.flat(expected[f"{loss_type}_accumulated_grad"]).tolist())
