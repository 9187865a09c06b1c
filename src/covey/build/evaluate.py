"""``covey eval``: accuracy and format rate of a model on held-out prompts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from covey.build.data import heldout_prompts, reward_set
from covey.build.objects import check_context, device_of, dtype_of, engine_of, sampling_of, say
from covey.config import EvalRunConfig
from covey.evals.accuracy import EvalResult, evaluate
from covey.models.load import load_model, load_tokenizer
from covey.models.tokenizer import tokenize_prompts
from covey.runlog.display import Display, PlainDisplay, make_display
from covey.runlog.table import EvalRow, before_after_table
from covey.runlog.writer import prompt_text, write_rollouts
from covey.trainers.stop import StopSignal


@dataclass(frozen=True)
class Evaluated:
    """A result and how long it took, model loading included."""

    result: EvalResult
    seconds: float


def run_eval(config: EvalRunConfig) -> EvalResult:
    """The ``covey eval`` command: a table, or one json line with ``--json true``."""
    # with --json, standard output holds that one line and nothing else
    with StopSignal() as stop, PlainDisplay(sys.stderr) if config.eval.json else make_display() as display:
        evaluated = eval_model(config, display=display, stop=stop, name="evaluation")
    result = evaluated.result
    if config.eval.json:
        print(json.dumps({"model": config.model.model, **result.to_dict(), "seconds": evaluated.seconds}))
    else:
        print_table([row_of(config.model.model, result)])
    return result


def eval_model(
    config: EvalRunConfig,
    *,
    display: Display,
    stop: StopSignal,
    name: str,
) -> Evaluated:
    """Evaluate; completions go to ``<output_dir>/completions.jsonl`` when the config names a folder."""
    began = time.perf_counter()
    count = config.eval.eval_num_prompts
    prompts = heldout_prompts(config.data, config.countdown, config.data.dataset, count, config.eval.seed, say)
    score = reward_set(config, prompts)
    tokenizer = load_tokenizer(config.model.model)
    limit = config.data.max_length
    prompts, dropped = tokenize_prompts(tokenizer, prompts, limit, config.data.truncation_strategy)
    if dropped:
        say(f"{dropped} prompts longer than --max_length {limit} dropped, {len(prompts)} left")
    longest = max(len(prompt.token_ids) for prompt in prompts)
    check_context(config.model.model, longest, config.sampling.max_completion_length)
    display.start_stage(name, 0)
    loaded = load_model(config.model.model, device_of(config.model.device), dtype_of(config.model))

    def progress(done: int, total: int) -> None:
        stop.check()
        display.progress(f"{done}/{total} completions")

    score.check = stop.check
    with score:
        result, groups = evaluate(
            engine_of(loaded),
            prompts,
            config.eval.eval_num_samples,
            sampling_of(config.sampling),
            score.score,
            seed=(config.eval.seed, -2),
            progress=progress,
        )
    shown = groups[0].members[0]
    display.sample(prompt_text(groups[0].prompt), shown.completion.text, shown.rewards, shown.total)
    if config.eval.output_dir is not None:
        folder = Path(config.eval.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_rollouts(folder / "completions.jsonl", 0, groups)
    return Evaluated(result, time.perf_counter() - began)


def row_of(name: str, result: EvalResult) -> EvalRow:
    return EvalRow(
        name,
        result.accuracy,
        result.accuracy_interval,
        result.format,
        result.accuracy_when_formatted,
        result.mean_length,
        result.n,
    )


def print_table(rows: Sequence[EvalRow]) -> None:
    from rich.console import Console

    Console().print(before_after_table(rows))
