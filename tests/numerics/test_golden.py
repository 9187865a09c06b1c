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

from covey.algo.advantages import gdpo_advantages, group_advantages, whiten
from covey.algo.contrastive import Contrast
from covey.algo.corrections import importance_weights
from covey.algo.gae import ValueObjective, adaptive_lambda, gae, token_rewards
from covey.algo.kl import KL_ESTIMATORS, k1
from covey.algo.losses import LOSSES, ClipParams, LossInputs
from covey.algo.objective import Objective
from covey.algo.preference import PreferenceObjective
from covey.algo.segments import segment_sum, sum_to_come
from covey.algo.selection import top_entropy
from covey.algo.weights import AggregationParams, aggregation_weights
from covey.control.coefficients import KLControl, ProportionalRule, ThresholdRule
from covey.tensors import TokenBatch, make_batch
from covey.trainers.credit import with_positive_nll

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
    marked: Tensor | None = None,
    more: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Value and gradient of a loss; ``credit`` [N] multiplies the advantages, ``more``: fields of Objective."""
    a, expected, spec = fixture_a(), case(name)["expected"], LOSSES[loss_type]
    batch = weigh(a.batch, aggregation or spec.aggregation)
    if credit is not None:
        batch = batch.with_fields(advantages=batch.advantages * credit)
    objective = Objective(spec.bind(spec.with_options(options)), kl, beta, on_policy=False, **(more or {}))
    loss = objective(batch.with_fields(marked=marked), a.logp)[0]
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
def test_advantages_of_one_group(name: str, estimator: str, scale: str, eps: float) -> None:
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
    batch = weigh(a.batch, "seq-mean-token-mean").with_fields(old_logprobs=None)
    objective = Objective(LOSSES["grpo"].bind(), "k3", 0.0, on_policy=True)
    loss = objective(batch, a.logp)[0]
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
        ("luspo_loss", "luspo", {}),
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
    weights = aggregation_weights(a.batch.mask, a.batch.lens, "prompt-mean-token-mean", CONSTANTS, group_of_row=groups)
    spec = LOSSES["cispo"]
    objective = Objective(spec.bind(spec.with_options({"epsilon_high": 5.0})), "k3", 0.0, on_policy=False)
    loss = objective(a.batch.with_fields(weights=weights), a.logp)[0]
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
    check_loss("opsm_loss_delta0.1", "grpo", more={"sequence_mask_delta": 0.1})
    check_loss("opsm_token_mean_denominator", "grpo", aggregation="token-mean", more={"sequence_mask_delta": 0.1})


def test_top_entropy_tokens() -> None:
    a = fixture_a()
    keep = top_entropy(a.flat(golden()["fixtures"]["A"]["entropy"]), a.batch.mask, 0.4)
    assert int(keep.sum()) == 4
    check_loss("top_entropy_40pct_loss", "dapo", credit=keep)


def marks(loss_type: str, **options: Any) -> Tensor:
    """[N]: the tokens of fixture A that a loss treats apart."""
    a, spec = fixture_a(), LOSSES[loss_type]
    inputs = LossInputs(
        a.logp.detach(), a.batch.old_logprobs, a.batch.advantages, a.batch.mask, a.batch.row_of_token, 4
    )
    assert spec.marks is not None
    return spec.marks(inputs, spec.with_options(options), seed=0)


def test_clip_cov_takes_the_gradient_of_the_tokens_it_picks() -> None:
    """A share of 1 takes every candidate."""
    options = {"clip_cov_lb": 0.05, "clip_cov_ub": 5.0, "clip_cov_ratio": 1.0}
    check_loss("clip_cov_loss", "clip_cov", marked=marks("clip_cov", **options), **options)


def test_kl_cov_holds_back_the_tokens_of_highest_covariance() -> None:
    options = {"kl_cov_ratio": 0.2, "kl_cov_coef": 1.0}
    chosen = marks("kl_cov", **options)
    assert chosen.nonzero().squeeze(1).tolist() == [3]  # row 1, token 0, as golden.json notes
    check_loss("kl_cov_loss", "kl_cov", marked=chosen, **options)


def test_entropy_bonus() -> None:
    """Averaged like the loss, as in verl and as the KL term is.

    golden.json has TRL's value, whose bonus is the mean over all tokens whatever the loss is: the two differ for a loss
    that is not a token mean. The gradient of the policy term is the recorded one.
    """
    a, expected = fixture_a(), case("entropy_bonus")["expected"]
    entropy = a.flat(golden()["fixtures"]["A"]["entropy"])
    policy = case("grpo_loss")["expected"]["loss"]
    bonus = torch.stack([row.mean() for row in entropy.split([3, 2, 3, 1])]).mean().item()
    objective = Objective(LOSSES["grpo"].bind(), "k3", 0.0, on_policy=False, entropy_coef=0.01)
    loss, _ = objective(weigh(a.batch, "seq-mean-token-mean"), a.logp, entropy)
    loss.backward()
    assert_close(loss, policy - 0.01 * bonus)
    assert a.logp.grad is not None
    assert_close(a.logp.grad, a.flat(expected["grad_logp"]).tolist())
    assert expected["loss"] == pytest.approx(policy - 0.01 * entropy.mean().item(), abs=TOLERANCE)


@pytest.mark.parametrize(("name", "kind"), [("infonca_loss", "infonca"), ("gvpo_loss", "gvpo")])
def test_contrastive_terms(name: str, kind: str) -> None:
    """In the papers' form; in a run the sampling policy stands in the place of InfoNCA's reference."""
    a, expected = fixture_a(), case(name)["expected"]
    base = a.batch.ref_logprobs if kind == "infonca" else a.batch.old_logprobs
    assert base is not None
    batch = a.batch.with_fields(rewards=tensor(golden()["fixtures"]["A"]["rewards"]))
    value, _ = Contrast(kind, coef=1.0, scale=0.1, alpha=1.0, num_groups=1)(batch, a.logp - base)
    value.backward()
    assert_close(value, expected["loss"])
    assert a.logp.grad is not None
    assert_close(a.logp.grad, a.flat(expected["grad_logp"]).tolist())


def test_positive_example_likelihood() -> None:
    """VAPO's extra term, on top of a token-mean clip of 0.2 and 0.28."""
    a, expected = fixture_a(), case("vapo_positive_lm_loss")["expected"]
    correct = (tensor(golden()["fixtures"]["A"]["rewards"]) == 1).double()
    batch = with_positive_nll(weigh(a.batch, "token-mean"), correct, 0.1)
    loss, _ = Objective(LOSSES["dapo"].bind(), "k3", 0.0, on_policy=False)(batch, a.logp)
    loss.backward()
    assert_close(loss, expected["loss"])
    assert a.logp.grad is not None
    assert_close(a.logp.grad, a.flat(expected["grad_logp"]).tolist())


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
        objective(part, logp)[0].backward(retain_graph=True)
    assert a.logp.grad is not None
    assert_close(a.logp.grad, a.flat(expected[f"{loss_type}_accumulated_grad"]).tolist())


