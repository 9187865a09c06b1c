"""Composition root: a config in, a finished run out. The only package that knows every layer."""

from covey.build.bench import run_bench
from covey.build.evaluate import run_eval
from covey.build.grpo import run_grpo
from covey.build.interactive import chat, sample
from covey.build.ppo import run_ppo
from covey.build.preference import run_dpo, run_rm
from covey.build.recipe import run_recipe
from covey.build.sft import run_sft

__all__ = [
    "chat",
    "run_bench",
    "run_dpo",
    "run_eval",
    "run_grpo",
    "run_ppo",
    "run_recipe",
    "run_rm",
    "run_sft",
    "sample",
]
