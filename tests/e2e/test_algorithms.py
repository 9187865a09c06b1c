"""Every loss, estimator and preset from the command line, off-policy, on a tiny model."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from covey.algo.advantages import ADVANTAGE_ESTIMATORS
from covey.algo.losses import LOSSES
from covey.algo.weights import AGGREGATIONS
from covey.config.presets import PRESETS

Run = Callable[..., Any]

TWO_STEPS = {"per_device_train_batch_size": 8, "steps_per_generation": 2, "max_steps": 2}
"""A rollout of four groups of four for two optimizer steps."""
NEEDED = {"cispo": {"epsilon_high": 5.0}}


@pytest.fixture
def trained(covey: Run, grpo: Run, tiny: Path, lines_of: Run, weights_of: Run, same_weights: Run) -> Run:
    """Run, and check what holds for every algorithm; returns the metric lines and what was printed."""

    def run(**changes: Any) -> tuple[list[dict[str, Any]], str]:
        folder = changes.get("output_dir", "run")
        ended = covey(*grpo(**{**TWO_STEPS, "reward_funcs": "uneven", "learning_rate": 1e-3, **changes}))
        assert ended.code == 0, ended.err
        records: list[dict[str, Any]] = lines_of(f"{folder}/metrics.jsonl")
        assert len(records) == changes.get("max_steps", 2)
        for record in records:
            assert record["update_skipped"] == 0 and record["grad_norm"] > 0 and "nonfinite_values" not in record
            assert record["entropy"] > 0
        assert records[0]["reward/mean"] > 0
        assert not same_weights(weights_of(tiny), weights_of(f"{folder}/final"))
        return records, ended.err

    return run


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss(trained: Run, loss: str) -> None:
    records, said = trained(loss_type=loss, **NEEDED.get(loss, {}))
    assert f"objective       {loss}" in said and LOSSES[loss].aggregation in said
    if loss not in ("reinforce", "gpg"):
        name = "vespo/weight" if loss == "vespo" else "ratio/deviation"
        assert records[1][name] is not None and abs(records[1]["ratio/deviation"]) > 0  # the policy has moved
    assert ("exact for one optimizer step" in said) == (loss in ("reinforce", "gpg"))


@pytest.mark.parametrize("estimator", ADVANTAGE_ESTIMATORS)
def test_every_estimator(trained: Run, estimator: str, lines_of: Run) -> None:
    trained(advantage_estimator=estimator)
    rows = lines_of("run/rollouts/step_1.jsonl")
    assert len(rows) == 16
    advantages = [row["advantage"] for row in rows]
    assert any(a != 0 for a in advantages) and all(math.isfinite(a) for a in advantages)
    if estimator in ("grpo", "rloo", "maxrl", "bnpo_paper", "gpg"):
        assert sum(advantages[:4]) == pytest.approx(0, abs=1e-5)
    if estimator == "reinforce_plus_plus_baseline":
        assert any(abs(a) > 1 for a in advantages)  # whitened


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset(trained: Run, preset: str) -> None:
    _, said = trained(preset=preset)
    assert f"--preset {preset} ({PRESETS[preset].source}) sets --" in said


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_every_denominator(trained: Run, aggregation: str) -> None:
    _, said = trained(loss_agg_mode=aggregation)
    assert f", {aggregation};" in said


MORE: list[dict[str, Any]] = [
    {"beta": 0.1, "kl_in_reward": True},
    {"beta": 0.1, "advantage_estimator": "rloo"},
    {"beta": 0.1, "advantage_estimator": "reinforce_plus_plus"},
    {"beta": 0.1, "kl_estimator": "k3_unbiased"},
    {"scale_rewards": "gdpo", "reward_funcs": ["uneven", "digits"]},
    {"entropy_coef": 0.01},
    {"top_entropy_quantile": 0.3},
    {"positive_nll_coef": 0.1},
    {"contrastive_coef": 0.5},
    {"contrastive_coef": 0.5, "contrastive_loss": "gvpo", "steps_per_generation": 1},
    {"off_policy_sequence_mask_delta": 0.5},
    {"rollout_importance_sampling_mode": "token_truncate"},
    {"rollout_importance_sampling_mode": "token_mask", "rollout_importance_sampling_min": 0.5},
    {"rollout_importance_sampling_mode": "token_truncate", "steps_per_generation": 1},
    {"rollout_importance_sampling_mode": "sequence_truncate"},
    {"rollout_importance_sampling_mode": "sequence_mask", "rollout_importance_sampling_threshold": 3.0},
]


@pytest.mark.parametrize("options", MORE, ids=str)
def test_what_can_be_added(trained: Run, options: dict[str, Any]) -> None:
    records, _ = trained(**options)
    first = records[0]
    if "beta" in options:
        assert first["beta"] == 0.1 and abs(first["kl"]) < 1e-5 < records[1]["kl"]
    if "contrastive_coef" in options:
        assert first["contrastive"] > 0
    if "rollout_importance_sampling_mode" in options:
        # engine and trainer compute the same here, so every weight is 1
        assert first["mismatch/weight"] == pytest.approx(1, abs=1e-4) and first["mismatch/kept"] == 1
    if "off_policy_sequence_mask_delta" in options:
        assert first["mismatch/sequences_kept"] == 1


ADDED: list[dict[str, Any]] = [
    {},
    {"contrastive_coef": 0.5},
    {"top_entropy_quantile": 0.3, "entropy_coef": 0.01},
    {"loss_type": "clip_cov", "clip_cov_ratio": 0.2, "clip_cov_lb": 0.1},
    {"loss_type": "kl_cov", "kl_cov_ratio": 0.2},
    {"advantage_estimator": "reinforce_plus_plus", "beta": 0.1},
    {"positive_nll_coef": 0.1, "loss_agg_mode": "prompt-mean-token-mean"},
]


@pytest.mark.parametrize("options", ADDED, ids=str)
def test_the_micro_batch_size_changes_no_weight(trained: Run, weights_of: Run, options: dict[str, Any]) -> None:
    """Sixteen completions for two optimizer steps of eight, computed eight or four at a time."""
    found = []
    for size in (8, 4):
        shape = {
            "per_device_train_batch_size": size, "gradient_accumulation_steps": 8 // size,
            "steps_per_generation": 16 // size, "output_dir": f"run{size}", "adam_epsilon": 1e-4,
        }  # fmt: skip
        trained(**options, **shape)
        found.append(weights_of(f"run{size}/final"))
    for name, tensor in found[0].items():
        assert (tensor - found[1][name]).abs().max() < 1e-5, name


def test_a_ratio_per_sequence_with_a_wide_range_is_warned_of(trained: Run) -> None:
    _, said = trained(loss_type="gspo", epsilon=0.2, loss_agg_mode="token-mean")
    assert "warning: one ratio per sequence with a clip range of 0.2 clips next to nothing" in said
    assert "warning: gspo weighs whole completions, but --loss_agg_mode token-mean" in said


def test_kl_cov_on_policy_is_refused(covey: Run, grpo: Run, no_weights: Path) -> None:
    ended = covey(*grpo(model=no_weights, loss_type="kl_cov"))
    assert ended.code == 2 and "take several with --steps_per_generation" in ended.err


def test_one_completion_per_prompt_without_a_group_baseline(trained: Run) -> None:
    trained(advantage_estimator="reinforce_plus_plus", num_generations=1, countdown_num_puzzles=16)