# --- with a critic ---


def ppo_inputs() -> tuple[Fixture, Tensor, Tensor, Tensor]:
    """Fixture A, values [N], scores [R], and 0.05 * k1 of old against reference [N]."""
    a = fixture_a()
    old, ref = a.batch.old_logprobs, a.batch.ref_logprobs
    assert old is not None and ref is not None
    values = a.flat(case("ppo_gae_raw")["inputs"]["values"])
    return a, values, tensor(golden()["fixtures"]["A"]["rewards"]), 0.05 * k1(old, ref, None)


def test_ppo_token_rewards_and_advantages() -> None:
    a, values, scores, kl = ppo_inputs()
    rewards = token_rewards(scores, kl, a.batch.lens)
    assert_close(rewards, a.flat(case("ppo_token_rewards_k1")["expected"]).tolist())
    advantages = gae(rewards, values, a.batch.lens, gamma=1.0, lam=0.95)
    expected = case("ppo_gae_raw")["expected"]
    assert_close(advantages, a.flat(expected["advantages"]).tolist())
    assert_close(advantages + values, a.flat(expected["returns"]).tolist())
    assert_close(whiten(advantages, a.batch.mask), a.flat(case("ppo_gae_whitened")["expected"]).tolist())


def test_ppo_policy_loss() -> None:
    """verl's default: a token mean with a dual clip of 3."""
    a = fixture_a()
    whitened = a.flat(case("ppo_gae_whitened")["expected"])
    check_loss("ppo_policy_loss", "ppo", credit=whitened / a.batch.advantages, delta=3.0)


def test_ppo_value_loss() -> None:
    a, golden_case = fixture_a(), case("ppo_value_loss_clipped")
    values, returns, old = (a.flat(golden_case["inputs"][name]) for name in ("vpred", "returns", "old_values"))
    batch = weigh(a.batch, "token-mean").with_fields(old_values=old, returns=returns)
    assert_close(ValueObjective(0.2)(batch, values)[0], golden_case["expected"]["loss"])


