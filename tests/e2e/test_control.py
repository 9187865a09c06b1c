"""What steers a run: coefficients that move, are logged, and go on after a stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]

MOVING = {
    "max_steps": 6,
    "beta": 0.05,
    "kl_control": "threshold",
    "kl_high": 0.002,
    "kl_low": 0.0001,
    "kl_alarm": 0.004,
    "use_adaptive_entropy": True,
    "entropy_target": 100.0,
    "learning_rate": 1e-3,
    "steps_per_generation": 2,
}


@pytest.mark.parametrize("in_reward", [False, True])
def test_beta_follows_the_rule_and_resumes(covey: Run, grpo: Run, lines_of: Run, in_reward: bool) -> None:
    options = {**MOVING, "kl_in_reward": in_reward}
    assert covey(*grpo(output_dir="straight", **options)).code == 0
    records = lines_of("straight/metrics.jsonl")
    betas, kls = [r["beta"] for r in records], [r["kl"] for r in records]
    assert betas[0] == 0.05 and len(set(betas)) > 1 and kls[0] == pytest.approx(0, abs=1e-9)
    if in_reward:  # beta is that of a whole rollout of two steps, and moves by their mean
        assert betas[::2] == betas[1::2]
        betas, kls = betas[::2], [(a + b) / 2 for a, b in zip(kls[::2], kls[1::2], strict=True)]
    for before, kl, after in zip(betas, kls, betas[1:], strict=False):
        factor = 1.2 if kl > 0.002 else 0.8 if kl < 0.0001 else 1.0
        assert after == pytest.approx(before * factor)
    assert [r["entropy_coef"] for r in records] == pytest.approx([0.0, 0.005, 0.01, 0.015, 0.02, 0.025])

    ended = covey(*grpo(output_dir="run", reward_funcs="stop_in_call_3", **options))
    assert ended.code == 130
    assert covey(*grpo(output_dir="run", resume_from_checkpoint="latest", **options)).code == 0
    resumed = lines_of("run/metrics.jsonl")
    assert [(r["beta"], r["kl"]) for r in resumed] == [(r["beta"], r["kl"]) for r in records]


def test_a_spike_is_said_and_kept(covey: Run, grpo: Run, lines_of: Run) -> None:
    ended = covey(*grpo(**{**MOVING, "kl_alarm": 0.001, "kl_control": None, "kl_high": None, "kl_low": None}))
    assert ended.code == 0
    events = lines_of("run/events.jsonl")
    assert events and "KL spike" in events[0]["event"] and f"step {events[0]['step']}: KL spike" in ended.out


@pytest.mark.parametrize(
    "options, said",
    [
        ({"kl_control": "threshold"}, "is read only with --beta above 0"),
        ({"beta": 0.1, "kl_high": 0.2}, "is read only with --kl_control threshold"),
        ({"beta": 0.1, "kl_control": "proportional", "kl_target": 0}, "--kl_target 0"),
        ({"beta": 0.1, "kl_control": "proportional", "kl_horizon": -1}, "--kl_horizon -1"),
        ({"beta": 0.1, "kl_control": "threshold", "kl_low": 0.5}, "below --kl_high 0.1"),
        ({"beta": 2.0, "kl_control": "threshold"}, "--beta_max 1"),
        ({"entropy_target": 0.5}, "is read only with --use_adaptive_entropy true"),
        ({"entropy_coef": 0.5, "use_adaptive_entropy": True}, "--entropy_coef_max 0.1"),
    ],
)
def test_what_would_do_nothing_or_harm_is_refused(covey: Run, grpo: Run, options: dict[str, Any], said: str) -> None:
    ended = covey(*grpo(**options))
    assert ended.code == 2 and said in ended.err
