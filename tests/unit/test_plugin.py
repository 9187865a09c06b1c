"""Rewards from a user's file and from a dotted path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from covey.errors import UserError
from covey.rewards import RewardLimits, RewardSet, build_reward_set
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
    with pytest.raises(UserError, match=r"'shrt'. Did you mean 'short'\? Known: accuracy, cosine, diversity, for"):
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


# As the documentation of ms-swift 4 has it (Reward Function): registered classes, one of them asynchronous.
SWIFT_4 = """
import asyncio
from typing import List

from swift.rewards import ORM, AsyncORM, orms
from swift.utils import get_logger

logger = get_logger()


class DummyLengthRewardFunction(ORM):
    def __call__(self, completions, **kwargs):
        return [1.0 if len(completion) > 1024 else 0.0 for completion in completions]


class OfTheStep(ORM):
    def __call__(self, completions, solution, trainer_state, **kwargs) -> List[float]:
        logger.info('step %d', trainer_state.global_step)
        return [float(text == gold) * trainer_state.global_step for text, gold in zip(completions, solution)]


class AsyncAPIReward(AsyncORM):
    async def __call__(self, completions, **kwargs):
        async def score_single(text):
            await asyncio.sleep(0)
            return float(len(text))

        return list(await asyncio.gather(*[score_single(c) for c in completions]))


orms['dummy'] = DummyLengthRewardFunction
orms['of_the_step'] = OfTheStep
orms['async_api'] = AsyncAPIReward
"""
SWIFT_3 = SWIFT_4.replace("from swift.rewards import", "from swift.plugin import")

# As the documentation of TRL has it (Using a custom reward function).
TRL = """
import re


def reward_func(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


def accuracy_of(completions, ground_truth, **kwargs):
    matches = [re.search(r"boxed<(.*?)>", completion) for completion in completions]
    contents = [match.group(1) if match else "" for match in matches]
    return [1.0 if c == gt else 0.0 for c, gt in zip(contents, ground_truth)]


def math_only(prompts, completions, task, **kwargs):
    return [1.0 if t == "math" else None for t in task]


async def async_reward_func(prompts, completions, completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]
"""


def _scored(rewards: RewardSet) -> list[dict[str, float | None]]:
    columns = [
        {"solution": "ab", "ground_truth": "4", "task": "math"},
        {"solution": "x", "ground_truth": "5", "task": "code"},
    ]
    prompts = [Prompt(f"p{i}", ({"role": "user", "content": "q"},), row) for i, row in enumerate(columns)]
    completions = [Completion((7, 8), (), text, "stop") for text in ("ab", "boxed<5>")]
    with rewards:
        rewards.at(3, 10)
        return [dict(item.rewards) for item in rewards.score(prompts, completions).scored]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("text", [SWIFT_3, SWIFT_4], ids=["swift.plugin", "swift.rewards"])
def test_a_file_written_for_ms_swift_runs_unchanged(tmp_path: Path, text: str, workers: int) -> None:
    (tmp_path / "plugin.py").write_text(text)
    found = load_plugin(tmp_path / "plugin.py")
    limits = RewardLimits(workers=workers)
    assert _scored(build_reward_set(["dummy", "of_the_step", "async_api"], plugins=found, limits=limits)) == [
        {"dummy": 0.0, "of_the_step": 3.0, "async_api": 2.0},
        {"dummy": 0.0, "of_the_step": 0.0, "async_api": 8.0},
    ]
    assert "swift" not in sys.modules


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_written_for_trl_runs_unchanged(tmp_path: Path, workers: int) -> None:
    (tmp_path / "rewards.py").write_text(TRL)
    found = load_plugin(tmp_path / "rewards.py")
    names = ["reward_func", "accuracy_of", "math_only", "async_reward_func"]
    assert _scored(build_reward_set(names, plugins=found, limits=RewardLimits(workers=workers))) == [
        {"reward_func": 2.0, "accuracy_of": 0.0, "math_only": 1.0, "async_reward_func": 2.0},
        {"reward_func": 8.0, "accuracy_of": 1.0, "math_only": None, "async_reward_func": 2.0},
    ]


@pytest.mark.parametrize(
    "line, name",
    [
        ("from swift.llm import Template, to_device", "swift.llm.Template"),
        ("from swift.rewards import Nonsense", "swift.rewards.Nonsense"),
        ("import swift; swift.trainers", "swift.trainers"),
    ],
)
def test_other_names_of_ms_swift_are_refused_clearly(tmp_path: Path, line: str, name: str) -> None:
    (tmp_path / "plugin.py").write_text(line + "\n")
    with pytest.raises(UserError) as caught:
        load_plugin(tmp_path / "plugin.py")
    assert f"{name}: ms-swift is not installed" in str(caught.value) and "Remove the import" in str(caught.value)
    assert not any(module.split(".")[0] == "swift" for module in sys.modules)
