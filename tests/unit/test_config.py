"""Config classes: strict types, ranges, flat round trip, and options that nothing reads (known fault 36)."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields
from typing import Any, Literal, get_args, get_origin

import pytest

from covey.cli.flags import COMMANDS
from covey.config import GRPOConfig, OptimConfig, RewardConfig, RolloutConfig, RunConfig, SampleConfig, SFTConfig
from covey.config.base import Composition, default_values, option_type, options, section_types
from covey.config.values import coerce, without_none
from covey.errors import UserError

COMPOSITIONS = list(COMMANDS.values())


def refusal(config: type[Composition], **values: object) -> str:
    with pytest.raises(UserError) as caught:
        config.from_dict(values)
    return str(caught.value)


@pytest.mark.parametrize("config", COMPOSITIONS)
def test_defaults_round_trip(config: type[Composition]) -> None:
    assert config.from_dict(config().to_dict()) == config()


def test_changed_values_round_trip_through_json() -> None:
    given: dict[str, object] = {
        "model": "smollm2-135m",
        "dataset": "countdown",
        "beta": 0.001,
        "kl_estimator": "k2",
        "reward_funcs": ["format", "accuracy", "mine"],
        "reward_weights": [0.1, 0.9, 1],
        "countdown_number_range": [1, 20],
        "report_to": ["tensorboard", "wandb"],
        "eval_steps": 10,
        "max_steps": 30,
        "save_total_limit": None,
        "steps_per_generation": 4,
    }
    config = GRPOConfig.from_dict(given)
    restored = GRPOConfig.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False)))
    assert restored == config
    assert config.algo.beta == 0.001
    assert config.reward.reward_weights == (0.1, 0.9, 1.0)
    assert config.countdown.number_range == (1, 20)
    assert config.run.save_total_limit is None


def test_the_defaults_of_a_command_are_kept() -> None:
    assert SFTConfig.from_dict({"weight_decay": 0.1}).optim == OptimConfig(learning_rate=1e-5, weight_decay=0.1)
    assert GRPOConfig().optim.learning_rate == 1e-6


def test_unknown_key_is_refused_with_the_nearest_name() -> None:
    assert refusal(GRPOConfig, max_stepz=5) == "unknown option max_stepz: did you mean max_steps?"
    assert refusal(GRPOConfig, qqqqqq=5) == "unknown option qqqqqq"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rate": "1e-6x"}, "--learning_rate: expected a number, got '1e-6x'"),
        ({"learning_rate": "nan"}, "--learning_rate: expected a number, got 'nan'"),
        ({"learning_rate": True}, "--learning_rate: expected a number, got True"),
        ({"max_steps": 5.0}, "--max_steps: expected a whole number, got 5.0"),
        ({"max_steps": "1e3"}, "--max_steps: expected a whole number, got '1e3'"),
        ({"dataset_shuffle": "yes"}, "--dataset_shuffle: expected true or false, got 'yes'"),
        ({"dataset_shuffle": 1}, "--dataset_shuffle: expected true or false, got 1"),
        ({"dataset": 24}, "--dataset: expected text, got 24"),
        ({"dataset": ["a", "b"]}, "--dataset: expected text, got ['a', 'b']"),
        ({"model": None}, "--model: expected text, got None"),
        ({"reward_weights": ["a"]}, "--reward_weights: expected a number, got 'a'"),
        ({"torch_dtype": "bfloat32"}, "--torch_dtype bfloat32: must be one of auto, bfloat16, float32"),
        ({"truncation_strategy": "left"}, "--truncation_strategy left: must be one of raise, delete"),
        ({"report_to": ["swanlab"]}, "--report_to swanlab: must be one of tensorboard, wandb, none"),
    ],
)
def test_a_wrong_type_names_the_key(values: dict[str, object], message: str) -> None:
    assert refusal(GRPOConfig, **values).startswith(message)


def test_numbers_written_as_text_are_read() -> None:
    config = GRPOConfig.from_dict({"learning_rate": "1e-6", "max_steps": "-1", "save_total_limit": "none"})
    assert config.optim.learning_rate == 1e-6
    assert config.run.max_steps == -1
    assert config.run.save_total_limit is None


def test_a_single_value_stands_for_a_list() -> None:
    assert GRPOConfig.from_dict({"reward_funcs": "format"}).reward.reward_funcs == ("format",)


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("temperature", -0.1, "0 (greedy) or above"),
        ("top_p", 0.0, "above 0 and at most 1"),
        ("top_k", -2, "-1 for no limit"),
        ("min_p", 1.0, "below 1"),
        ("max_completion_length", 0, "at least 1 token"),
        ("max_length", 0, "at least 1 token"),
        ("beta", -1.0, "0 (no KL term) or above"),
        ("epsilon", 0.0, "must be between 0 and 1"),
        ("epsilon_high", 0.0, "must be positive"),
        ("delta", 1.2, "larger than 1 + epsilon_high = 1.2"),
        ("learning_rate", -1.0, "0 or above"),
        ("warmup_ratio", 1.0, "below 1"),
        ("max_grad_norm", 0.0, "above 0"),
        ("adam_beta2", 1.0, "below 1"),
        ("max_steps", 0, "at least 1, or -1"),
        ("num_train_epochs", 0.0, "above 0"),
        ("save_total_limit", 0, "at least 1, or none"),
        ("logging_steps", 0, "at least 1"),
        ("seed", -1, "0 or above"),
        ("num_generations", 1, "needs at least 2"),
        ("num_iterations", 0, "at least 1"),
        ("per_device_train_batch_size", 0, "at least 1"),
        ("countdown_num_numbers", [4, 3], "low then high"),
        ("countdown_target_range", [5], "two whole numbers"),
        ("dataset", "countdown#500", "--countdown_num_puzzles"),
        ("reward_funcs", ["format", "format"], "named once each"),
        ("report_to", ["none", "wandb"], "none alone"),
    ],
)
def test_values_out_of_range_are_refused(key: str, value: object, part: str) -> None:
    message = refusal(GRPOConfig, **{key: value})
    assert f"--{key} " in message
    assert part in message


def test_greedy_sampling_is_for_evaluation_only() -> None:
    assert "--temperature 0" in refusal(GRPOConfig, temperature=0)
    assert SampleConfig.from_dict({"temperature": 0}).sampling.temperature == 0.0


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"kl_estimator": "k2"}, ["--kl_estimator", "--beta above 0"]),
        ({"max_steps": 5, "num_train_epochs": 2.0}, ["--num_train_epochs", "--max_steps"]),
        (
            {"data_seed": 3, "dataset_shuffle": False, "dataset": "rows.jsonl"},
            ["--data_seed", "--dataset_shuffle false"],
        ),
        ({"val_dataset": "rows.jsonl"}, ["--val_dataset", "--eval_steps"]),
        ({"eval_num_prompts": 10}, ["--eval_num_prompts", "--eval_steps"]),
        ({"save_steps": 0, "save_total_limit": 3}, ["--save_total_limit", "--save_steps 0"]),
        (
            {"dataset": "rows.jsonl", "countdown_target_range": [1, 9]},
            ["--countdown_target_range", "--dataset countdown"],
        ),
        ({"dataset": "rows.jsonl", "eval_steps": 5}, ["--eval_steps 5", "--val_dataset"]),
        ({"warmup_ratio": 0.1, "warmup_steps": 5}, ["--warmup_ratio", "--warmup_steps"]),
        ({"reward_funcs": ["a", "b"], "reward_weights": [1.0]}, ["1 values for 2 reward functions"]),
    ],
)
def test_options_that_nothing_reads_and_conflicts_are_refused(values: dict[str, object], parts: list[str]) -> None:
    message = refusal(GRPOConfig, **values)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    "values",
    [
        {"beta": 0.001, "kl_estimator": "k2"},
        {"max_steps": 5},
        {"num_train_epochs": 2.0},
        {"data_seed": 3, "dataset_shuffle": False, "dataset": "countdown"},
        {"eval_steps": 5, "dataset": "countdown", "eval_num_prompts": 10},
        {"eval_steps": 5, "dataset": "rows.jsonl", "val_dataset": "more.jsonl"},
        {"dataset": "countdown", "countdown_target_range": [1, 9]},
        {"eval_steps": 5, "dataset": "rows.jsonl", "val_dataset": "countdown", "countdown_target_range": [1, 9]},
    ],
)
def test_options_that_something_reads_are_accepted(values: dict[str, object]) -> None:
    config = GRPOConfig.from_dict(values)
    assert GRPOConfig.from_dict(config.to_dict()) == config


def test_reward_weights() -> None:
    assert RewardConfig(("accuracy", "format")).weights() == {"accuracy": 0.6, "format": 0.4}
    assert RewardConfig(("format",)).weights() == {"format": 1.0}
    assert RewardConfig(("format", "accuracy", "mine")).weights() == {"format": 1.0, "accuracy": 1.0, "mine": 1.0}
    assert RewardConfig(("format", "accuracy"), (1.0, 2.0)).weights() == {"format": 1.0, "accuracy": 2.0}


def test_scale_follows_the_estimator_unless_given() -> None:
    def scale(**values: object) -> str:
        return GRPOConfig.from_dict(values).algo.scale

    assert scale() == "group"
    assert scale(advantage_estimator="rloo") == "none"
    assert scale(advantage_estimator="rloo", scale_rewards="batch") == "batch"
    assert scale(loss_type="dr_grpo") == "none"  # TRL and ms-swift need both flags


@pytest.mark.parametrize("config", COMPOSITIONS)
def test_a_choice_called_none_is_not_an_empty_value(config: type[Composition]) -> None:
    """``--scale_rewards none`` was read as "not given", so advantages were divided by the group's std in silence."""
    for key in options(config):
        hint = without_none(option_type(config, key))
        if get_origin(hint) is Literal and "none" in get_args(hint):
            assert coerce(key, "none", option_type(config, key)) == "none"
    assert GRPOConfig.from_dict({"scale_rewards": "none"}).algo.scale == "none"


def test_sections_check_what_python_gives_them() -> None:
    with pytest.raises(UserError, match="--num_generations 0: must be at least 1"):
        RolloutConfig(num_generations=0)
    with pytest.raises(FrozenInstanceError):
        RunConfig().seed = 1  # type: ignore[misc]


@pytest.mark.parametrize("config", COMPOSITIONS)
def test_every_default_is_reachable_and_of_its_type(config: type[Composition]) -> None:
    instance: Any = config()
    for key, (section, name) in options(config).items():
        value = getattr(getattr(instance, section), name)
        assert (list(value) if isinstance(value, tuple) else value) == default_values(config)[key]
    assert all(len(fields(section)) <= 15 for section in section_types(config).values())
