"""The names that an ms-swift plugin file imports, for machines without ms-swift: such a file runs unchanged.

``from swift.rewards import ORM, AsyncORM, orms`` (version 4; 3: ``swift.plugin``) and ``swift.utils.get_logger`` work
while a plugin file is loaded; every other name of ms-swift is an ImportError that says what there is.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _Swift(ModuleType):
    """A module that says what it lacks."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        offered = ", ".join(key for key in vars(self) if not key.startswith("_"))
        raise ImportError(
            f"{self.__name__}.{name}: ms-swift is not installed, and Covey stands in for its reward plugins only"
            f" ({self.__name__} has: {offered or 'nothing'}). Remove the import, or install ms-swift."
        )


def _installed() -> bool:
    """Whether ms-swift is here, and not something else of that name."""
    for name in ("swift.rewards", "swift.plugin"):
        try:
            if importlib.util.find_spec(name) is not None:
                return True
        except ImportError:
            continue
    return False


@contextmanager
def swift_names(rewards: Mapping[str, Any]) -> Iterator[None]:
    """Make ``swift`` importable with ``rewards`` as what ``swift.rewards`` and ``swift.plugin`` hold.

    Does nothing where ms-swift is installed.
    """
    if _installed():
        yield
        return
    contents: dict[str, dict[str, Any]] = {
        "swift": {},
        "swift.rewards": dict(rewards),
        "swift.plugin": dict(rewards),
        "swift.plugin.orm": dict(rewards),
        "swift.utils": {"get_logger": lambda: logging.getLogger("covey.plugin")},
        "swift.llm": {},
    }
    modules = {name: _Swift(name) for name in contents}
    for name, module in modules.items():
        module.__path__ = []  # a package, so that an unknown submodule is looked for and not found
        vars(module).update(contents[name])
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
