"""``covey recipe FILE``: stages of a job in order, each resumed or skipped when the recipe is run again.

A recipe file holds ``output_dir``, ``options`` (shared by every stage that reads them) and ``stages``. A stage is
``{stage: sft | grpo | eval | random_baseline, name: ..., <options>}``. Evaluations and trainings use the model that the
last training stage before them produced, unless they name a ``model`` themselves. ``report_as: before`` or ``after``
marks an evaluation for summary.json.
"""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.build.baseline import evaluate_random_expressions
from covey.build.data import heldout_prompts, reward_set, training_texts
from covey.build.evaluate import eval_model, print_table
from covey.build.grpo import read_inputs, run_grpo
from covey.build.objects import say
from covey.build.sft import run_sft, sft_plan
from covey.config import EvalRunConfig, GRPOConfig, RecipeOptions, SFTConfig
from covey.config.base import Composition, options
from covey.errors import UserError
from covey.runlog.display import Display, make_display
from covey.runlog.jsonl import write_atomic
from covey.runlog.memory import peak_rss_gb
from covey.runlog.table import EvalRow
from covey.trainers.checkpoint import steps_saved
from covey.trainers.stop import StopSignal

KINDS: dict[str, type[Composition]] = {
    "sft": SFTConfig,
    "grpo": GRPOConfig,
    "eval": EvalRunConfig,
    "random_baseline": EvalRunConfig,
}
_STAGE_KEYS = ("stage", "name", "report_as")
_SET_HERE = ("output_dir", "resume_from_checkpoint", "dry_run", "json")
"""Options of the commands that the recipe sets itself, or that mean nothing in one."""
_REPORTS = (None, "before", "after")


@dataclass(frozen=True)
class RecipeStage:
    """One stage: its kind, the name shown to people, its folder, and its resolved config (model not yet chained)."""

    kind: str
    name: str
    folder: Path
    report_as: str | None
    config: Composition
    own_model: bool
    """The stage names its model itself instead of taking the one trained last."""

    @property
    def trains(self) -> bool:
        return self.kind in ("sft", "grpo")

    @property
    def done_file(self) -> Path:
        return self.folder / "done.json"


def run_recipe(path: str, overrides: RecipeOptions) -> None:
    """Run every unfinished stage; ends with the table, the paths and the next commands, and ``summary.json``."""
    if overrides.resume_from_checkpoint not in (None, "latest"):
        raise UserError("covey recipe always continues its own folder; a stage can not be given another checkpoint")
    recipe = read_recipe(Path(path))
    output_dir = Path(overrides.output_dir or recipe["output_dir"])
    seed: int = recipe.get("seed", 42) if overrides.seed is None else overrides.seed
    stages = plan_stages(path, recipe, output_dir, seed)
    for stage in stages:
        if overrides.dry_run:
            say(f"{stage.kind}: {stage.name} -> {stage.folder}")
        lines = [] if stage.done_file.exists() else check_stage(path, stage)
        if overrides.dry_run:
            say("\n".join(f"  {line}" for line in lines))
    if overrides.dry_run:
        return
    claim_folder(output_dir, path, recipe, seed)
    try:
        with make_display() as display:
            results = run_stages(stages, display)
    except KeyboardInterrupt:
        say(f"stopped; continue with: covey recipe {path} --output_dir {output_dir} --seed {seed}")
        raise
    finish(path, output_dir, stages, results)


