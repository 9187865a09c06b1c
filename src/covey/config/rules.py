"""When an option is read. An option that nothing would read is refused, naming what would read it (known fault 36)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from covey.algo.advantages import ADVANTAGE_ESTIMATORS
from covey.config.algo import FIXED_SCALES
from covey.config.loss_options import LOSS_OPTION_HELP, losses_with
from covey.config.reward_options import REWARD_OPTION_HELP, rewards_with
from covey.errors import UserError

Values = Mapping[str, Any]


@dataclass(frozen=True)
class ReadWhen:
    """``options`` are read only when ``condition`` holds for the resolved values of the command."""

    options: tuple[str, ...]
    condition: Callable[[Values], bool]
    otherwise: str


def uses_countdown_generator(values: Values) -> bool:
    """True when train or held-out prompts come from the puzzle generator."""
    return values.get("dataset") == "countdown" or values.get("val_dataset") == "countdown"


def _read_by_its_losses(option: str) -> ReadWhen:
    losses = losses_with(option)
    return ReadWhen((option,), lambda v: v["loss_type"] in losses, f"is read only with --loss_type {', '.join(losses)}")


def _read_by_its_rewards(option: str) -> ReadWhen:
    rewards = rewards_with(option)
    known = f"is read only with --reward_funcs ... {' or '.join(rewards)}"
    return ReadWhen((option,), lambda v: any(name in v["reward_funcs"] for name in rewards), known)


def _read_by_control(name: str, *options: str) -> ReadWhen:
    return ReadWhen(options, lambda v: v["kl_control"] == name, f"is read only with --kl_control {name}")


RULES = (
    ReadWhen(
        ("kl_estimator", "kl_in_reward", "kl_control", "kl_alarm"),
        lambda v: v["beta"] > 0,
        "is read only with --beta above 0: with --beta 0 there is no KL term and no reference model",
    ),
    _read_by_control("threshold", "kl_high", "kl_low", "beta_up", "beta_down"),
    _read_by_control("proportional", "kl_target", "kl_horizon"),
    ReadWhen(
        ("beta_min", "beta_max"),
        lambda v: v["kl_control"] != "fixed",
        "is read only with --kl_control threshold or proportional",
    ),
    ReadWhen(
        ("entropy_target", "entropy_coef_delta", "entropy_coef_min", "entropy_coef_max"),
        lambda v: v["use_adaptive_entropy"],
        "is read only with --use_adaptive_entropy true",
    ),
    ReadWhen(
        ("zero_std_high", "zero_std_low", "zero_std_patience"),
        lambda v: bool(v["zero_std_ladder"]),
        "is read only with --zero_std_ladder",
    ),
    ReadWhen(
        ("max_resample_times", "resample_exhausted"),
        lambda v: v["dynamic_sample"] or "refill" in v["zero_std_ladder"],
        "is read only with --dynamic_sample true or --zero_std_ladder ... refill",
    ),
    ReadWhen(
        ("max_group_size",),
        lambda v: v["adaptive_budget"] or "budget" in v["zero_std_ladder"],
        "is read only with --adaptive_budget true or --zero_std_ladder ... budget",
    ),
    ReadWhen(
        ("ladder_temperature",),
        lambda v: "temperature" in v["zero_std_ladder"],
        "is read only with --zero_std_ladder ... temperature",
    ),
    ReadWhen(
        ("curriculum_group_sizes", "curriculum_advance"),
        lambda v: v["curriculum"] == "stages",
        "is read only with --curriculum stages",
    ),
    ReadWhen(
        ("num_generations",),
        lambda v: v.get("curriculum") != "stages",
        "is not read with --curriculum stages: --curriculum_group_sizes says it",
    ),
    ReadWhen(
        ("curriculum_memory",),
        lambda v: v["curriculum"] == "solve_rate",
        "is read only with --curriculum solve_rate",
    ),
    ReadWhen(
        ("dataset_shuffle",),
        lambda v: v.get("curriculum") != "solve_rate",
        "is not read with --curriculum solve_rate: prompts are drawn by their solve rates",
    ),
    ReadWhen(
        ("scale_rewards",),
        lambda v: ADVANTAGE_ESTIMATORS[v["advantage_estimator"]].scale not in FIXED_SCALES,
        "is not read: this --advantage_estimator has a divisor of its own",
    ),
    ReadWhen(
        ("rollout_importance_sampling_threshold", "rollout_importance_sampling_min"),
        lambda v: v["rollout_importance_sampling_mode"] is not None,
        "is read only with --rollout_importance_sampling_mode",
    ),
    ReadWhen(
        ("rollout_importance_sampling_min",),
        lambda v: str(v["rollout_importance_sampling_mode"]).endswith("_mask"),
        "is read only by the masks: --rollout_importance_sampling_mode token_mask or sequence_mask",
    ),
    ReadWhen(
        ("contrastive_loss", "contrastive_scale", "contrastive_alpha"),
        lambda v: v["contrastive_coef"] > 0,
        "is read only with --contrastive_coef above 0",
    ),
    ReadWhen(
        ("contrastive_alpha",),
        lambda v: v["contrastive_loss"] == "infonca",
        "is read only with --contrastive_loss infonca",
    ),
    *(_read_by_its_losses(name) for name in LOSS_OPTION_HELP),
    *(_read_by_its_rewards(name) for name in REWARD_OPTION_HELP),
    ReadWhen(
        ("reward_timeout",),
        lambda v: v.get("reward_workers", 1) > 0,
        "is not read with --reward_workers 0: a call in the trainer's own process can not be ended",
    ),
    ReadWhen(
        ("lam",),
        lambda v: v["length_adaptive_alpha"] is None or v["lam_value"] is None,
        "is not read with both --length_adaptive_alpha and --lam_value",
    ),
    ReadWhen(("num_train_epochs",), lambda v: v["max_steps"] == -1, "is not read when --max_steps is given: drop one"),
    ReadWhen(
        ("data_seed",),
        lambda v: v["dataset_shuffle"] or uses_countdown_generator(v),
        "is not read with --dataset_shuffle false: the rows keep their order",
    ),
    ReadWhen(
        ("val_dataset", "eval_num_prompts", "eval_num_samples"),
        lambda v: "eval_steps" not in v or v["eval_steps"] > 0,
        "is read only when training evaluates: add --eval_steps N",
    ),
    ReadWhen(("save_total_limit",), lambda v: v["save_steps"] > 0, "is not read with --save_steps 0"),
    ReadWhen(
        (
            "countdown_num_numbers",
            "countdown_number_range",
            "countdown_target_range",
            "countdown_operators",
            "countdown_require_integer_steps",
        ),
        uses_countdown_generator,
        "is read by the puzzle generator: use --dataset countdown",
    ),
    ReadWhen(
        ("countdown_num_puzzles", "countdown_guess_share", "countdown_unsolvable_share"),
        lambda v: v["dataset"] == "countdown",
        "is read by the puzzle generator: use --dataset countdown",
    ),
)


def refuse_unread(values: Values, given: Iterable[str]) -> None:
    """UserError for the first of the ``given`` options that nothing would read; ``values`` are all resolved options."""
    for option in given:
        rule = _unmet_rule(values, option)
        if rule is not None:
            raise UserError(f"--{option} {rule.otherwise}")


def is_read(values: Values, option: str) -> bool:
    """Whether anything reads ``option`` under the resolved ``values``."""
    return _unmet_rule(values, option) is None


def _unmet_rule(values: Values, option: str) -> ReadWhen | None:
    return next((rule for rule in RULES if option in rule.options and not rule.condition(values)), None)
