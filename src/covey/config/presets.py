"""``--preset NAME``: the objective of a paper at once. What is given beside it wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from covey.config.base import did_you_mean
from covey.config.rules import is_read
from covey.config.values import show
from covey.errors import UserError


@dataclass(frozen=True)
class Preset:
    """``options`` by name; ``rest``: what the paper has beyond them, for the person who starts the run."""

    source: str
    options: Mapping[str, object]
    rest: str = ""


PRESETS: dict[str, Preset] = {
    "grpo": Preset(
        "DeepSeekMath, arXiv 2402.03300", {"loss_type": "grpo", "beta": 0.04, "kl_estimator": "k3", "epsilon": 0.2}
    ),
    "dapo": Preset(
        "arXiv 2503.14476",
        {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.0, "dynamic_sample": True},
        "the paper also punishes long answers softly (--reward_funcs ... soft_overlong)",
    ),
    "dr_grpo": Preset("arXiv 2503.20783", {"loss_type": "dr_grpo", "scale_rewards": "none", "beta": 0.0}),
    "gspo": Preset(
        "arXiv 2507.18071",
        {"loss_type": "gspo", "epsilon": 3e-4, "epsilon_high": 4e-4, "beta": 0.0},
        "the paper takes four optimizer steps per rollout (--steps_per_generation)",
    ),
    "cispo": Preset(
        "MiniMax-M1, arXiv 2506.13585; the cap is ScaleRL's, the paper has none",
        {"loss_type": "cispo", "epsilon_high": 5.0, "beta": 0.0},
    ),
    "lite_ppo": Preset(
        "arXiv 2508.08221",
        {"loss_type": "grpo", "loss_agg_mode": "token-mean", "scale_rewards": "batch", "beta": 0.0},
    ),
    "scalerl": Preset(
        "arXiv 2510.13786",
        {
            "loss_type": "cispo",
            "epsilon_high": 5.0,
            "loss_agg_mode": "prompt-mean-token-mean",
            "scale_rewards": "batch",
            "beta": 0.0,
            "drop_zero_std": True,
        },
        "the paper also gives up prompts that are always solved, and trains asynchronously (Part 6)",
    ),
    "rloo": Preset(
        "arXiv 2402.14740",
        {"loss_type": "reinforce", "advantage_estimator": "rloo", "beta": 0.03, "kl_in_reward": True},
    ),
    "reinforce_plus_plus": Preset(
        "arXiv 2501.03262",
        {
            "loss_type": "grpo",
            "loss_agg_mode": "token-mean",
            "advantage_estimator": "reinforce_plus_plus",
            "beta": 1e-3,
            "kl_in_reward": True,
        },
    ),
    "reinforce_plus_plus_baseline": Preset(
        "arXiv 2501.03262",
        {
            "loss_type": "grpo",
            "loss_agg_mode": "token-mean",
            "advantage_estimator": "reinforce_plus_plus_baseline",
            "beta": 1e-3,
            "kl_estimator": "k2",
            "kl_in_reward": False,
        },
    ),
    "opo": Preset(
        "arXiv 2505.23585",
        {"loss_type": "reinforce", "loss_agg_mode": "token-mean", "advantage_estimator": "opo", "beta": 0.0},
        "exact only for one optimizer step per rollout",
    ),
    "gpg": Preset("arXiv 2504.02546", {"loss_type": "gpg", "advantage_estimator": "gpg", "beta": 0.0}),
    "maxrl": Preset(
        "arXiv 2602.02710",
        {"loss_type": "reinforce", "loss_agg_mode": "token-mean", "advantage_estimator": "maxrl", "beta": 0.0},
        "made for rewards of 0 and 1",
    ),
    "deepseek_v32": Preset(
        "arXiv 2512.02556",
        {
            "loss_type": "grpo",
            "beta": 1e-3,
            "kl_estimator": "k3_unbiased",
            "off_policy_sequence_mask_delta": 0.5,
        },
        "the paper publishes neither beta nor delta: these are starting points",
    ),
}


def expand(values: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, object]:
    """``values`` with a ``preset`` replaced by its options, under what is given beside it.

    Options of the preset that nothing reads beside the given ones are left out (no KL estimator with ``beta`` 0).
    UserError on an unknown preset, and on another loss beside one.
    """
    given = dict(values)
    name = given.pop("preset", None)
    if name is None:
        return given
    if name not in PRESETS:
        known = did_you_mean(str(name), PRESETS) or f": known are {', '.join(PRESETS)}"
        raise UserError(f"--preset {name} is not known{known}")
    options = PRESETS[str(name)].options
    if given.get("loss_type", options["loss_type"]) != options["loss_type"]:
        raise UserError(
            f"--preset {name} is --loss_type {options['loss_type']}, and --loss_type {given['loss_type']} is given:"
            " drop one of them"
        )
    merged = {**options, **given}
    full = {**defaults, **merged}
    return {key: value for key, value in merged.items() if key in given or is_read(full, key)}


def describe(name: str, given: Mapping[str, object], expanded: Mapping[str, object]) -> list[str]:
    """Lines for the start of a run: what the preset sets, what was given instead, what it can't set."""
    preset = PRESETS[name]
    kept = {key: value for key, value in preset.options.items() if key in expanded and key not in given}
    lines = [f"--preset {name} ({preset.source}) sets " + " ".join(f"--{k} {show(v)}" for k, v in kept.items())]
    other = [f"--{key} {show(given[key])}" for key in preset.options if key in given]
    lines += [f"given instead: {' '.join(other)}"] if other else []
    return lines + ([f"note: {preset.rest}"] if preset.rest else [])
