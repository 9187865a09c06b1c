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

from covey.algo.advantages import Scale, gdpo_advantages, group_advantages, whiten
from covey.algo.corrections import importance_weights, sequence_keep
from covey.algo.kl import KL_ESTIMATORS, k1
from covey.algo.losses import LOSSES, ClipParams
from covey.algo.objective import Objective
from covey.algo.segments import segment_sum, sum_to_come
from covey.algo.selection import band, covariance, highest, top_entropy
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


def check_loss(
    name: str,
    loss_type: str,
    kl: str = "k3",
    beta: float = 0.0,
    aggregation: str | None = None,
    credit: Tensor | None = None,
    **options: Any,
) -> None:
    """Value and gradient of a loss with ``options``; ``credit`` [N] multiplies the advantages."""
    a, expected, spec = fixture_a(), case(name)["expected"], LOSSES[loss_type]
    batch = weigh(a.batch, aggregation or spec.aggregation)
    if credit is not None:
        batch = batch.with_fields(advantages=batch.advantages * credit)
    objective = Objective(spec.bind(spec.with_options(options)), kl, beta, on_policy=False)
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
    check_loss("two_sided_delta3_equals_dualclip3", "grpo", delta=3.0)


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


def test_gspo_loss() -> None:
    check_loss("gspo_loss", "gspo", epsilon=0.2)
    check_loss("gspo_loss", "grpo", importance_sampling_level="sequence", epsilon=0.2)
    check_loss("gspo_loss_paper_eps", "gspo")  # the paper's range is its default


def test_gspo_token_equals_gspo_when_a_row_has_one_advantage() -> None:
    check_loss("gspo_loss", "gspo", importance_sampling_level="sequence_token", epsilon=0.2)


def test_gspo_token_with_an_advantage_per_token() -> None:
    a = fixture_a()
    per_token = a.flat(case("gspo_token_per_token_adv")["options"]["advantages"])
    check_loss(
        "gspo_token_per_token_adv",
        "gspo",
        importance_sampling_level="sequence_token",
        epsilon=0.2,
        credit=per_token / a.batch.advantages,
    )


@pytest.mark.parametrize(
    ("name", "loss_type", "options"),
    [
        ("cispo_max1.28", "cispo", {"epsilon_high": 1.28}),
        ("cispo_scalerl_cap5", "cispo", {"epsilon_high": 5.0}),
        ("sapo_loss", "sapo", {}),
        ("gmpo_loss", "gmpo", {}),
        ("dppo_binary_tv_loss", "dppo", {"epsilon": 0.1, "epsilon_high": 0.1}),
        ("vespo_loss", "vespo", {}),
        ("reinforce_seq_logprob", "reinforce", {}),
        ("gpg_loss", "gpg", {}),
    ],
)
def test_losses_of_the_family(name: str, loss_type: str, options: dict[str, float]) -> None:
    check_loss(name, loss_type, **options)


def test_scalerl_is_cispo_with_the_mean_over_prompts() -> None:
    a, expected = fixture_a(), case("scalerl_prompt_average_cispo")["expected"]
    groups = torch.tensor([0, 0, 1, 1])
    weights = aggregation_weights(a.batch.mask, a.batch.lens, "prompt", CONSTANTS, group_of_row=groups)
    spec = LOSSES["cispo"]
    objective = Objective(spec.bind(spec.with_options({"epsilon_high": 5.0})), "k3", 0.0, on_policy=False)
    loss = (weights * objective(a.batch, a.logp)[0]).sum()
    loss.backward()
    assert_close(loss, expected["loss"])
    assert a.logp.grad is not None
    assert_close(a.logp.grad, a.flat(expected["grad_logp"]).tolist())


def mismatch() -> Tensor:
    """old - rollout log-prob of fixture A, [N]."""
    batch = fixture_a().batch
    assert batch.old_logprobs is not None
    return batch.old_logprobs - batch.rollout_logprobs


@pytest.mark.parametrize(
    ("name", "mode", "low", "high"),
    [
        ("is_weights_token_truncate_C2", "token_truncate", 0.0, 2.0),
        ("is_weights_token_mask_icepop", "token_mask", 0.5, 5.0),
        ("is_weights_sequence_truncate_C2", "sequence_truncate", 0.0, 2.0),
        ("is_weights_sequence_mask_C2", "sequence_mask", 0.0, 2.0),
    ],
)
def test_importance_weights_of_a_mismatched_engine(name: str, mode: str, low: float, high: float) -> None:
    a = fixture_a()
    factor, _ = importance_weights(mismatch(), a.batch.mask, a.batch.row_of_token, 4, mode, low, high)
    assert_close(factor, a.flat(case(name)["expected"]).tolist())


def test_truncated_importance_sampling_leaves_the_kl_term_alone() -> None:
    a = fixture_a()
    factor, _ = importance_weights(mismatch(), a.batch.mask, a.batch.row_of_token, 4, "token_truncate", 0.0, 2.0)
    check_loss("tis_grpo_loss", "grpo", credit=factor)
    check_loss("tis_grpo_loss_with_kl", "grpo", beta=0.04, credit=factor)