def read_recipe(path: Path) -> dict[str, Any]:
    """The recipe file; UserError when it is missing or not of the form above."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"recipe {path}: not a text file") from error
    except OSError as error:
        raise UserError(f"recipe {path}: cannot be read ({error.strerror or error})") from error
    except yaml.YAMLError as error:
        raise UserError(f"recipe {path}: not valid YAML ({error})") from error
    if not isinstance(content, dict) or not content.get("stages") or not content.get("output_dir"):
        raise UserError(f"recipe {path}: needs output_dir and a list of stages")
    forms = {"output_dir": (str, "a folder"), "seed": (int, "a whole number")}
    forms |= {"options": (dict, "lines of option: value"), "stages": (list, "a list")}
    for key, value in content.items():
        if key not in forms:
            raise UserError(f"recipe {path}: unknown key {key}; known: {', '.join(forms)}")
        kind, meaning = forms[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise UserError(f"recipe {path}: {key} must be {meaning}, found {value!r}")
    return content


def plan_stages(path: str, recipe: Mapping[str, Any], output_dir: Path, seed: int) -> list[RecipeStage]:
    """Every stage with its config, all checked before the first one runs."""
    shared: dict[str, Any] = recipe.get("options", {})
    stages = []
    for number, entry in enumerate(recipe["stages"], start=1):
        kind = entry.get("stage") if isinstance(entry, dict) else None
        if kind not in KINDS:
            raise UserError(f"recipe {path}: stage {number} is {kind!r}; choose from {', '.join(KINDS)}")
        try:
            stages.append(_plan_stage(entry, shared, output_dir / f"{number}-{kind}", seed))
        except UserError as error:
            raise UserError(f"recipe {path}, stage {number} ({kind}): {error}") from error
    unread = {key for key in shared if not any(key in options(KINDS[stage.kind]) for stage in stages)}
    if unread:
        raise UserError(f"recipe {path}: no stage reads {', '.join(sorted(unread))}")
    trained = False
    for stage in stages:
        if stage.kind != "random_baseline" and not trained and not stage.config.to_dict()["model"]:
            raise UserError(f"recipe {path}: stage {stage.name} has no model; add model to options")
        trained |= stage.trains
    return stages


def _plan_stage(entry: Mapping[str, Any], shared: Mapping[str, Any], folder: Path, seed: int) -> RecipeStage:
    kind: str = entry["stage"]
    known = options(KINDS[kind])
    own = {key: value for key, value in entry.items() if key not in _STAGE_KEYS}
    if refused := [key for key in (*shared, *own) if key in _SET_HERE]:
        raise UserError(f"{refused[0]} can not be set in a recipe")
    report_as = entry.get("report_as")
    if report_as not in _REPORTS or (report_as and kind in ("sft", "grpo")):
        raise UserError(f"report_as {report_as}: must be before or after, on an evaluation")
    values = {key: value for key, value in shared.items() if key in known} | {"seed": seed} | own
    config = KINDS[kind].from_dict({**values, "output_dir": str(folder)})
    if not config.to_dict()["dataset"]:
        raise UserError("no dataset; add dataset to options, for example: dataset: countdown")
    return RecipeStage(kind, str(entry.get("name", kind)), folder, report_as, config, "model" in own)


def check_stage(path: str, stage: RecipeStage) -> list[str]:
    """Read and check everything a stage needs but its model, so that a fault in the last stage shows before the first
    one runs; the lines of its batch arithmetic."""
    config = stage.config
    try:
        if isinstance(config, GRPOConfig):
            return read_inputs(config, None, None, None).plan.describe()
        if isinstance(config, SFTConfig):
            seed = config.run.seed if config.data.data_seed is None else config.data.data_seed
            pairs = training_texts(config.data, config.countdown, config.data.dataset, seed, say)
            return sft_plan(config, len(pairs)).describe()
        assert isinstance(config, EvalRunConfig)
        if stage.kind == "random_baseline" and config.data.dataset != "countdown":
            raise UserError("a random expression answers generated puzzles only: dataset must be countdown")
        count, rows = config.eval.eval_num_prompts, config.data.dataset
        prompts = heldout_prompts(config.data, config.countdown, rows, count, config.eval.seed, say)
        reward_set(config.reward, prompts)
    except UserError as error:
        raise UserError(f"recipe {path}, stage {stage.name} ({stage.kind}): {error}") from error
    return [f"{len(prompts)} prompts x {config.eval.eval_num_samples}"]


def claim_folder(output_dir: Path, path: str, recipe: Mapping[str, Any], seed: int) -> None:
    """Make the folder this recipe's own; UserError when it holds the run of another recipe or seed."""
    mine = {**recipe, "recipe": path, "seed": seed}
    record = output_dir / "recipe.json"
    if record.exists():
        theirs = json.loads(record.read_text())
        if {**theirs, "recipe": path} != json.loads(json.dumps(mine)):
            raise UserError(
                f"{output_dir} holds a run of {theirs.get('recipe')} with other settings or another seed; give another"
                " --output_dir, or delete the folder to start anew"
            )
        return
    if output_dir.is_dir() and any(output_dir.iterdir()):
        raise UserError(f"{output_dir} holds other files; give a recipe an --output_dir of its own")
    output_dir.mkdir(parents=True, exist_ok=True)
    write_atomic(record, json.dumps(mine, indent=2) + "\n")


