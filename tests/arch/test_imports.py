"""Who may import whom (DESIGN section 3, ARCHITECTURE.md). A new arrow is a decision: it is a diff of this table.

A *unit* is a module or package directly under covey. Imports inside functions and under TYPE_CHECKING count too: the
layers are about what code knows of, not about when it is loaded.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
MODULES = {
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((SRC / "covey").rglob("*.py"))
}

EVERYTHING = "everything"
# "tasks" allows the whole package, "tasks.base" that module only; `errors` and the unit itself are always allowed.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "types": set(),
    "options": set(),
    "tensors": {"types"},
    "tasks": {"types"},
    "control": {"types"},
    "runlog": {"types"},
    "report": {"types"},
    "plan": {"types"},
    "rewards": {"types", "options", "tasks.base"},
    "models": {"types", "tensors"},
    "rollout": {"types", "models"},
    "algo": {"tensors", "options"},
    "backends": {"tensors", "models"},
    "evals": {"types", "tasks", "rollout.base"},
    "trainers": {"types", "tensors", "algo", "control", "runlog", "rollout.base", "backends.base"},
    "config": {"types", "plan", "algo", "rewards", "control"},  # tables and names, which load without torch
    "build": {EVERYTHING},
    "cli": {"config", "build", "report"},
    "__main__": {"cli"},
    "api": {"config", "build"},  # the Python API; kept lazy by the test at the end
    "": {"api"},  # covey/__init__.py
}
# Single modules that may do more than their unit, each with its reason.
EXCEPTIONS: dict[str, set[str]] = {
    "cli.main": {"rewards", "models"},  # `covey score` and `covey models fetch` must not wait for torch
    "rewards.check": {"tasks"},  # `covey check-reward`: likewise
    "rewards.score_file": {"tasks"},  # the `covey score` command: a leaf that reads rows and names a task
}
# Not even `build`, which may import everything else, knows these.
ONLY_FROM = {"cli": {"cli", "__main__"}, "trainers": {"trainers", "build"}, "build": {"build", "cli", "api"}}

TORCH_FREE = ("errors", "types", "tasks", "rewards", "control", "runlog", "report", "plan", "config", "cli", "api", "")
HEAVY = ("torch", "transformers", "datasets", "safetensors", "vllm", "deepspeed", "megatron", "wandb", "tensorboard")


def short(module: str) -> str:
    return module.removeprefix("covey").removeprefix(".")


def unit_of(module: str) -> str:
    return short(module).split(".")[0]


def imports_of(module: str) -> list[tuple[int, str]]:
    """(line, module of ours) for each import of a module of ours, anywhere in the file."""
    path = MODULES[module]
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
                parent = package[: len(package) - node.level + 1]
                base = ".".join([*parent, *([node.module] if node.module else [])])
            # `from covey.tasks import base` is the module covey.tasks.base; any other name belongs to covey.tasks.
            names = [f"{base}.{alias.name}" for alias in node.names]
            found += [(node.lineno, name if name in MODULES else base) for name in names]
    return [(line, name) for line, name in found if name == "covey" or name.startswith("covey.")]


def is_allowed(importer: str, target: str) -> bool:
    unit, other = unit_of(importer), unit_of(target)
    if other in ("errors", unit) or target == "covey":  # covey itself: __version__
        return True
    if unit not in ONLY_FROM.get(other, {unit}):
        return False
    allowed = ALLOWED[unit] | EXCEPTIONS.get(short(importer), set())
    return EVERYTHING in allowed or other in allowed or short(target) in allowed


def test_every_unit_is_in_the_table() -> None:
    missing = {unit_of(module) for module in MODULES} - set(ALLOWED)
    assert not missing, f"say in ALLOWED what these may import: {sorted(missing)}"


@pytest.mark.parametrize("module", [m for m in MODULES if unit_of(m) in ALLOWED])
def test_imports_follow_the_table(module: str) -> None:
    wrong = [
        f"{MODULES[module].relative_to(SRC)}:{line} imports {target}"
        for line, target in imports_of(module)
        if not is_allowed(module, target)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_table_can_fail() -> None:
    assert is_allowed("covey.rewards.format", "covey.tasks.base")
    assert not is_allowed("covey.rewards.format", "covey.tasks.countdown")
    assert not is_allowed("covey.backends.local", "covey.algo.kl")
    assert not is_allowed("covey.trainers.grpo", "covey.rollout.torch_engine")
    assert not is_allowed("covey.evals.run", "covey.trainers.grpo")
    assert is_allowed("covey.build", "covey.trainers.grpo")
    assert not is_allowed("covey.build", "covey.cli.main")
    assert not is_allowed("covey.types", "covey.tensors")


def test_exceptions_are_still_needed() -> None:
    for name, extra in EXCEPTIONS.items():
        targets = {unit_of(target) for _, target in imports_of(f"covey.{name}")}
        assert extra <= targets, f"{name} no longer imports {sorted(extra - targets)}: remove the exception"


def test_light_modules_load_without_the_heavy_packages() -> None:
    """``covey --help``, a reward or a report must not wait for torch."""
    light = [module for module in MODULES if unit_of(module) in TORCH_FREE]
    code = (
        "import importlib, sys\n"
        f"for name in {light!r}:\n"
        "    importlib.import_module(name)\n"
        f"    loaded = [heavy for heavy in {HEAVY!r} if heavy in sys.modules]\n"
        "    if loaded: sys.exit(f'importing {name} loads {loaded}')\n"
    )
    # The source folder first: the files of this checkout, however covey is installed.
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SRC)!r})\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr[-2000:]
