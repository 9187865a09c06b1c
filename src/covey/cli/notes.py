"""What the command line prints before a run: defaults that differ from ms-swift's, and the resolved config."""

from __future__ import annotations

from collections.abc import Mapping

from covey.cli.flags import NotInSwift, flag
from covey.config import GRPOConfig, SFTConfig
from covey.config.base import Composition, default_values, options
from covey.config.rules import is_read
from covey.config.values import show


def default_differences(config: Composition, given: Mapping[str, object]) -> list[str]:
    """One line per option left at a default that is not ms-swift's, for GRPO and sft: the table knows theirs."""
    if not isinstance(config, (GRPOConfig, SFTConfig)):
        return []
    values = config.to_dict()
    lines = []
    for key, default in default_values(type(config)).items():
        swift = flag(key).swift
        if isinstance(swift, NotInSwift) or _same(default, swift) or key in given or not is_read(values, key):
            continue
        lines.append(f"--{key} {_shown(default)} (ms-swift {_shown(swift)})")
    if isinstance(config, GRPOConfig) and config.reward.reward_weights is None:
        weights = config.reward.weights()
        if set(weights.values()) - {1.0}:
            lines.append(f"--reward_weights {show(list(weights.values()))} (ms-swift 1 each)")
    return lines


def resolved_config(config: Composition) -> list[str]:
    """Every option as ``name: value``, in the order of the config classes."""
    values = config.to_dict()
    return [f"{key}: {_shown(values[key])}" for key in options(type(config))]


def _same(default: object, swift: object) -> bool:
    alone = default[0] if isinstance(default, list) and len(default) == 1 else default
    return alone == swift


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return show(value) or '""'