def run_stages(stages: list[RecipeStage], display: Display) -> list[dict[str, Any]]:
    """Run or skip the stages in order; one result per stage."""
    results: list[dict[str, Any]] = []
    model: str | None = None
    for stage in stages:
        if stage.done_file.exists():
            result = json.loads(stage.done_file.read_text())
            display.message(f"{stage.name} ({stage.kind}): already done")
        else:
            result = run_stage(stage, model, display)
            write_atomic(stage.done_file, json.dumps(result, indent=2) + "\n")
        model = result.get("model_dir", model)
        results.append(result)
    return results


def run_stage(stage: RecipeStage, model: str | None, display: Display) -> dict[str, Any]:
    """Run one stage, continuing from its newest checkpoint if it has one; ``seconds`` counts all its tries."""
    values = stage.config.to_dict() | ({} if model is None or stage.own_model else {"model": model})
    clock = stage.folder / "seconds.json"
    before = json.loads(clock.read_text()) if clock.exists() else 0.0
    if stage.trains and steps_saved(stage.folder):
        values["resume_from_checkpoint"] = "latest"
    elif stage.folder.exists():
        shutil.rmtree(stage.folder)  # stopped before its first checkpoint: nothing to continue from
    stage.folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    try:
        result = _train(stage, values, display) if stage.trains else _evaluate(stage, values, display)
    finally:
        seconds = before + time.perf_counter() - began
        write_atomic(clock, json.dumps(seconds))
    measured = {"seconds": seconds, "peak_memory_gb": peak_rss_gb()}
    return {"kind": stage.kind, "name": stage.name, **measured, **result}


def _train(stage: RecipeStage, values: Mapping[str, Any], display: Display) -> dict[str, Any]:
    if stage.kind == "sft":
        outcome = run_sft(SFTConfig.from_dict(values), display=display, name=stage.name)
    else:
        outcome = run_grpo(GRPOConfig.from_dict(values), display=display, name=stage.name)
    if outcome is None:
        raise UserError(f"stage {stage.name}: dry_run belongs on the command line, not in a recipe")
    return {"model_dir": str(outcome.model_dir), "steps": outcome.steps}


def _evaluate(stage: RecipeStage, values: Mapping[str, Any], display: Display) -> dict[str, Any]:
    config = EvalRunConfig.from_dict(values)
    if stage.kind == "random_baseline":
        result = evaluate_random_expressions(config)
    else:
        with StopSignal() as stop:
            result = eval_model(config, display=display, stop=stop, name=stage.name).result
    return {"report_as": stage.report_as, "result": result.to_dict()}


def finish(path: str, output_dir: Path, stages: list[RecipeStage], results: list[dict[str, Any]]) -> None:
    """Write summary.json; print the table, where everything is, and what to type next."""
    evaluated = [r for r in results if "result" in r]
    trained = [(s, r) for s, r in zip(stages, results, strict=True) if "model_dir" in r]
    summary: dict[str, Any] = {
        "recipe": path,
        **{str(r["report_as"]): r["result"] for r in evaluated if r["report_as"] is not None},
        "rows": [{"name": r["name"], **r["result"]} for r in evaluated],
        "seconds": {f"{i}-{r['kind']}": r["seconds"] for i, r in enumerate(results, start=1)},
        "peak_memory_gb": max(r["peak_memory_gb"] for r in results),
    }
    if trained:
        summary["model_dir"] = trained[-1][1]["model_dir"]
    write_atomic(output_dir / "summary.json", json.dumps(summary, indent=2) + "\n")
    print_table([_row(r["name"], r["result"]) for r in evaluated])
    print(f"run folder     {output_dir}")
    print(f"summary        {output_dir / 'summary.json'}")
    for stage, result in trained:
        print(f"{stage.name:<14} {result['seconds']:.0f} s, {result['steps']} steps, model in {result['model_dir']}")
    if trained:
        last, result = trained[-1]
        print(f"chat with it   covey chat --model {result['model_dir']}{_system_flag(last.config)}")
        print(f"run it again   covey recipe {path} --output_dir ANOTHER_FOLDER --seed 43")


def _system_flag(config: Composition) -> str:
    system = config.to_dict().get("system")
    return "" if system is None else f" --system {shlex.quote(system)}"


def _row(name: str, result: Mapping[str, Any]) -> EvalRow:
    interval = result["accuracy_interval"]
    return EvalRow(
        name,
        result["accuracy"],
        None if interval is None else (interval[0], interval[1]),
        result["format"],
        result["accuracy_when_formatted"],
        result["mean_length"],
        result["n"],
    )