def test_vapo_length_adaptive_advantages() -> None:
    a, golden_case = fixture_a(), case("vapo_length_adaptive_gae")
    values, rewards = (a.flat(golden_case["inputs"][name]) for name in ("values", "token_rewards"))
    lam = adaptive_lambda(a.batch.lens, 0.5)
    assert_close(lam, [1 / 3, 0.0, 1 / 3, 0.0])
    assert_close(gae(rewards, values, a.batch.lens, 1.0, lam), a.flat(golden_case["expected"]["advantages"]).tolist())
    returns = gae(rewards, values, a.batch.lens, 1.0, 1.0) + values
    assert_close(returns, a.flat(golden_case["expected"]["returns"]).tolist())


# --- preferences ---


@pytest.mark.parametrize(("name", "kind"), [("dpo_loss_rows0_1", "sigmoid"), ("ipo_loss_rows0_1", "ipo")])
def test_preference_losses(name: str, kind: str) -> None:
    """Row 0 chosen, row 1 rejected; IPO averages over tokens, as TRL and unlike the paper."""
    a, expected = fixture_a(), case(name)["expected"]
    pair = a.batch.select_rows([0, 1])
    loss, metrics = PreferenceObjective(kind, 0.1, num_pairs=1)(pair, a.logp[:5])
    loss.backward()
    assert_close(loss, expected["loss"])
    assert a.logp.grad is not None
    assert_close(a.logp.grad, a.flat(expected["grad_logp"]).tolist())
    assert metrics["rewards/accuracies"] == (1.0, 1.0)


# --- what is not here ---

def test_kl_controllers() -> None:
    rule = ProportionalRule(target=6, horizon=10_000)
    expected = case("kl_controller_ziegler")["expected"]["beta"]
    assert [rule(0.2, kl, 256) for kl in (9.0, 1.0)] == pytest.approx(expected, abs=TOLERANCE)
    control, seen = KLControl(0.04, ThresholdRule()), []
    golden_case = case("kl_controller_article_rule")
    for kl in golden_case["options"]["kl"]:
        control.observe(kl, 64)
        seen.append(control.beta)
    assert seen == pytest.approx(golden_case["expected"]["beta"], abs=TOLERANCE)


LEFT_OUT = {
    "cispo_trl_default_eps_trap": "refused: tests/unit/test_cli.py",
    "rloo_loss_sequence_ratio": "TRL clips exp(sum of log-ratios); here token ratios, as verl and ms-swift",
    "reinforce_pp_baseline_advantage_seqstd": "ms-swift's std over sequences; followed is the paper, over tokens",
    "gdpo_advantage_verl_tokenwhiten": "verl whitens tokens; followed are TRL, ms-swift and the authors",
    "verl_token_k1_bounds_are_inverted": "a trap of verl's flags",
    **dict.fromkeys(["gfpo_shortest2_advantage", "gfpo_token_efficiency2_advantage"], "GFPO"),
    **dict.fromkeys(["cppo_k2_mask", "cppo_k2_loss"], "CPPO"),
    **dict.fromkeys(["passk_training_advantage_n8_c2_k4", "verl_grpo_passk_advantage"], "pass@k training"),
    "topr_loss": "TOPR",
    "real_loss": "REAL",
    "fipo_loss": "FIPO",
    "kpop_loss": "KPop",
    "dro_loss": "DRO",
    "gppo_loss": "GPPO",
    "nca_pair_rows0_1": "NCA",
    "nca_loss": "NCA",
    "a_star_po_loss": "A*-PO",
    "copg_loss_all_pairs": "CoPG",
    "grpo2_pairwise_onpolicy": "2-GRPO is --num_generations 2; its gradient is that of grpo",
    "conspo_loss": "ConSPO",
    "dra_reward": "DRA divides by the similarity; followed is DARLING's form: tests/unit/test_shaping_rewards.py",
    "darling_reward": "tests/unit/test_shaping_rewards.py",
    **dict.fromkeys(
        ["nonzero_gradient_prob", "knapsack_allocation", "reinforce_ada_global_stats"], "curricula: Part 3"
    ),
    "dynamic_sampling_filter": "Part 3",
    "dapo_overlong_reward": "tests/unit/test_shaping_rewards.py",
    "router_replay_gates": "Part 7",
}


def test_every_golden_case_is_used_here_or_left_out_by_name() -> None:
    names = {c["name"] for c in golden()["cases"]}
    source = Path(__file__).read_text()
    used = {name for name in names - LEFT_OUT.keys() if f'"{name}"' in source}
    assert LEFT_OUT.keys() <= names
    assert used == names - LEFT_OUT.keys()
