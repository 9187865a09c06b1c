"""Rewards from a user's own Python file or an importable dotted path."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from covey.errors import UserError
from covey.rewards.functions import GroupReward
from covey.rewards.swift_names import swift_names

orms: dict[str, Callable[..., Any]] = {}
"""Plugin files written for ms-swift register here: ``orms["my_reward"] = MyClass``."""


class ORM:
    """Base class that ms-swift plugin files expect; rewards need not use it."""

    def __init__(self, args: object = None, **kwargs: Any) -> None:
        self.args = args

    def __call__(self, completions: list[str], **columns: list[Any]) -> list[float | None]:
        """One score (or None) per completion text; every data column arrives as a row-aligned list."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(self, completions, **columns)")


class AsyncORM(ORM):
    """The same for a reward whose ``__call__`` is a coroutine."""

    async def __call__(self, completions: list[str], **columns: list[Any]) -> list[float | None]:  # type: ignore[override]
        raise NotImplementedError(f"{type(self).__name__} must define async __call__(self, completions, **columns)")


def load_plugin(path: str | Path) -> dict[str, Callable[..., Any]]:
    """Import a Python file and return its rewards by name.

    These are its public functions and callable objects, and what it puts into ``orms`` (its own dict of that name, or
    the one of this module). The file's folder is importable while it loads. UserError when the file is missing or
    raises.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"plugin file {path} does not exist.")
    earlier = dict(orms)
    orms.clear()  # so that what is in it afterwards is this file's
    try:
        module = _execute(file)
        registered = vars(module).get("orms", orms)
        if not isinstance(registered, dict):
            raise UserError(f"plugin file {path}: orms must be a dict of name to reward.")
        registered = dict(registered)
    finally:
        mine = dict(orms)
        orms.update(earlier | mine)
    own = {name: value for name, value in vars(module).items() if _is_reward(name, value, module)}
    return own | registered


def import_dotted(dotted: str) -> Callable[..., Any]:
    """Import ``package.module.function`` (from the current folder too); UserError says which part is missing."""
    module_name, _, attribute = dotted.rpartition(".")
    with _importable(Path.cwd()):
        try:
            module = importlib.import_module(module_name)
        except Exception as exc:
            raise UserError(f"reward {dotted!r}: importing {module_name!r} failed:\n{_details(exc)}") from exc
    if attribute not in vars(module):
        public = [name for name, value in vars(module).items() if _is_reward(name, value, module)]
        raise unknown_reward(attribute, public, where=f" in module {module_name}")
    return cast(Callable[..., Any], vars(module)[attribute])


def unknown_reward(name: str, known: Iterable[str], where: str = "") -> UserError:
    """The error for a name that is not known, with the nearest and all known names."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UserError(
        f"unknown reward {name!r}{where}.{hint} Known: {', '.join(names) or 'none'}. "
        "Your own reward: a Python file given with --external_plugins, or a dotted path package.module.function."
    )


def _execute(file: Path) -> ModuleType:
    name = f"covey_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"plugin file {file} is not a Python file (its name must end in .py).")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up by name
    names = {"ORM": ORM, "AsyncORM": AsyncORM, "orms": orms, "rm_plugins": {}}
    with _importable(file.resolve().parent), swift_names(names):
        try:
            spec.loader.exec_module(module)
        except Exception as exc:
            del sys.modules[name]
            raise UserError(f"plugin file {file} could not be loaded:\n{_details(exc)}") from exc
    return module


def _is_reward(name: str, value: object, module: ModuleType) -> bool:
    if name.startswith("_") or isinstance(value, type) or not callable(value):
        return False
    # Only what the file defines: an imported helper such as math.sqrt is not one of its rewards.
    return isinstance(value, (functools.partial, GroupReward)) or getattr(value, "__module__", None) == module.__name__


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _details(exc: Exception) -> str:
    return "".join(traceback.format_exception(exc)).rstrip()
