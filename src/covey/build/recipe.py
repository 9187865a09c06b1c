"""``covey recipe FILE``: run the stages of a recipe in order, each resumed or skipped when the recipe is run again."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey.build.baseline import evaluate_random_expressions
from covey.build.evaluate import eval_model, print_table
from covey.build.objects import say
from covey.build.recipe_plan import KINDS, RecipeStage, check_stage, plan_stages, read_recipe
from covey.build.trainings import TRAINERS
from covey.config import EvalRunConfig, RecipeOptions
from covey.config.base import Composition
from covey.errors import UserError
from covey.runlog.display import Display, make_display
from covey.runlog.jsonl import write_atomic
from covey.runlog.memory import peak_rss_gb
from covey.runlog.table import EvalRow
from covey.trainers.checkpoint import steps_saved
from covey.trainers.stop import StopSignal


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
    for stage in stages:
        if stage.done_file.exists():
            result = json.loads(stage.done_file.read_text())
            display.message(f"{stage.name} ({stage.kind}): already done")
        else:
            model = None if stage.start_from is None else results[stage.start_from]["model_dir"]
            result = run_stage(stage, model, display)
            write_atomic(stage.done_file, json.dumps(result, indent=2) + "\n")
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
    outcome = TRAINERS[KINDS[stage.kind]](KINDS[stage.kind].from_dict(values), display=display, name=stage.name)
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
    return {"model": config.model.model, "report_as": stage.report_as, "result": result.to_dict()}


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
    # a branch that only trains longer by imitation is there for comparison: the result is what the others made
    results_of_job = [pair for pair in trained if pair[0].kind != "sft"] or trained
    if results_of_job:
        summary["model_dir"] = results_of_job[-1][1]["model_dir"]
    write_atomic(output_dir / "summary.json", json.dumps(summary, indent=2) + "\n")
    print_table([_row(r["name"], r["result"]) for r in evaluated])
    print(f"run folder     {output_dir}")
    print(f"summary        {output_dir / 'summary.json'}")
    for stage, result in trained:
        print(f"{stage.name:<14} {result['seconds']:.0f} s, {result['steps']} steps, model in {result['model_dir']}")
    if results_of_job:
        last, result = results_of_job[-1]
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
