"""Sizes and habits that keep the code readable, and what no file of the repository may hold."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "covey"
SOURCES = sorted(PACKAGE.rglob("*.py"))

FILE_LINES = 300
FUNCTION_LINES = 60
STEP_LINES = 100
CONFIG_FIELDS = 15
TABLES = {"cli/flags.py"}  # a flag per line is easier to read than a flag table in three files

CONFIG_CLASS = re.compile(r"\w*(Config|Params|Options)$")
CONFIG_VALUE = re.compile(r"(.*_)?(cfg|config|conf|args|params|options)$")


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in SOURCES:
        yield path.relative_to(PACKAGE), ast.parse(path.read_text(encoding="utf-8"), str(path))


def oversized_functions(tree: ast.Module) -> list[str]:
    return [
        f"{node.lineno}: {node.name} has {length} lines, limit {limit}"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1)
        > (limit := STEP_LINES if node.name.endswith("_step") else FUNCTION_LINES)
    ]


def fields_of(node: ast.ClassDef) -> int:
    return sum(isinstance(item, ast.AnnAssign) and "ClassVar" not in ast.unparse(item.annotation) for item in node.body)


def defaulted_getattrs(tree: ast.Module) -> list[str]:
    """``getattr(cfg, "name", default)``: the default would live at the call site, and a typo would go unseen."""
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"
        if len(node.args) == 3 and CONFIG_VALUE.match(ast.unparse(node.args[0]).rsplit(".", 1)[-1])
    ]


def test_file_length() -> None:
    long = {
        str(path.relative_to(PACKAGE)): lines
        for path in SOURCES
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES
    }
    assert not {name: lines for name, lines in long.items() if name not in TABLES}


def test_function_length() -> None:
    assert not [f"{path}:{problem}" for path, tree in trees() for problem in oversized_functions(tree)]


def test_config_classes_stay_small() -> None:
    assert not [
        f"{path}:{node.lineno}: {node.name} has {fields_of(node)} fields"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        if (path.parts[0] in ("config", "config.py") or CONFIG_CLASS.match(node.name))
        if fields_of(node) > CONFIG_FIELDS
    ]


def test_no_default_at_the_call_site() -> None:
    # models/ reads the config objects of transformers, whose fields differ from one model family to the next.
    assert not [
        f"{path}:{problem}"
        for path, tree in trees()
        if path.parts[0] != "models"
        for problem in defaulted_getattrs(tree)
    ]


def test_the_checks_can_fail() -> None:
    body = "\n".join(["    x = 1"] * 60)
    assert oversized_functions(ast.parse(f"def f():\n{body}")) == ["1: f has 61 lines, limit 60"]
    assert oversized_functions(ast.parse(f"def grpo_step():\n{body}")) == []
    found = defaulted_getattrs(ast.parse("getattr(self.config, 'a', 1)\ngetattr(self.config, 'a')\ngetattr(x, 'a', 1)"))
    assert found == ["1: getattr(self.config, 'a', 1)"]
    (node,) = ast.parse("class AConfig:\n    a: int\n    b: ClassVar[int] = 0\n    c: str = ''").body
    assert isinstance(node, ast.ClassDef) and fields_of(node) == 2


# --- every file of the repository ---

# Put together here, so that this file does not hold what it forbids.
HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("download", "pytorch", "org"),
        ("anaconda", "org"),
        ("npmjs", "org"),
        ("crates", "io"),
        ("docker", "io"),
        ("ghcr", "io"),
        ("deb", "debian", "org"),
    )
]
INDEX_OPTIONS = ["--" + name for name in ("index-url", "extra-index-url", "find-links", "trusted-host")]
REGISTRY = re.compile("|".join(re.escape(word) for word in (*HOSTS, *INDEX_OPTIONS)), re.IGNORECASE)
MACHINE_PATH = re.compile(r"(?<![\w.~$}<>/-])/(work|tmp|root|home|opt|mnt|Users)/\w")


def repository_files() -> list[Path]:
    """Tracked files and new ones that git does not ignore."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    # safe.directory: a checkout owned by another user (a container) is still only listed here.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def matches(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in repository_files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue  # an image or a compressed file
        name = path.relative_to(ROOT)
        found += [f"{name}:{number}: {line[:120]}" for number, line in enumerate(lines, 1) if pattern.search(line)]
    return found


def test_no_file_names_a_package_registry() -> None:
    assert REGISTRY.search("see https://" + HOSTS[0] + "/simple")
    assert not matches(REGISTRY)


def test_no_file_names_a_path_of_one_machine() -> None:
    assert MACHINE_PATH.search('open("' + "/" + 'home/me/x")') and not MACHINE_PATH.search("https://a.b/home/x")
    assert not matches(MACHINE_PATH)
