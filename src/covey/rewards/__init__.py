"""Rewards: named functions, their weights, and the validated way they are called.

A reward is one of (recognised by its parameter names, see ``functions.as_reward``):

* ``reward(prompt: Prompt, completion: Completion) -> float | None``, called once per completion;
* ``reward(prompts, completions, **columns) -> list`` as TRL has it, called once per batch; prompts and completions are
  always lists of plain strings, whatever the form of the prompt;
* a class with ``__call__(self, completions, **columns) -> list`` as ms-swift has it, made without arguments;
* a ``GroupReward``, whose function gets all completions of a prompt at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from covey.errors import UserError
from covey.rewards import accuracy, cosine, diversity, format, overlong, patterns, repetition
from covey.rewards.context import RewardContext
from covey.rewards.functions import GroupReward, RewardError, RewardFunction, as_reward, distinct_names, own_name
from covey.rewards.plugin import import_dotted, unknown_reward
from covey.rewards.runner import RewardLimits, RewardSet, RewardStats, ScoredBatch
from covey.rewards.spec import RewardSpec
from covey.tasks.base import Task

__all__ = [
    "DEFAULT_WEIGHTS",
    "REWARDS",
    "RewardContext",
    "RewardError",
    "RewardFunction",
    "RewardLimits",
    "RewardSet",
    "RewardStats",
    "ScoredBatch",
    "build_reward_set",
]

REWARDS: dict[str, RewardSpec] = {
    "accuracy": RewardSpec(accuracy.build, judges=True),
    "format": RewardSpec(format.build),
    "soft_overlong": RewardSpec(overlong.build, overlong.OverlongParams),
    "diversity": RewardSpec(diversity.build, judges=True),
    "repetition": RewardSpec(repetition.build, repetition.RepetitionParams),
    "cosine": RewardSpec(cosine.build, cosine.CosineParams, judges=True),
    "regex": RewardSpec(patterns.build_regex, patterns.RegexParams, isolated=True),
    "json_schema": RewardSpec(patterns.build_json_schema, patterns.SchemaParams, isolated=True),
}
"""The shipped rewards. Those that are not isolated are quick and can't hang: they run in the trainer's process."""

DEFAULT_WEIGHTS = {"format": 0.4, "accuracy": 0.6}
"""Weights when exactly these two are named and none are given; every other set of rewards gets 1.0 each."""


def build_reward_set(
    rewards: Sequence[str | Callable[..., Any]],
    *,
    context: RewardContext | None = None,
    weights: Sequence[float] | None = None,
    plugins: Mapping[str, Callable[..., Any]] | None = None,
    limits: RewardLimits | None = None,
) -> RewardSet:
    """Make the rewards of a run.

    A string is a name of REWARDS, a name of ``plugins`` (from ``load_plugin``) or a dotted path importable from the
    current folder; anything else is used as the function itself. ``limits``: whether all but the shipped rewards run in
    processes of their own (default: no). UserError on an unknown name, a function of no known form, or a wrong number
    of weights.
    """
    if not rewards:
        raise UserError("no reward given; name at least one, for example: format accuracy.")
    known = context or RewardContext()
    functions = [_resolve(item, known, plugins or {}) for item in rewards]
    wanted = [item.rpartition(".")[2] if isinstance(item, str) else own_name(item) for item in rewards]
    named = [as_reward(name, function) for name, function in zip(distinct_names(wanted), functions, strict=True)]
    names = [item if isinstance(item, str) else "" for item in rewards]
    isolated = frozenset(k for k, name in enumerate(names) if _needs_process(name, known.task))
    return RewardSet(tuple(named), _weights(names, weights), isolated, limits or RewardLimits())


def _needs_process(name: str, task: Task | None) -> bool:
    spec = REWARDS.get(name)
    return spec is None or spec.isolated or (spec.judges and task is not None and not task.quick)


def _weights(names: Sequence[str], weights: Sequence[float] | None) -> tuple[float, ...]:
    if weights is None:
        if sorted(names) == sorted(DEFAULT_WEIGHTS):
            return tuple(DEFAULT_WEIGHTS[name] for name in names)
        return (1.0,) * len(names)
    if len(weights) != len(names):
        raise UserError(
            f"{len(weights)} reward weights for {len(names)} rewards; give one weight per reward, in order."
        )
    for weight in weights:
        if not math.isfinite(weight):
            raise UserError(f"reward weight {weight} is not a finite number.")
    return tuple(float(weight) for weight in weights)


def _resolve(
    item: str | Callable[..., Any], context: RewardContext, plugins: Mapping[str, Callable[..., Any]]
) -> Callable[..., Any] | GroupReward:
    if not isinstance(item, str):
        return item
    if item in plugins and item in REWARDS:
        raise UserError(f"reward {item!r} is built in and also defined by a plugin; rename the one in the plugin.")
    if item in plugins:
        return plugins[item]
    if item in REWARDS:
        return REWARDS[item].build(context)
    if "." in item:
        return import_dotted(item)
    raise unknown_reward(item, [*REWARDS, *plugins])
