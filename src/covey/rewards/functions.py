"""The forms a reward function may have, how each is called, and which results are accepted."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from covey.errors import UserError
from covey.types import Completion, Prompt

SampleReward = Callable[[Prompt, Completion], float | None]

_TAKEN_METRIC_NAMES = ("mean", "std")  # metrics.jsonl has its own reward/mean and reward/std


class RewardError(UserError):
    """A reward function raised or returned something that is not one score per completion."""


class RewardFunction(Protocol):
    """A reward with a name, called with row-aligned prompts and completions; its result is not yet validated."""

    @property
    def name(self) -> str:
        """Metric name, distinct within a run."""
        ...

    def __call__(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> object:
        """Call the user's function; RewardError (function, row, traceback) when it raises."""
        ...


@dataclass(frozen=True, slots=True)
class PerSampleReward:
    """Calls ``function(prompt, completion)`` once per completion."""

    name: str
    function: SampleReward

    def __call__(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> list[object]:
        results: list[object] = []
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            try:
                results.append(self.function(prompt, completion))
            except Exception as exc:
                raise _raised(self.name, f"row {row} (prompt {prompt.id})", exc) from exc
        return results


@dataclass(frozen=True, slots=True)
class BatchReward:
    """Calls ``function(completions=..., prompts=..., column=...)`` once; every argument is a row-aligned list."""

    name: str
    function: Callable[..., Any]
    accepts: frozenset[str] | None
    """Parameter names to pass; None passes everything (the function has ``**kwargs``)."""
    requires: frozenset[str]

    def __call__(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> object:
        arguments = batch_arguments(prompts, completions)
        missing = sorted(self.requires - arguments.keys())
        if missing:
            raise RewardError(
                f"reward {self.name!r} reads the columns {', '.join(missing)}, which the data does not have; "
                f"it has: {', '.join(sorted(arguments))}."
            )
        if self.accepts is not None:
            arguments = {name: values for name, values in arguments.items() if name in self.accepts}
        try:
            return self.function(**arguments)
        except Exception as exc:
            raise _raised(self.name, f"a batch of {len(prompts)} rows (0 to {len(prompts) - 1})", exc) from exc


@dataclass(frozen=True, slots=True)
class GroupReward:
    """Calls ``function(prompt, completions)`` once per prompt, with all its completions (rows next to each other)."""

    name: str
    function: Callable[[Prompt, Sequence[Completion]], Sequence[float | None]]

    def __call__(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> list[object]:
        results: list[object] = []
        for _, rows in itertools.groupby(range(len(prompts)), key=lambda row: prompts[row].id):
            own = list(rows)
            prompt = prompts[own[0]]
            try:
                scores = list(self.function(prompt, [completions[row] for row in own]))
            except Exception as exc:
                raise _raised(self.name, f"the completions of prompt {prompt.id}", exc) from exc
            if len(scores) != len(own):
                raise RewardError(
                    f"reward {self.name!r} returned {len(scores)} scores for the {len(own)} completions of {prompt.id}."
                )
            results += scores
        return results


def as_reward(name: str, function: Callable[..., Any]) -> RewardFunction:
    """Recognise the form of a reward by its parameters.

    A parameter called ``completions`` makes it a batch reward; otherwise it must take two positional arguments, the
    Prompt and the Completion. A class is instantiated without arguments first. UserError for anything else.
    """
    if isinstance(function, GroupReward):
        return replace(function, name=name)
    if isinstance(function, type):
        try:
            function = function()
        except Exception as exc:
            raise UserError(f"reward class {name!r} cannot be made without arguments: {exc}") from exc
    if not callable(function):
        raise UserError(f"reward {name!r} is not a function but a {type(function).__name__}.")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        raise UserError(f"reward {name!r} is asynchronous; write it with a plain def.")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as exc:
        raise UserError(f"reward {name!r} has no readable signature; wrap it in a plain function.") from exc
    if "completions" in parameters:
        named = {p.name: p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        required = frozenset(p.name for p in named.values() if p.default is p.empty)
        return BatchReward(name, function, None if open_ended else frozenset(named), required)
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as exc:
        raise UserError(
            f"reward {name!r} takes ({', '.join(map(str, parameters.values()))}); it must be "
            "reward(prompt, completion) or reward(prompts, completions, **columns)."
        ) from exc
    return PerSampleReward(name, function)


def batch_arguments(prompts: Sequence[Prompt], completions: Sequence[Completion]) -> dict[str, list[Any]]:
    """Row-aligned arguments of a batch reward.

    ``prompts`` is the text of each row's last user message and ``completions`` the completion texts, always plain
    strings. Then ``messages``, ``prompt_id``, ``finish_reason`` and ``response_token_ids``, unless the data has columns
    of these names, and every data column (None where a row lacks it).
    """
    columns = dict.fromkeys(name for prompt in prompts for name in prompt.columns)
    clash = [name for name in ("prompts", "completions") if name in columns]
    if clash:
        raise RewardError(f"the data column {clash[0]!r} has the name of a reward argument; rename the column.")
    return {
        "messages": [list(prompt.messages) for prompt in prompts],
        "prompt_id": [prompt.id for prompt in prompts],
        "finish_reason": [completion.finish_reason for completion in completions],
        "response_token_ids": [list(completion.token_ids) for completion in completions],
        **{name: [prompt.columns.get(name) for prompt in prompts] for name in columns},
        "prompts": [_last_user_text(prompt) for prompt in prompts],
        "completions": [completion.text for completion in completions],
    }


def with_prefix(prompt: Prompt, completion: Completion) -> Completion:
    """The completion as rewards see it: a prompt that ends in an assistant message has already opened the answer."""
    if prompt.messages and prompt.messages[-1]["role"] == "assistant":
        return replace(completion, text=prompt.messages[-1]["content"] + completion.text)
    return completion


def validated(name: str, result: object, expected: int) -> tuple[list[float | None], int]:
    """Check a raw result: ``expected`` scores, and how many were NaN or infinite (these become None).

    Accepts a list, tuple, or one-dimensional array or tensor of float, int, bool or None; RewardError otherwise.
    """
    values = result.tolist() if hasattr(result, "tolist") else result
    wanted = f"reward {name!r} must return a list of {expected} scores (float, int, bool or None), one per completion"
    if not isinstance(values, (list, tuple)):
        raise RewardError(f"{wanted}; it returned a {type(result).__name__}.")
    if len(values) != expected:
        raise RewardError(f"{wanted}; it returned {len(values)}.")
    scores: list[float | None] = []
    failed = 0
    for row, value in enumerate(values):
        score = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
        if score is not None and not isinstance(score, (bool, int, float)):
            raise RewardError(f"{wanted}; row {row} is a {type(value).__name__}.")
        finite = score is None or _is_finite(score)
        failed += not finite
        scores.append(float(score) if score is not None and finite else None)
    return scores, failed


def own_name(function: Callable[..., Any]) -> str:
    """The name a function gives itself: "lambda" for a lambda, the inner name of a partial, the class of an object."""
    if isinstance(function, functools.partial):
        return own_name(function.func)
    if isinstance(function, GroupReward):
        return function.name
    name = function.__name__ if hasattr(function, "__name__") else type(function).__name__
    return "lambda" if name == "<lambda>" else str(name)


def distinct_names(names: Iterable[str]) -> list[str]:
    """Append _2, _3, ... to repeated names, and to names that are metrics of their own (mean, std)."""
    used = set(_TAKEN_METRIC_NAMES)
    result: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in used:
            number += 1
            candidate = f"{name}_{number}"
        used.add(candidate)
        result.append(candidate)
    return result


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the range of a float
        return False


def _last_user_text(prompt: Prompt) -> str:
    return next((turn["content"] for turn in reversed(prompt.messages) if turn["role"] == "user"), "")


def _raised(name: str, where: str, exc: Exception) -> RewardError:
    inside = exc.__traceback__.tb_next if exc.__traceback__ is not None else None
    details = "".join(traceback.format_exception(type(exc), exc, inside)).rstrip()
    return RewardError(f"reward {name!r} raised {type(exc).__name__} on {where}:\n{details}")
