"""From config to prompts, examples and rewards: everything that is checked before a model loads."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from covey.config import (
    CountdownConfig,
    DataConfig,
    RewardConfig,
    RewardOptionsConfig,
    SamplingConfig,
    TrainCountdownConfig,
    WorkedCountdownConfig,
)
from covey.errors import UserError
from covey.models.embedder import SentenceEmbedder
from covey.rewards import REWARDS, RewardContext, RewardLimits, RewardSet, build_reward_set
from covey.rewards.functions import distinct_names, own_name
from covey.rewards.plugin import load_plugin
from covey.tasks import ByRow, get_task
from covey.tasks.base import PromptTemplate, Task
from covey.tasks.countdown import DEFAULT_TEMPLATE, problem_to_prompt
from covey.tasks.countdown_generator import CountdownSpec, Problem, Split, sample_problems
from covey.tasks.countdown_trace import Demonstrations, guess, worked_solution
from covey.tasks.dataset import LoadedPrompts, Row, Table, check_rows, load_prompts, read_table, table_of
from covey.tasks.preference import answer_text, pair_problems, split_pair
from covey.types import Prompt

T = TypeVar("T")
Rows = str | Sequence[Mapping[str, Any]]
"""A data source: its name, or the rows themselves."""


def countdown_spec(config: CountdownConfig) -> CountdownSpec:
    """The puzzle family of a config."""
    return CountdownSpec(
        num_numbers=(config.num_numbers[0], config.num_numbers[1]),
        number_range=(config.number_range[0], config.number_range[1]),
        operators=config.operators,
        target_range=(config.target_range[0], config.target_range[1]),
        require_integer_steps=config.require_integer_steps,
    )


def template_of(config: DataConfig) -> PromptTemplate:
    """How a row of columns becomes messages."""
    return PromptTemplate(user=config.prompt_template or DEFAULT_TEMPLATE.user, system=config.system)


def training_prompts(
    data: DataConfig, countdown: TrainCountdownConfig, rows: Rows, seed: int, say: Say
) -> list[Prompt]:
    """The prompts to train on."""
    if rows == "countdown":
        problems = sample_problems(countdown_spec(countdown), "train", countdown.num_puzzles, seed)
        return [problem_to_prompt(problem, template_of(data)) for problem in problems]
    return prompts_from_rows(data, rows, seed, "train", say)


def heldout_prompts(
    data: DataConfig, countdown: CountdownConfig, rows: Rows, count: int, seed: int, say: Say
) -> list[Prompt]:
    """At most ``count`` prompts to evaluate on: for the generator, puzzles that no training set holds."""
    if rows == "countdown":
        problems = heldout_problems(countdown, "heldout", count, seed)
        return [problem_to_prompt(problem, template_of(data)) for problem in problems]
    return prompts_from_rows(data, rows, seed, "test", say)[:count]


def heldout_problems(countdown: CountdownConfig, split: Split, count: int, seed: int) -> list[Problem]:
    return sample_problems(countdown_spec(countdown), split, count, seed)


Say = Callable[[str], None]


def prompts_from_rows(data: DataConfig, rows: Rows, seed: int, split: str, say: Say) -> list[Prompt]:
    """Prompts of a file, folder, hub id or ready rows; what was left out is said."""
    loaded = loaded_prompts(data, read_rows(rows, seed, split), say)
    if loaded.answers_removed:
        say(f"{loaded.answers_removed} rows ended with an assistant turn, which is not part of the prompt")
    return list(loaded.prompts)


def read_rows(rows: Rows, seed: int, split: str) -> Table:
    return read_table(rows, seed=seed, split=split) if isinstance(rows, str) else table_of(rows)


def loaded_prompts(data: DataConfig, table: Table, say: Say) -> LoadedPrompts:
    task = task_of([row.values for row in table.rows], data.task)
    loaded = load_prompts(table, task=task, template=template_of(data), bad_rows=data.bad_rows)
    if loaded.rows_dropped:
        say(f"{loaded.rows_dropped} unusable rows dropped (--bad_rows drop)")
    return loaded


def task_of(rows: Sequence[Mapping[str, Any]], named: str | None) -> Task | None:
    """The task that judges given rows: the named one; else countdown where any row has its columns, else none."""
    if named == "by_row":
        return ByRow()
    looks_like = any("target" in row and ("nums" in row or "numbers" in row) for row in rows)
    return get_task(named or "countdown") if named or looks_like else None


def reward_names(rewards: Sequence[str | Callable[..., Any]]) -> list[str]:
    """How ``config.json`` shows rewards of which some are given as functions; all distinct."""
    return distinct_names([item if isinstance(item, str) else own_name(item) for item in rewards])


class Rewarded(Protocol):
    """The config of anything that scores completions."""

    @property
    def data(self) -> DataConfig: ...

    @property
    def sampling(self) -> SamplingConfig: ...

    @property
    def reward(self) -> RewardConfig: ...

    @property
    def reward_options(self) -> RewardOptionsConfig: ...


def reward_set(
    config: Rewarded, prompts: Sequence[Prompt], rewards: Sequence[str | Callable[..., Any]] | None = None
) -> RewardSet:
    """The rewards of a config, or given functions and names with the config's weights, for these prompts.

    UserError also when the built-in ``accuracy`` finds nothing to judge by.
    """
    chosen = config.reward
    named = chosen.reward_funcs if rewards is None else rewards
    judge = task_of([prompt.columns for prompt in prompts], config.data.task)
    needing = [name for name in named if isinstance(name, str) and name in REWARDS and REWARDS[name].judges]
    if needing and (judge is None or any(judge.validate_row(prompt.columns) for prompt in prompts)):
        raise UserError(
            f"the reward {needing[0]!r} needs rows whose answers can be checked: nums and target (countdown), or"
            " --task math and answer or solution; name other rewards with --reward_funcs (your own:"
            " --external_plugins my.py --reward_funcs my_name)"
        )
    plugins: dict[str, Callable[..., Any]] = {}
    for path in chosen.external_plugins:
        plugins |= load_plugin(path)
    context = RewardContext(
        task=judge,
        max_completion_length=config.sampling.max_completion_length,
        options=config.reward_options.given(),
        embed=SentenceEmbedder() if "diversity" in named else None,
    )
    workers = chosen.reward_workers if hasattr(os, "fork") else 0
    limits = RewardLimits(workers, chosen.reward_timeout, chosen.max_reward_failures)
    return build_reward_set(named, context=context, weights=chosen.reward_weights, plugins=plugins, limits=limits)


def difficulties(prompts: Sequence[Prompt], named: str | None) -> list[float]:
    """How hard each prompt is: its column ``difficulty``, or what the task says; UserError where neither says it."""
    task = task_of([prompt.columns for prompt in prompts], named)
    found: list[float] = []
    for prompt in prompts:
        own = prompt.columns.get("difficulty")
        if own is None and task is not None:
            own = task.difficulty(prompt.columns)
        if isinstance(own, bool) or not isinstance(own, int | float) or not math.isfinite(own):
            raise UserError(
                f"--curriculum stages: prompt {prompt.id} has no difficulty; give the rows a column of numbers called"
                " difficulty (larger is harder), or use --curriculum solve_rate"
            )
        found.append(float(own))
    return found


def training_texts(
    data: DataConfig, countdown: WorkedCountdownConfig, rows: Rows, seed: int, say: Say
) -> list[tuple[Prompt, str]]:
    """(prompt, completion) pairs for supervised training: worked solutions of the generator, or rows with an answer."""
    if rows != "countdown":
        return answered_rows(data, rows, seed, say)
    drawn = sample_problems(countdown_spec(countdown), "train", countdown.num_puzzles, seed)
    rng = random.Random(f"covey-demonstrations:{seed}")
    kinds = Demonstrations(countdown.guess_share, countdown.unsolvable_share)
    bounds = (countdown.target_range[0], countdown.target_range[1])
    # written for three numbers: of four, the search would leave one out
    shown = [kinds.of(problem, bounds, rng) if len(problem.nums) == 3 else None for problem in drawn]
    solved = [(problem_to_prompt(pair[0], template_of(data)), pair[1]) for pair in shown if pair is not None]
    return said_if_unsolved(solved, len(drawn), say)


@dataclass(frozen=True)
class TextPair:
    """One prompt with a chosen and a rejected answer."""

    prompt: Prompt
    chosen: str
    rejected: str


def wrong_guess(prompt: Prompt, problem: Problem, rng: random.Random) -> str:
    """A guess that is really wrong: one in forty random expressions reaches the target."""
    while get_task("countdown").verify(text := guess(problem, rng), prompt.columns):
        pass
    return text


def said_if_unsolved(solved: list[T], drawn: int, say: Say) -> list[T]:
    """``solved`` itself; says how many puzzles are missing in it, UserError when all are."""
    if not solved:
        raise UserError("no puzzle of this family has a worked solution: it is written for three positive integers")
    if len(solved) < drawn:
        say(f"{drawn - len(solved)} puzzles without a worked solution left out")
    return solved


def preference_pairs(
    data: DataConfig, countdown: TrainCountdownConfig, rows: Rows, seed: int, say: Say
) -> list[TextPair]:
    """Pairs of a source; for generated puzzles a worked solution against a guess."""
    if rows == "countdown":
        rng = random.Random(f"covey-pairs:{seed}")
        drawn = sample_problems(countdown_spec(countdown), "train", countdown.num_puzzles, seed)
        worked = [(p, worked_solution(p.nums, p.target) if len(p.nums) == 3 else None) for p in drawn]
        solved = said_if_unsolved([(p, text) for p, text in worked if text is not None], len(drawn), say)
        made = [(problem_to_prompt(p, template_of(data)), p, text) for p, text in solved]
        return [TextPair(prompt, text, wrong_guess(prompt, p, rng)) for prompt, p, text in made]
    table = read_rows(rows, seed, "train")
    usable, dropped = check_rows(table, pair_problems, data.bad_rows)
    if dropped:
        say(f"{dropped} rows without a pair of answers dropped (--bad_rows drop)")
    # the answers travel as columns, so they stay with their prompt when other rows are dropped
    split = [(row.number, *split_pair(row.values)) for row in usable]
    kept = tuple(Row(number, {**rest, _CHOSEN: yes, _REJECTED: no}) for number, rest, yes, no in split)
    prompts = loaded_prompts(data, Table(table.source, kept), say).prompts
    return [TextPair(prompt, prompt.columns[_CHOSEN], prompt.columns[_REJECTED]) for prompt in prompts]


_CHOSEN, _REJECTED = "covey_chosen", "covey_rejected"
_ANSWER_FIELDS = ("completion", "response", "answer")
_ANSWER = "covey_answer"


def answered_rows(data: DataConfig, rows: Rows, seed: int, say: Say) -> list[tuple[Prompt, str]]:
    """Rows whose message list ends with an assistant turn, or with a prompt and a ``completion`` or ``response``."""
    table = read_rows(rows, seed, "train")
    answers = {row.number: text for row in table.rows if (text := answer_of(row.values)) is not None}
    problems = [row for row in table.rows if row.number not in answers]
    if problems and data.bad_rows == "fail":
        listed = "\n".join(f"  row {row.number}: fields {', '.join(row.values) or 'none'}" for row in problems[:20])
        raise UserError(
            f"{table.source}: {len(problems)} rows have no answer to learn (an assistant turn at the end of messages,"
            f" or {' or '.join(_ANSWER_FIELDS)}); fix them, or drop them with --bad_rows drop:\n{listed}"
        )
    if problems:
        say(f"{len(problems)} rows without an answer to learn dropped (--bad_rows drop)")
    # the answer travels as a column, so it stays with its prompt when other rows are dropped
    kept = tuple(
        Row(row.number, {**row.values, _ANSWER: answers[row.number]}) for row in table.rows if row.number in answers
    )
    prompts = loaded_prompts(data, Table(table.source, kept), say).prompts
    return [(prompt, prompt.columns[_ANSWER]) for prompt in prompts]


def answer_of(row: Mapping[str, Any]) -> str | None:
    """The text a row teaches, or None: its last turn if that is the assistant's, else its first answer field."""
    turns = row.get("messages") or row.get("prompt")
    if isinstance(turns, list) and turns and isinstance(turns[-1], dict) and turns[-1].get("role") == "assistant":
        content = turns[-1].get("content")
        return content if isinstance(content, str) else None
    return next((text for name in _ANSWER_FIELDS if (text := answer_text(row.get(name))) is not None), None)
