"""Every option of the objective reaches its place: one different value each, no training."""

from __future__ import annotations

from typing import Any

import pytest

from covey.algo.losses.clipped import ClipParams
from covey.build.objects import advantages_of, check_objective, credit_of, describe_objective, objective_of
from covey.build.ppo import critic_settings
from covey.config import GRPOConfig, PPOConfig
from covey.errors import UserError
from covey.plan.batch import BatchPlan, plan_batches
from covey.trainers.credit import AdvantageSettings, Correction


def plan(**changes: Any) -> BatchPlan:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 1,
        "num_generations": 4,
        "max_completion_length": 100,
        "num_prompts": 64,
    }
    return plan_batches(**settings | changes)


def test_the_objective() -> None:
    config = GRPOConfig.from_dict(
        {
            "loss_type": "dapo", "epsilon": 0.11, "delta": 3.5, "beta": 0.02, "kl_estimator": "k2",
            "entropy_coef": 0.03, "off_policy_sequence_mask_delta": 0.7, "contrastive_coef": 0.4,
            "contrastive_loss": "gvpo", "contrastive_scale": 0.6, "num_generations": 4,
            "per_device_train_batch_size": 16,
        }
    )  # fmt: skip
    objective = objective_of(config, plan(), config.contrast)
    assert objective.policy_loss.keywords["params"] == ClipParams(epsilon=0.11, epsilon_high=0.28, delta=3.5)  # type: ignore[attr-defined]
    assert (objective.kl_estimator, objective.beta, objective.entropy_coef) == ("k2", 0.02, 0.03)
    assert objective.sequence_mask_delta == 0.7 and objective.on_policy
    assert objective.contrast is not None
    found = objective.contrast
    assert (found.kind, found.coef, found.scale, found.alpha, found.num_groups) == ("gvpo", 0.4, 0.6, 1.0, 4)
    assert objective_of(GRPOConfig(), plan()).contrast is None


def test_the_credit() -> None:
    config = GRPOConfig.from_dict(
        {
            "advantage_estimator": "rloo", "beta": 0.2, "overlong_filter": True, "top_entropy_quantile": 0.3,
            "positive_nll_coef": 0.4, "rollout_importance_sampling_mode": "token_mask",
            "rollout_importance_sampling_threshold": 5.0, "rollout_importance_sampling_min": 0.6,
        }
    )  # fmt: skip
    credit = credit_of(config)
    assert credit.kl_in_reward is True and objective_of(config, plan()).beta == 0  # rloo: in the reward, not in both
    assert credit.correction == Correction("token_mask", 0.6, 5.0)
    assert (credit.overlong_filter, credit.top_entropy_quantile, credit.positive_nll_coef) == (True, 0.3, 0.4)
    assert credit.selects_tokens and credit.marks is None and not credit_of(GRPOConfig()).selects_tokens
    assert credit_of(GRPOConfig.from_dict({"loss_type": "clip_cov"})).marks is not None
    assert advantages_of(config, (2.0, 3.0)) == AdvantageSettings("rloo", "none", (2.0, 3.0))
    gdpo = GRPOConfig.from_dict({"scale_rewards": "gdpo"})
    assert advantages_of(gdpo, (1.0,)) == AdvantageSettings("grpo", "gdpo", (1.0,))


def test_the_critic() -> None:
    config = PPOConfig.from_dict(
        {
            "gamma": 0.9,
            "lam": 0.8,
            "lam_value": 0.7,
            "whiten_advantages": False,
            "cliprange_value": 0.6,
            "critic_warmup": 5,
        }
    )
    found = critic_settings(config.critic)
    assert (found.gamma, found.lam, found.lam_value, found.whiten, found.clip) == (0.9, 0.8, 0.7, False, 0.6)
    assert found.warmup_steps == 5 and found.length_adaptive_alpha is None
    by_length = critic_settings(PPOConfig.from_dict({"length_adaptive_alpha": 0.05, "lam": 0.8}).critic)
    assert by_length.length_adaptive_alpha == 0.05 and by_length.lam_value == 0.8
    assert credit_of(config).kl_in_reward is True and credit_of(PPOConfig.from_dict({"beta": 0})).kl_in_reward == 0


def test_what_does_nothing_with_these_batch_sizes_is_said() -> None:
    alone = plan(per_device_train_batch_size=4)
    with pytest.raises(UserError, match="has one prompt here"):
        check_objective(GRPOConfig.from_dict({"advantage_estimator": "bnpo_paper"}), alone)
    check_objective(GRPOConfig.from_dict({"advantage_estimator": "bnpo_paper"}), plan())
    clipped = GRPOConfig.from_dict({"epsilon": 0.1})
    assert "epsilon will have no effect" in "\n".join(describe_objective(clipped, plan()))
    assert "no effect" not in "\n".join(describe_objective(clipped, plan(steps_per_generation=2)))
    plain = GRPOConfig.from_dict({"loss_type": "reinforce"})
    assert "nothing corrects" in "\n".join(describe_objective(plain, plan(steps_per_generation=2)))
    long = GRPOConfig.from_dict({"loss_type": "luspo", "loss_agg_mode": "token-mean"})
    assert "weighs whole completions" in "\n".join(describe_objective(long, plan()))
