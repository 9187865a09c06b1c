"""Composition root: a config in, a finished run out. The only package that knows every layer."""

from covey.build.bench import run_bench
from covey.build.evaluate import run_eval
from covey.build.interactive import chat, sample
from covey.build.recipe import run_recipe
from covey.build.trainings import TRAINERS

__all__ = ["TRAINERS", "chat", "run_bench", "run_eval", "run_recipe", "sample"]
