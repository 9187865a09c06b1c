"""Rewards from a user's file and from a dotted path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from covey.errors import UserError
from covey.rewards import build_reward_set
from covey.rewards.plugin import load_plugin
from covey.types import Completion, Prompt

PLUGIN = """
import functools
from math import sqrt

from covey.rewards.plugin import ORM, orms
from helper_beside_plugin import LIMIT


def short(prompt, completion):
    return float(len(completion.text) < LIMIT)


def _hidden(prompt, completion):
    return 0.0


half = functools.partial(lambda prompt, completion, value: value, value=0.5)


class Tagged(ORM):
    def __call__(self, completions, tag, **kwargs):
        return [float(text == name) for text, name in zip(completions, tag)]


orms["tagged"] = Tagged
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    (tmp_path / "helper_beside_plugin.py").write_text("LIMIT = 3\n")
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return path


def test_functions_and_registered_classes_become_rewards(plugin: Path) -> None:
    before = list(sys.path)
    found = load_plugin(plugin)
    assert sorted(found) == ["half", "short", "tagged"]
    assert sys.path == before
    rewards = build_reward_set(["short", "tagged", "half"], plugins=found)
    prompts = [Prompt("p", ({"role": "user", "content": "q"},), {"tag": tag}) for tag in ("ab", "long text")]
    completions = [Completion((), (), text, "stop") for text in ("ab", "other text")]
    batch = rewards.score(prompts, completions)
    assert [dict(item.rewards) for item in batch.scored] == [
        {"short": 1.0, "tagged": 1.0, "half": 0.5},
        {"short": 0.0, "tagged": 0.0, "half": 0.5},
    ]


def test_a_second_plugin_does_not_bring_the_rewards_of_the_first(plugin: Path, tmp_path: Path) -> None:
    load_plugin(plugin)
    other = tmp_path / "other.py"
    other.write_text("orms = {'own': lambda prompt, completion: 1.0}\n")
    assert sorted(load_plugin(other)) == ["own"]
    third = tmp_path / "third.py"
    third.write_text("def third(prompt, completion):\n    return 1.0\n")
    assert sorted(load_plugin(third)) == ["third"]


def test_loading_the_same_file_again_finds_the_same_rewards(plugin: Path) -> None:
    assert sorted(load_plugin(plugin)) == sorted(load_plugin(plugin))


def test_plugin_problems_are_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"plugin file .*absent\.py does not exist"):
        load_plugin(tmp_path / "absent.py")
    broken = tmp_path / "broken.py"
    broken.write_text("value = 1 / 0\n")
    with pytest.raises(UserError, match=r"(?s)broken\.py could not be loaded.*value = 1 / 0.*ZeroDivisionError"):
        load_plugin(broken)
    text = tmp_path / "notes.txt"
    text.write_text("x = 1\n")
    with pytest.raises(UserError, match="not a Python file"):
        load_plugin(text)


def test_unknown_name_lists_plugin_names_and_builtin_clash_is_refused(plugin: Path) -> None:
    found = load_plugin(plugin)
    with pytest.raises(UserError, match=r"'shrt'. Did you mean 'short'\? Known: accuracy, diversity, format, half"):
        build_reward_set(["shrt"], plugins=found)
    with pytest.raises(UserError, match="'format' is built in and also defined by a plugin"):
        build_reward_set(["format"], plugins={"format": lambda prompt, completion: 1.0})


def test_dotted_path_is_importable_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "covey_test_pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "judge.py").write_text("def always(prompt, completion):\n    return 1.0\n")
    (package / "bad.py").write_text("import covey_test_absent\n")
    monkeypatch.chdir(tmp_path)
    rewards = build_reward_set(["covey_test_pkg.judge.always"])
    assert rewards.names == ("always",)
    with pytest.raises(UserError, match=r"'alway' in module covey_test_pkg\.judge. Did you mean 'always'"):
        build_reward_set(["covey_test_pkg.judge.alway"])
    with pytest.raises(UserError, match="No module named 'covey_test_nothing'"):
        build_reward_set(["covey_test_nothing.f"])
    with pytest.raises(UserError, match="No module named 'covey_test_absent'"):
        build_reward_set(["covey_test_pkg.bad.f"])


def test_tasks_and_rewards_do_not_import_torch() -> None:
    code = (
        "import sys, covey.rewards.score_file, covey.rewards.accuracy, covey.tasks.countdown, covey.tasks.dataset;"
        "sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'datasets')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
