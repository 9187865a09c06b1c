"""Batch arithmetic: known fault 24, the step count of the spare table, and the refusals with their nearest settings."""

from __future__ import annotations

from typing import Any

import pytest

from covey.errors import UserError
from covey.plan.batch import BatchPlan, check_group_size, nearest_multiples, plan_batches, plan_sft


def plan(**changes: Any) -> BatchPlan:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "num_generations": 8,
        "max_completion_length": 100,
        "num_prompts": 64,
    }
    return plan_batches(**settings | changes)


def refusal(**changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        plan(**changes)
    return str(caught.value)


def test_step_count_of_the_spare_fault_table() -> None:
    # 4 x 2 x 3 = 24 completions = 4 prompts a step; 8000 / 4 = 2000 steps an epoch; 2 epochs = 4000
    resolved = plan(
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=6,
        num_prompts=8000,
        world_size=3,
        num_train_epochs=2.0,
    )
    assert resolved.total_steps == 4000
    assert resolved.completions_per_step == 24
    assert resolved.prompts_per_generation == 4
    assert resolved.on_policy
    assert "4,000 optimizer steps" in "\n".join(resolved.describe())


def test_accumulation_counts_towards_the_group() -> None:
    resolved = plan(per_device_train_batch_size=1, gradient_accumulation_steps=8)
    assert resolved.generation_batch_size == 8
    assert resolved.prompts_per_generation == 1
    assert resolved.groups_per_step == 1.0


def test_one_step_per_rollout_is_on_policy_and_anything_else_is_not() -> None:
    assert plan().on_policy
    assert not plan(num_iterations=2).on_policy
    assert not plan(steps_per_generation=2).on_policy


def test_several_steps_and_passes_per_rollout() -> None:
    # a rollout is 4 micro-batches of 4 = 16 completions = 2 groups of 8; a step is 2 micro-batches; 2 steps x 3 passes
    resolved = plan(
        per_device_train_batch_size=4, gradient_accumulation_steps=2, steps_per_generation=4, num_iterations=3
    )
    assert resolved.steps_per_rollout == 6
    assert resolved.prompts_per_generation == 2
    assert resolved.total_steps == 192  # 64 prompts / 2 = 32 rollouts x 6
    assert resolved.max_tokens_per_rollout == 1600


def test_generation_batch_size_says_the_same_as_steps_per_generation() -> None:
    by_size = plan(generation_batch_size=32, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    by_steps = plan(steps_per_generation=8, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    assert by_size == by_steps
    assert plan(generation_batch_size=16, steps_per_generation=2).steps_per_generation == 2


def test_a_group_split_over_optimizer_steps_is_said() -> None:
    resolved = plan(per_device_train_batch_size=4, steps_per_generation=2)
    assert resolved.groups_per_step == 0.5
    assert "0.5 groups, split over steps" in "\n".join(resolved.describe())
    assert "split" not in "\n".join(plan().describe())


def test_max_steps_wins_over_epochs() -> None:
    resolved = plan(max_steps=5, num_train_epochs=3.0)
    assert resolved.total_steps == 5
    assert resolved.num_rollouts == 5
    assert resolved.epochs == pytest.approx(5 / 64)


def test_a_started_rollout_is_filled_and_counted() -> None:
    assert plan(num_prompts=3, per_device_train_batch_size=16).total_steps == 2  # 3 prompts, 2 a rollout
    assert (
        plan(num_prompts=30, per_device_train_batch_size=24, num_train_epochs=0.1).total_steps == 1
    )  # 3 prompts, 3 each


def test_seven_completions_in_groups_of_eight() -> None:
    message = refusal(per_device_train_batch_size=7)
    assert "rollout of 7 completions" in message
    assert "groups of 8 (--num_generations)" in message
    assert "count completions, not prompts" in message
    assert "--num_generations 7" in message  # 7 is prime: the only group size above 1
    assert "--per_device_train_batch_size 8" in message
    assert "--gradient_accumulation_steps 8" in message


def test_the_product_is_shown_with_its_factors() -> None:
    message = refusal(per_device_train_batch_size=6, gradient_accumulation_steps=2, world_size=3)
    assert "36 = 6 completions per device (--per_device_train_batch_size) x 3 devices x 2 micro-batches" in message
    assert "--num_generations 2 or 3 or 4 or 6 or 9 or 12 or 18 or 36" in message
    assert "--per_device_train_batch_size 4 or 8" in message  # 8 / gcd(8, 6) = 4: multiples of 4 around 6
    assert "--gradient_accumulation_steps 4" in message  # 8 / gcd(8, 18) = 4


def test_suggested_settings_are_valid() -> None:
    for size in (4, 8):
        plan(per_device_train_batch_size=size, gradient_accumulation_steps=2, world_size=3)
    plan(per_device_train_batch_size=6, gradient_accumulation_steps=4, world_size=3)
    for group in (2, 3, 4, 6, 9, 12, 18, 36):
        plan(per_device_train_batch_size=6, gradient_accumulation_steps=2, world_size=3, num_generations=group)


def test_one_completion_has_no_valid_group() -> None:
    message = refusal(per_device_train_batch_size=1)
    assert "--num_generations" not in message.split("Nearest valid settings:")[1]
    assert "--per_device_train_batch_size 8" in message


def test_group_sizes_that_make_no_sense() -> None:
    assert "--num_generations 0: must be at least 1" in refusal(num_generations=0)
    with pytest.raises(UserError, match="--num_generations 1: needs at least 2"):
        check_group_size(1)
    assert plan(num_generations=1).prompts_per_generation == 8  # for estimators without a group baseline


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"steps_per_generation": 3, "gradient_accumulation_steps": 2}, ["--steps_per_generation: 2 or 4"]),
        ({"steps_per_generation": 1, "gradient_accumulation_steps": 4}, ["--steps_per_generation: 4"]),
        ({"generation_batch_size": 12}, ["not a multiple of one micro-batch of 8", "8 or 16"]),
        ({"generation_batch_size": 16, "steps_per_generation": 3}, ["disagree", "are 24"]),
        ({"per_device_train_batch_size": 4, "steps_per_generation": 3}, ["3 micro-batches (--steps_per_generation)"]),
        ({"per_device_train_batch_size": 0}, ["--per_device_train_batch_size 0: must be at least 1"]),
        ({"gradient_accumulation_steps": -1}, ["--gradient_accumulation_steps -1"]),
        ({"num_iterations": 0}, ["--num_iterations 0"]),
        ({"num_prompts": 0}, ["no prompts"]),
        ({"num_train_epochs": 0.0}, ["--num_train_epochs 0"]),
    ],
)
def test_other_refusals_name_the_option(changes: dict[str, Any], parts: list[str]) -> None:
    message = refusal(**changes)
    assert all(part in message for part in parts), message


def test_nearest_multiples() -> None:
    assert nearest_multiples(6, 4) == [4, 8]
    assert nearest_multiples(3, 8) == [8]


def test_sft_plan() -> None:
    resolved = plan_sft(
        per_device_train_batch_size=8, gradient_accumulation_steps=4, num_examples=100, num_train_epochs=2.0
    )
    assert resolved.examples_per_step == 32
    assert resolved.total_steps == 7  # 200 / 32 = 6.25: the last step is filled from the next epoch
    assert "7 optimizer steps, 2.24 epochs of 100 examples" in "\n".join(resolved.describe("example"))
    with pytest.raises(UserError, match="no examples"):
        plan_sft(per_device_train_batch_size=8, gradient_accumulation_steps=1, num_examples=0)
