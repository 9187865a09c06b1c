"""Reading and checking a recipe file: everything that can be wrong with it shows before its first stage runs.

A recipe file holds ``output_dir``, ``options`` (shared by every stage that reads them) and ``stages``. A stage is
``{stage: sft | grpo | ppo | dpo | eval | random_baseline, name: ..., <options>}``. Evaluations and trainings use the
model that the last training stage before them produced; ``start_from`` names another earlier one, ``model`` any model.
``report_as: before`` or ``after`` marks an evaluation for summary.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.build.data import heldout_prompts, preference_pairs, reward_set, training_texts
from covey.build.objects import data_seed, describe_objective, examples_plan, say
from covey.build.policy import read_inputs
from covey.config import DPOConfig, EvalRunConfig, GRPOConfig, PolicyConfig, PPOConfig, SFTConfig
from covey.config.base import Composition, options
from covey.errors import UserError

KINDS: dict[str, type[Composition]] = {
    "sft": SFTConfig,
    "grpo": GRPOConfig,
    "ppo": PPOConfig,
    "dpo": DPOConfig,
    "eval": EvalRunConfig,
    "random_baseline": EvalRunConfig,
}
_STAGE_KEYS = ("stage", "name", "report_as", "start_from")
_SET_HERE = ("output_dir", "resume_from_checkpoint", "dry_run", "json")
"""Options of the commands that the recipe sets itself, or that mean nothing in one."""
_REPORTS = (None, "before", "after")


def trains(kind: str) -> bool:
    """Whether a stage of this kind makes a model."""
    return KINDS[kind] is not EvalRunConfig


@dataclass(frozen=True)
class RecipeStage:
    """One stage: its kind, the name shown to people, its folder, and its resolved config (model not yet chained)."""

    kind: str
    name: str
    folder: Path
    report_as: str | None
    config: Composition
    own_model: bool
    """The stage names its model itself instead of taking a trained one."""
    start_from: int | None
    """Position of the training stage whose model is used; None: the recipe's own model."""

    @property
    def trains(self) -> bool:
        return trains(self.kind)

    @property
    def done_file(self) -> Path:
        return self.folder / "done.json"


def read_yaml(kind: str, path: Path) -> dict[str, Any]:
    """A YAML file with a mapping at its top; UserError naming the file when it is not."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{kind} {path}: not a text file") from error
    except OSError as error:
        raise UserError(f"{kind} {path}: cannot be read ({error.strerror or error})") from error
    except yaml.YAMLError as error:
        raise UserError(f"{kind} {path}: not valid YAML ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f"{kind} {path}: must hold option: value lines, found {type(content).__name__}")
    return content


def read_recipe(path: Path) -> dict[str, Any]:
    """The recipe file; UserError when it is missing or not of the form above."""
    content = read_yaml("recipe", path)
    if not content.get("stages") or not content.get("output_dir"):
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
    stages: list[RecipeStage] = []
    for number, entry in enumerate(recipe["stages"], start=1):
        kind = entry.get("stage") if isinstance(entry, dict) else None
        if kind not in KINDS:
            raise UserError(f"recipe {path}: stage {number} is {kind!r}; choose from {', '.join(KINDS)}")
        try:
            source = _source(entry, stages)
            stages.append(_plan_stage(entry, shared, output_dir / f"{number}-{kind}", seed, source))
        except UserError as error:
            raise UserError(f"recipe {path}, stage {number} ({kind}): {error}") from error
    unread = {key for key in shared if not any(key in options(KINDS[stage.kind]) for stage in stages)}
    if unread:
        raise UserError(f"recipe {path}: no stage reads {', '.join(sorted(unread))}")
    for stage in stages:
        if stage.kind != "random_baseline" and stage.start_from is None and not stage.config.to_dict()["model"]:
            raise UserError(f"recipe {path}: stage {stage.name} has no model; add model to options")
    return stages


def _source(entry: Mapping[str, Any], earlier: list[RecipeStage]) -> int | None:
    """Position of the training stage an entry starts from: the one it names, else the last one before it."""
    trained = [(number, stage.name) for number, stage in enumerate(earlier) if stage.trains]
    wanted = entry.get("start_from")
    if wanted is None:
        return trained[-1][0] if trained else None
    found = [number for number, name in trained if name == wanted]
    if len(found) != 1:
        names = ", ".join(name for _, name in trained) or "none"
        raise UserError(f"start_from {wanted!r} must name one training stage before it; there are: {names}")
    return found[0]


def _plan_stage(
    entry: Mapping[str, Any], shared: Mapping[str, Any], folder: Path, seed: int, source: int | None
) -> RecipeStage:
    kind: str = entry["stage"]
    known = options(KINDS[kind])
    own = {key: value for key, value in entry.items() if key not in _STAGE_KEYS}
    if refused := [key for key in (*shared, *own) if key in _SET_HERE]:
        raise UserError(f"{refused[0]} can not be set in a recipe")
    report_as = entry.get("report_as")
    if report_as not in _REPORTS or (report_as and trains(kind)):
        raise UserError(f"report_as {report_as}: must be before or after, on an evaluation")
    values = {key: value for key, value in shared.items() if key in known} | {"seed": seed} | own
    config = KINDS[kind].from_dict({**values, "output_dir": str(folder)})
    if not config.to_dict()["dataset"]:
        raise UserError("no dataset; add dataset to options, for example: dataset: countdown")
    if "model" in own and "start_from" in entry:
        raise UserError("model and start_from both say where the stage starts: give one of them")
    return RecipeStage(kind, str(entry.get("name", kind)), folder, report_as, config, "model" in own, source)


def check_stage(path: str, stage: RecipeStage) -> list[str]:
    """Read and check everything a stage needs but its model, so that a fault in the last stage shows before the first
    one runs; the lines of its batch arithmetic."""
    config = stage.config
    try:
        if isinstance(config, PolicyConfig):
            plan = read_inputs(config, None, None, None).plan
            return [*plan.describe(), *describe_objective(config, plan)]
        if isinstance(config, DPOConfig):
            seed = data_seed(config.data, config.run)
            found = preference_pairs(config.data, config.countdown, config.data.dataset, seed, say)
            return examples_plan(config.batch, config.run, len(found)).describe("pair")
        if isinstance(config, SFTConfig):
            seed = data_seed(config.data, config.run)
            pairs = training_texts(config.data, config.countdown, config.data.dataset, seed, say)
            return examples_plan(config.batch, config.run, len(pairs)).describe("example")
        assert isinstance(config, EvalRunConfig)
        if stage.kind == "random_baseline" and config.data.dataset != "countdown":
            raise UserError("a random expression answers generated puzzles only: dataset must be countdown")
        count, rows = config.eval.eval_num_prompts, config.data.dataset
        prompts = heldout_prompts(config.data, config.countdown, rows, count, config.eval.seed, say)
        reward_set(config, prompts)
    except UserError as error:
        raise UserError(f"recipe {path}, stage {stage.name} ({stage.kind}): {error}") from error
    return [f"{len(prompts)} prompts x {config.eval.eval_num_samples}"]