def test_off_policy_sequence_mask_keeps_the_denominator() -> None:
    """TRL's reading; ms-swift removes the tokens, which makes the kept ones weigh more."""
    a = fixture_a()
    batch = a.batch
    keep = sequence_keep(
        batch.advantages, batch.rollout_logprobs, a.logp.detach(), batch.mask, batch.row_of_token, 4, delta=0.1
    )
    check_loss("opsm_loss_delta0.1", "grpo", credit=keep)
    check_loss("opsm_token_mean_denominator", "grpo", aggregation="dapo", credit=keep)


def test_top_entropy_tokens() -> None:
    a = fixture_a()
    keep = top_entropy(a.flat(golden()["fixtures"]["A"]["entropy"]), a.batch.mask, 0.4)
    assert int(keep.sum()) == 4
    check_loss("top_entropy_40pct_loss", "dapo", credit=keep)


def test_clip_cov_takes_the_gradient_of_the_tokens_it_picks() -> None:
    a = fixture_a()
    advantages, logp, old = a.batch.advantages, a.logp.detach(), a.batch.old_logprobs
    assert old is not None
    ratio = (logp - old).exp()
    clipped = ((advantages > 0) & (ratio > 1.2)) | ((advantages < 0) & (ratio < 0.8))  # no gradient to take
    cov = covariance(advantages, logp, a.batch.mask)
    dropped = band(cov, a.batch.mask.masked_fill(clipped, 0.0), 0.05, 5.0, share=1.0, seed=0)
    check_loss("clip_cov_loss", "grpo", aggregation="dapo", credit=1 - dropped.double())


def test_kl_cov_picks_the_tokens_of_highest_covariance() -> None:
    a = fixture_a()
    chosen = highest(covariance(a.batch.advantages, a.logp.detach(), a.batch.mask), a.batch.mask, 0.2)
    assert chosen.nonzero().squeeze(1).tolist() == [3]  # row 1, token 0, as golden.json notes


@pytest.mark.parametrize(("name", "estimator"), [("opo_advantage", "opo"), ("maxrl_advantage", "maxrl")])
def test_advantages_of_other_estimators(name: str, estimator: str) -> None:
    inputs = case(name)["inputs"]
    lens = torch.tensor(inputs.get("lengths", [1, 1, 1, 1]))
    advantages = group_advantages(tensor(inputs["rewards"]), torch.zeros(4).long(), estimator, lens=lens)
    assert_close(advantages, case(name)["expected"])


def test_gpg_advantages_count_valid_samples() -> None:
    """The paper's alpha = B / (B - M); verl counts rewards that are not zero instead (1.2 for 1.5 here)."""
    golden_case = case("gpg_advantage_paper")
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    assert_close(group_advantages(tensor(golden_case["inputs"]["rewards"]), groups, "gpg"), golden_case["expected"])


def test_bnpo_advantages_of_the_paper() -> None:
    golden_case = case("bnpo_paper_advantage")
    rewards = tensor(golden_case["inputs"]["rewards"]).flatten()
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    assert_close(group_advantages(rewards, groups, "bnpo_paper"), golden_case["expected"])


def test_gdpo_advantages() -> None:
    """eps 1e-4 and normalised per sequence, as TRL; verl whitens tokens, ms-swift has eps 1e-8."""
    golden_case = case("gdpo_advantage")
    advantages = gdpo_advantages(
        tensor(golden_case["inputs"]["rewards"]), tensor([1.0, 0.5]), torch.tensor([0, 0, 1, 1])
    )
    assert_close(advantages, golden_case["expected"])


def test_reinforce_plus_plus_advantages() -> None:
    """r - beta * (KL still to come), then normalised over all tokens of the batch (verl's reading of 2501.03262)."""
    a = fixture_a()
    batch = a.batch
    assert batch.old_logprobs is not None and batch.ref_logprobs is not None
    rewards = group_advantages(tensor([1.0, 0.0, 0.0, 0.5]), torch.zeros(4).long(), "reinforce_plus_plus")
    kl = k1(batch.old_logprobs, batch.ref_logprobs, None)
    returns = rewards[batch.row_of_token] - 0.01 * sum_to_come(kl, batch.mask, batch.lens)
    assert_close(whiten(returns, batch.mask), a.flat(case("reinforce_pp_advantage")["expected"]).tolist())


def test_reinforce_plus_plus_baseline_advantages() -> None:
    """Normalised over tokens, as verl and the paper's global batch; ms-swift divides by a std over sequences."""
    a = fixture_a()
    rewards = group_advantages(tensor([1.0, 0.0, 0.0, 0.5]), torch.zeros(4).long(), "reinforce_plus_plus_baseline")
    expected = a.flat(case("reinforce_pp_baseline_advantage_tokenwhiten")["expected"])
    assert_close(whiten(rewards[a.batch.row_of_token], a.batch.mask), expected.tolist())


def test_rloo_with_the_kl_in_the_reward() -> None:
    a = fixture_a()
    batch = a.batch
    assert batch.old_logprobs is not None and batch.ref_logprobs is not None
    kl = k1(batch.old_logprobs, batch.ref_logprobs, None)
    rewards = tensor([1.0, 0.0, 0.0, 0.5]) - 0.05 * segment_sum(kl, batch.row_of_token, 4)
    assert_close(
        group_advantages(rewards, torch.zeros(4).long(), "rloo"), case("rloo_advantage_kl_in_reward")["expected"]
    )


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
