"""The forms a reward function may have, how each is called, and which results are accepted."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import os
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from covey.errors import UserError
from covey.types import Completion, Prompt

if TYPE_CHECKING:
    import asyncio

SampleReward = Callable[[Prompt, Completion], float | None]

_TAKEN_METRIC_NAMES = ("mean", "std")  # metrics.jsonl has its own reward/mean and reward/std


class RewardError(UserError):
    """A reward function raised or returned something that is not one score per completion."""


class InvalidResult(RewardError):
    """A result that is not one score per completion: the function is wrong, whatever the completion is."""


class RewardFunction(Protocol):
    """A reward with a name, in one of the forms below."""

    @property
    def name(self) -> str:
        """Metric name, distinct within a run."""
        ...

    @property
    def divisible(self) -> bool:
        """A call on several rows that failed may be repeated row by row."""
        ...

    def parts(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Which rows belong into one call."""
        ...

    def scores(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], state: object = None
    ) -> list[float | None]:
        """Call the user's function on row-aligned prompts and completions; NaN stays NaN.

        RewardError (function, prompt, traceback) when it raises, InvalidResult when it does not return one score per
        completion. ``state``: what batch rewards get as ``trainer_state``.
        """
        ...


@dataclass(frozen=True, slots=True)
class PerSampleReward:
    """Calls ``function(prompt, completion)`` once per completion."""

    name: str
    function: SampleReward
    divisible: ClassVar[bool] = False

    def parts(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        return [[row] for row in range(len(prompts))]

    def scores(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], state: object = None
    ) -> list[float | None]:
        results: list[object] = []
        for prompt, completion in zip(prompts, completions, strict=True):
            try:
                results.append(_awaited(self.function(prompt, completion)))
            except Exception as exc:
                raise _raised(self.name, f"a completion of prompt {prompt.id}", exc) from exc
        return validated(self.name, results, len(completions))


@dataclass(frozen=True, slots=True)
class BatchReward:
    """Calls ``function(completions=..., prompts=..., column=...)`` once; every argument is a row-aligned list."""

    name: str
    function: Callable[..., Any]
    accepts: frozenset[str] | None
    """Parameter names to pass; None passes everything (the function has ``**kwargs``)."""
    requires: frozenset[str]
    divisible: ClassVar[bool] = True

    def parts(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        return [list(range(len(prompts)))]

    def scores(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], state: object = None
    ) -> list[float | None]:
        arguments = batch_arguments(prompts, completions, state)
        missing = sorted(self.requires - arguments.keys())
        if missing:
            raise InvalidResult(
                f"reward {self.name!r} reads the columns {', '.join(missing)}, which the data does not have; "
                f"it has: {', '.join(sorted(arguments))}."
            )
        if self.accepts is not None:
            arguments = {name: values for name, values in arguments.items() if name in self.accepts}
        try:
            result = _awaited(self.function(**arguments))
        except Exception as exc:
            ids = prompts[0].id if len(prompts) == 1 else f"{prompts[0].id} to {prompts[-1].id}"
            raise _raised(self.name, f"a batch of {len(prompts)} completions (prompts {ids})", exc) from exc
        return validated(self.name, result, len(completions))


@dataclass(frozen=True, slots=True)
class GroupReward:
    """Calls ``function(prompt, completions)`` once per prompt, with all its completions (rows next to each other)."""

    name: str
    function: Callable[[Prompt, Sequence[Completion]], Sequence[float | None]]
    divisible: ClassVar[bool] = False

    def parts(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        rows = range(len(prompts))
        return [list(group) for _, group in itertools.groupby(rows, key=lambda row: prompts[row].id)]

    def scores(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], state: object = None
    ) -> list[float | None]:
        try:
            result = list(_awaited(self.function(prompts[0], completions)))  # type: ignore[call-overload]
        except Exception as exc:
            raise _raised(self.name, f"the completions of prompt {prompts[0].id}", exc) from exc
        return validated(self.name, result, len(completions))


def as_reward(name: str, function: Callable[..., Any] | GroupReward) -> RewardFunction:
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


