"""PPO: a critic beside the policy, on the same step layout, engine and logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Run = Callable[..., Any]


@pytest.fixture
def ppo(grpo: Run) -> Run:
    """The words of a PPO run of 3 on-policy steps of 8 completions, one per prompt."""

    def words(**changes: Any) -> list[str]:
        options = {
            "num_generations": None,
            "critic_lr": 1e-2,
            "learning_rate": 1e-3,
            "reward_funcs": "uneven",
            **changes,
        }
        return ["ppo" if word == "grpo" else word for word in grpo(**options)]

    return words


def test_the_run_folder(covey: Run, ppo: Run, tiny: Path, lines_of: Run, weights_of: Run, same_weights: Run) -> None:
    ended = covey(*ppo())
    assert ended.code == 0, ended.err
    assert "objective       ppo" in ended.err and "KL 0.05 x k1 in the reward" in ended.err
    records = lines_of("run/metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3]
    assert records[0]["value/mean"] == 0 and records[2]["value/mean"] != 0  # the head starts at zero and learns
    for record in records:
        assert record["value/loss"] > 0 and record["value/grad_norm"] > 0 and record["value/error"] > 0
        assert record["value/lr"] == 0.01 and record["beta"] == 0.05 and record["grad_norm"] > 0
    assert abs(records[0]["kl"]) < 1e-6 < records[2]["kl"]
    assert not same_weights(weights_of(tiny), weights_of("run/final"))
    assert len(lines_of("run/rollouts/step_1.jsonl")) == 8


def test_critic_warm_up_trains_the_critic_only(
    covey: Run, ppo: Run, tiny: Path, lines_of: Run, weights_of: Run, same_weights: Run
) -> None:
    assert covey(*ppo(critic_warmup=2, warmup_steps=1, save_steps=2, lr_scheduler_type="constant")).code == 0
    records = lines_of("run/metrics.jsonl")
    assert all(record["value/grad_norm"] > 0 and record["value/update_skipped"] == 0 for record in records)
    for record in records[:2]:  # no policy update, so no value for it
        assert all(record[name] is None for name in ("loss", "grad_norm", "update_skipped", "lr"))
    assert same_weights(weights_of(tiny), weights_of("run/checkpoint-2"))
    assert records[2]["update_skipped"] == 0 and not same_weights(weights_of(tiny), weights_of("run/final"))
    assert records[2]["lr"] == pytest.approx(1e-3)  # the policy's own warm-up starts with its first step
    ended = covey(*ppo(critic_warmup=3, output_dir="other"))
    assert ended.code == 2 and "the policy would never be trained" in ended.err


@pytest.mark.parametrize(
    "options",
    [
        {"kl_in_reward": False},
        {"beta": 0.0, "whiten_advantages": False},
        {"lam_value": 1.0, "length_adaptive_alpha": 0.5, "positive_nll_coef": 0.1, "epsilon_high": 0.28},
        {"num_generations": 4, "entropy_coef": 0.01, "num_iterations": 2, "steps_per_generation": 2},
        {"gradient_checkpointing": True},
    ],
    ids=str,
)
def test_variants(covey: Run, ppo: Run, lines_of: Run, options: dict[str, Any]) -> None:
    ended = covey(*ppo(**options))
    assert ended.code == 0, ended.err
    assert all(record["grad_norm"] > 0 for record in lines_of("run/metrics.jsonl"))


def test_other_models(covey: Run, ppo: Run, tiny_gpt2: Path, lines_of: Run) -> None:
    assert covey(*ppo(model=tiny_gpt2)).code == 0
    assert all(record["value/grad_norm"] > 0 for record in lines_of("run/metrics.jsonl"))


def test_a_resumed_run_is_the_same_run(
    covey: Run, ppo: Run, lines_of: Run, comparable: Run, weights_of: Run, same_weights: Run
) -> None:
    """The critic and its optimizer are part of a checkpoint."""
    assert covey(*ppo(max_steps=4, output_dir="whole", lr_scheduler_type="constant")).code == 0
    assert covey(*ppo(max_steps=2, output_dir="part", lr_scheduler_type="constant")).code == 0
    resumed = covey(*ppo(max_steps=4, output_dir="part", lr_scheduler_type="constant", resume_from_checkpoint="latest"))
    assert resumed.code == 0, resumed.err
    assert comparable(lines_of("part/metrics.jsonl")) == comparable(lines_of("whole/metrics.jsonl"))
    assert same_weights(weights_of("part/final"), weights_of("whole/final"))
    state = torch.load("whole/checkpoint-4/trainer_state.pt", weights_only=True)
    assert {"backend", "critic"} <= state.keys()


def test_a_checkpoint_of_grpo_is_not_continued_as_ppo(covey: Run, grpo: Run, ppo: Run) -> None:
    assert covey(*grpo(max_steps=1)).code == 0
    ended = covey(*ppo(max_steps=2, resume_from_checkpoint="latest"))
    assert ended.code == 2 and "is a checkpoint of grpo, and this is a run of ppo" in ended.err
    assert covey(*ppo(max_steps=1, output_dir="other")).code == 0
    ended = covey(*grpo(max_steps=2, output_dir="other", resume_from_checkpoint="latest"))
    assert ended.code == 2 and "is a checkpoint of ppo, and this is a run of grpo" in ended.err
