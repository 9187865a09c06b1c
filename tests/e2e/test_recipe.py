"""Recipes: stages in order, resumed and skipped, refused before anything runs, and the summary at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Run = Callable[..., Any]
RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
OPTIONS = {
    "dataset": "countdown", "max_completion_length": 8, "torch_dtype": "float32", "learning_rate": 1.0e-2,
    "per_device_train_batch_size": 4,
}  # fmt: skip
SAMPLED = ("max_completion_length",)
SFT = {"stage": "sft", "name": "warm start", "max_steps": 2, "countdown_num_puzzles": 8}
GRPO = {
    "stage": "grpo", "name": "GRPO", "max_steps": 3, "num_generations": 4, "countdown_num_puzzles": 8,
    "reward_funcs": ["digits"],
}  # fmt: skip
EVAL = {"stage": "eval", "eval_num_prompts": 4}


@pytest.fixture
def recipe(tiny: Path, plugin: Path) -> Callable[..., Path]:
    """Write ``my.yaml`` with the given stages; keyword arguments change or add top-level keys."""

    def write(*stages: dict[str, Any], options: dict[str, Any] | None = None, **keys: Any) -> Path:
        shared = {"model": str(tiny), "external_plugins": [str(plugin)], **OPTIONS, **(options or {})}
        if all(stage.get("stage") == "sft" for stage in stages):  # options that nothing reads are refused
            shared = {key: value for key, value in shared.items() if key not in ("external_plugins", *SAMPLED)}
        content = {"output_dir": "out", "options": shared, "stages": list(stages), **keys}
        Path("my.yaml").write_text(yaml.safe_dump({k: v for k, v in content.items() if v is not None}))
        return Path("my.yaml")

    return write


def full(recipe: Run) -> Path:
    return recipe(
        {"stage": "random_baseline", "name": "random expression", "eval_num_prompts": 50},
        SFT,
        {**EVAL, "name": "warm start", "report_as": "before"},
        GRPO,
        {**EVAL, "name": "after GRPO", "report_as": "after", "eval_num_samples": 2},
    )


def test_a_whole_recipe_and_again(covey: Run, recipe: Run, lines_of: Run) -> None:
    path = full(recipe)
    ended = covey("recipe", path)
    assert ended.code == 0, ended.err
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["before"]["n"] == 4 and summary["after"]["n"] == 8
    for side in ("before", "after"):
        assert 0 <= summary[side]["accuracy"] <= 1 and 0 <= summary[side]["format"] <= 1
        low, high = summary[side]["accuracy_interval"]
        assert low <= summary[side]["accuracy"] <= high and len(summary[side]["format_interval"]) == 2
    assert list(summary["seconds"]) == ["1-random_baseline", "2-sft", "3-eval", "4-grpo", "5-eval"]
    assert summary["seconds"]["4-grpo"] > 0 and summary["peak_memory_gb"] > 0.05
    assert [row["name"] for row in summary["rows"]] == ["random expression", "warm start", "after GRPO"]
    assert summary["rows"][0]["format"] == 1.0
    assert summary["model_dir"] == "out/4-grpo/final" and Path(summary["model_dir"], "config.json").is_file()
    assert json.loads(Path("out/4-grpo/config.json").read_text())["model"] == "out/2-sft/final"
    assert len(lines_of("out/4-grpo/metrics.jsonl")) == 3 and len(lines_of("out/5-eval/completions.jsonl")) == 8
    for shown in ("after GRPO", "out/summary.json", "covey chat --model out/4-grpo/final", "covey recipe my.yaml"):
        assert shown in ended.out

    files = {file: file.stat().st_mtime_ns for file in Path("out").rglob("*") if file.is_file()}
    again = covey("recipe", path)
    assert again.code == 0 and again.out.count("already done") == 5 and "after GRPO" in again.out
    assert json.loads(Path("out/summary.json").read_text()) == summary  # peak memory and seconds of the real run
    changed = {file for file, time in files.items() if file.stat().st_mtime_ns != time}
    assert changed <= {Path("out/summary.json")}


def test_ctrl_c_and_again(covey: Run, recipe: Run, lines_of: Run) -> None:
    """The first GRPO try stops in its third rollout; the second goes on after step 2."""
    path = Path("stopping.py")
    path.write_text(
        "import signal\nfrom pathlib import Path\n\nCALLS = []\n\ndef digits(completions):\n    CALLS.append(1)\n"
        "    if len(CALLS) == 3 and not Path('stopped').exists():\n        Path('stopped').touch()\n"
        "        signal.raise_signal(signal.SIGINT)\n    return [float(len(t)) for t in completions]\n"
    )
    file = recipe({**GRPO, "max_steps": 4, "reward_workers": 0}, EVAL, options={"external_plugins": [str(path)]})
    ended = covey("recipe", file, "--seed", 7)
    assert ended.code == 130 and "Traceback" not in ended.err
    assert "covey recipe my.yaml --output_dir out --seed 7" in ended.err
    assert Path("out/1-grpo/checkpoint-2").is_dir() and not Path("out/1-grpo/done.json").exists()
    first_try = json.loads(Path("out/1-grpo/seconds.json").read_text())

    ended = covey("recipe", file, "--seed", 7)
    assert ended.code == 0, ended.err
    assert [record["step"] for record in lines_of("out/1-grpo/metrics.jsonl")] == [1, 2, 3, 4]
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["seconds"]["1-grpo"] > first_try


def test_a_stage_may_name_its_own_model(covey: Run, recipe: Run, tiny: Path, lines_of: Run) -> None:
    """Else rows such as "the raw model" after a training would silently be those of the trained one."""
    file = recipe(EVAL, SFT, {**EVAL, "model": str(tiny)}, EVAL)
    assert covey("recipe", file).code == 0
    raw, named, trained = (
        [row["completion"] for row in lines_of(f"out/{n}-eval/completions.jsonl")] for n in (1, 3, 4)
    )
    assert raw == named and raw != trained


def test_a_stage_may_start_from_an_earlier_training(covey: Run, recipe: Run, lines_of: Run) -> None:
    """A branch: two trainings from one warm start, each evaluated with its own result."""
    more = {**SFT, "name": "more", "start_from": "warm start", "seed": 7}
    file = recipe(SFT, GRPO, more, EVAL, {**EVAL, "start_from": "GRPO"}, {**EVAL, "start_from": "warm start"})
    assert covey("recipe", file).code == 0
    assert json.loads(Path("out/3-sft/config.json").read_text())["model"] == "out/1-sft/final"
    models = [json.loads(Path(f"out/{n}-eval/done.json").read_text())["model"] for n in (4, 5, 6)]
    assert models == ["out/3-sft/final", "out/2-grpo/final", "out/1-sft/final"]


def refused(covey: Run, file: Path, *words: object) -> str:
    """The message of a recipe that must be refused before anything has run."""
    ended = covey("recipe", file, *words)
    assert ended.code == 2, ended.out
    assert not Path("out").exists()
    return str(ended.err)


def test_wrong_recipes_are_refused_before_anything_runs(covey: Run, recipe: Run, no_weights: Path) -> None:
    bare = {"model": str(no_weights)}
    assert "unknown key stagez" in refused(covey, recipe(SFT, options=bare, stagez=[]))
    assert "'sftt'" in refused(covey, recipe({"stage": "sftt"}, options=bare))
    assert "did you mean max_steps" in refused(covey, recipe({**SFT, "max_stepz": 3}, options=bare))
    assert "no stage reads num_generations" in refused(covey, recipe(SFT, EVAL, options={**bare, "num_generations": 4}))
    assert "report_as later" in refused(covey, recipe({**EVAL, "report_as": "later"}, options=bare))
    assert "report_as before" in refused(covey, recipe({**SFT, "report_as": "before"}, options=bare))
    assert "output_dir can not be set" in refused(covey, recipe({**SFT, "output_dir": "x"}, options=bare))
    assert "options must be" in refused(covey, _with(recipe, "options", [1]))
    assert "seed must be a whole number" in refused(covey, recipe(SFT, options=bare, seed="x"))
    assert "needs output_dir and a list of stages" in refused(covey, recipe(SFT, options=bare, output_dir=None))
    assert "has no model" in refused(covey, recipe(SFT, options={"model": ""}))
    assert "no dataset" in refused(covey, recipe(EVAL, options={**bare, "dataset": ""}))
    assert "--warmup_ratio" in refused(covey, recipe({**SFT, "warmup_ratio": 2}, options=bare))
    assert "there are: warm start" in refused(covey, recipe(SFT, {**EVAL, "start_from": "GRPO"}, options=bare))
    both = {**EVAL, "start_from": "warm start", "model": "x"}
    assert "give one of them" in refused(covey, recipe(SFT, both, options=bare))
    missing = Path("missing.yaml")
    assert "cannot be read" in refused(covey, missing)
    Path("broken.yaml").write_text("stages: [")
    assert "not valid YAML" in refused(covey, Path("broken.yaml"))


def _with(recipe: Run, key: str, value: object) -> Path:
    """A recipe file in which one top-level key holds something else."""
    path: Path = recipe(SFT)
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), key: value}))
    return path


def test_a_fault_of_the_last_stage_shows_before_the_first_one_runs(covey: Run, recipe: Run, no_weights: Path) -> None:
    bare = {"model": str(no_weights)}
    uneven = {**GRPO, "per_device_train_batch_size": 6}
    assert "whole groups of 4" in refused(covey, recipe(SFT, uneven, options=bare))
    assert "unknown reward 'digitz'" in refused(covey, recipe(SFT, {**GRPO, "reward_funcs": ["digitz"]}, options=bare))
    other = {"stage": "random_baseline", "dataset": "rows.jsonl"}
    assert "generated puzzles only" in refused(covey, recipe(SFT, other, options=bare))
    assert "rows.jsonl does not exist" in refused(covey, recipe(SFT, {**EVAL, "dataset": "rows.jsonl"}, options=bare))


def test_a_folder_belongs_to_one_recipe_and_seed(covey: Run, recipe: Run) -> None:
    file = recipe(SFT, seed=42)
    assert covey("recipe", file).code == 0
    ended = covey("recipe", file, "--seed", 43)
    assert ended.code == 2 and "another seed" in ended.err
    ended = covey("recipe", recipe({**SFT, "max_steps": 3}, seed=42))
    assert ended.code == 2 and "other settings" in ended.err
    ended = covey("recipe", recipe(SFT, seed=42), "--resume_from_checkpoint", "elsewhere/checkpoint-1")
    assert ended.code == 2 and "continues its own folder" in ended.err
    assert covey("recipe", recipe(SFT, seed=42), "--resume_from_checkpoint", "latest").code == 0


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_shipped_recipe_plans(covey: Run, path: Path) -> None:
    """The configs, rewards, puzzles and batch arithmetic of all stages; nothing is written and no model is read."""
    ended = covey("recipe", path, "--dry_run")
    assert ended.code == 0, ended.err
    assert "optimizer step" in ended.err and not list(Path().iterdir())
    stages = yaml.safe_load(path.read_text())["stages"]
    assert {stage.get("report_as") for stage in stages} >= {"before", "after"}


def test_recipes_are_found() -> None:
    assert RECIPES