def batch_arguments(
    prompts: Sequence[Prompt], completions: Sequence[Completion], state: object = None
) -> dict[str, Any]:
    """Row-aligned arguments of a batch reward.

    ``prompts`` is the text of each row's last user message and ``completions`` the completion texts, always plain
    strings. Then ``messages``, ``prompt_id``, ``finish_reason``, ``is_truncated``, ``completion_ids`` (as TRL has them;
    ms-swift: ``response_token_ids``) and ``trainer_state`` (``.global_step``, ``.max_steps``), unless the data has
    columns of these names, and every data column (None where a row lacks it).
    """
    columns = dict.fromkeys(name for prompt in prompts for name in prompt.columns)
    clash = [name for name in ("prompts", "completions") if name in columns]
    if clash:
        raise InvalidResult(f"the data column {clash[0]!r} has the name of a reward argument; rename the column.")
    token_ids = [list(completion.token_ids) for completion in completions]
    return {
        "trainer_state": state,
        "messages": [list(prompt.messages) for prompt in prompts],
        "prompt_id": [prompt.id for prompt in prompts],
        "finish_reason": [completion.finish_reason for completion in completions],
        "is_truncated": [completion.finish_reason == "length" for completion in completions],
        "completion_ids": token_ids,
        "response_token_ids": token_ids,
        **{name: [prompt.columns.get(name) for prompt in prompts] for name in columns},
        "prompts": [_last_user_text(prompt) for prompt in prompts],
        "completions": [completion.text for completion in completions],
    }


def with_prefix(prompt: Prompt, completion: Completion) -> Completion:
    """The completion as rewards see it: a prompt that ends in an assistant message has already opened the answer."""
    if prompt.messages and prompt.messages[-1]["role"] == "assistant":
        return replace(completion, text=prompt.messages[-1]["content"] + completion.text)
    return completion


def validated(name: str, result: object, expected: int) -> list[float | None]:
    """``expected`` scores of a raw result; InvalidResult when it is not that many.

    Accepts a list, tuple, or one-dimensional array or tensor of float, int, bool or None.
    """
    values = result.tolist() if hasattr(result, "tolist") else result
    wanted = f"reward {name!r} must return a list of {expected} scores (float, int, bool or None), one per completion"
    if not isinstance(values, (list, tuple)):
        raise InvalidResult(f"{wanted}; it returned a {type(result).__name__}.")
    if len(values) != expected:
        raise InvalidResult(f"{wanted}; it returned {len(values)}.")
    scores: list[float | None] = []
    for row, value in enumerate(values):
        score = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
        if score is not None and not isinstance(score, (bool, int, float)):
            raise InvalidResult(f"{wanted}; row {row} is a {type(value).__name__}.")
        try:
            scores.append(None if score is None else float(score))
        except OverflowError:  # an int beyond the range of a float
            scores.append(math.inf)
    return scores


def _awaited(result: object) -> object:
    """The value of an asynchronous function's result."""
    if not inspect.isawaitable(result):
        return result

    import asyncio  # slow to import, and rarely needed

    async def value() -> object:
        return await result

    return asyncio.run_coroutine_threadsafe(value(), _event_loop(os.getpid())).result()


@functools.cache
def _event_loop(pid: int) -> asyncio.AbstractEventLoop:
    """One loop per process, in a thread of its own: clients that a reward keeps belong to their first call's loop."""
    import asyncio

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="covey-rewards", daemon=True).start()
    return loop


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


def _last_user_text(prompt: Prompt) -> str:
    return next((turn["content"] for turn in reversed(prompt.messages) if turn["role"] == "user"), "")


def _raised(name: str, where: str, exc: Exception) -> RewardError:
    inside = exc.__traceback__.tb_next if exc.__traceback__ is not None else None
    details = "".join(traceback.format_exception(type(exc), exc, inside)).rstrip()
    hint = ""
    if isinstance(exc, TypeError) and "string indices" in str(exc):
        hint = "\nCompletions are plain strings here, whatever the form of the prompt: not completion[0]['content']."
    return RewardError(f"reward {name!r} raised {type(exc).__name__} on {where}:\n{details}{hint}")
