"""The floor of the table: a well-formed answer with a random expression."""

from __future__ import annotations

import random
from pathlib import Path

from covey.build.data import heldout_problems, reward_set, template_of
from covey.config import EvalRunConfig
from covey.evals.accuracy import EvalResult, summarize
from covey.runlog.writer import write_rollouts
from covey.tasks.countdown import problem_to_prompt
from covey.tasks.countdown_trace import guess
from covey.types import Completion, Group


def evaluate_random_expressions(config: EvalRunConfig) -> EvalResult:
    """Score one random expression per held-out puzzle of the config, on the same puzzles as an evaluation."""
    rng = random.Random(f"covey-random-expression:{config.eval.seed}")
    problems = heldout_problems(config.countdown, "heldout", config.eval.eval_num_prompts, config.eval.seed)
    prompts = [problem_to_prompt(problem, template_of(config.data)) for problem in problems]
    texts = [guess(problem, rng) for problem in problems]
    completions = [Completion((), (), text, "stop") for text in texts]
    with reward_set(config, prompts) as rewards:
        scored = rewards.score(prompts, completions).scored
    if config.eval.output_dir is not None:
        folder = Path(config.eval.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        groups = [Group(prompt, (item,)) for prompt, item in zip(prompts, scored, strict=True)]
        write_rollouts(folder / "completions.jsonl", 0, groups)
    return summarize(scored)
