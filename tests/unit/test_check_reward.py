"""``covey check-reward``: ours are clean; the article's and the usual verifiers of the field are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from covey.cli.main import main
from covey.rewards.check import Report, check_reward
from covey.tasks.countdown_expr import is_correct
from covey.tasks.countdown_probes import RIGHT, WRONG

ARTICLE = Path(__file__).parents[2] / "examples" / "article_reward.py"

# What the two best-known public verifiers of the game do, in our own words.
FIELD = '''
import re


def last_answer_by_whitelist(completions, target, nums, **columns):
    """The last answer block, digit runs, a whitelist of characters, eval without builtins, a tolerance."""
    scores = []
    for text, wanted, given in zip(completions, target, nums):
        blocks = re.findall(r"<answer>(.*?)</answer>", text)
        if not blocks:
            scores.append(0.0)
            continue
        expression = blocks[-1].strip()
        runs = sorted(int(run) for run in re.findall(r"\\d+", expression))
        score = 0.1
        if runs == sorted(given) and re.fullmatch(r"[\\d+\\-*/().\\s]+", expression):
            try:
                if abs(eval(expression, {"__builtins__": None}, {}) - wanted) < 1e-5:
                    score = 1.0
            except Exception:
                pass
        scores.append(score)
    return scores


def first_answer_with_equation(completions, target, nums, **columns):
    """The first answer block, what stands before an equals sign, digit runs, a whitelist, eval, a tolerance."""
    scores = []
    for text, wanted, given in zip(completions, target, nums):
        try:
            match = re.search(r"<answer>(.*?)<\\/answer>", text)
            equation = match.group(1).strip()
            if "=" in equation:
                equation = equation.split("=")[0]
            if sorted(int(n) for n in re.findall(r"\\d+", equation)) != sorted(given):
                scores.append(0.0)
            elif not re.match(r"^[\\d+\\-*/().\\s]+$", equation):
                scores.append(0.0)
            else:
                scores.append(float(abs(float(eval(equation, {"__builtins__": None}, {})) - wanted) < 1e-5))
        except Exception:
            scores.append(0.0)
    return scores
'''

BAD = '''
import os, random, time


def dice(prompt, completion):
    return random.random()


def by_place(completions, **columns):
    return [float(k) for k in range(len(completions))]


def evaluates(completions, target, **columns):
    scores = []
    for text, wanted in zip(completions, target):
        inside = text.partition("<answer>")[2].partition("</answer>")[0]
        try:
            scores.append(float(eval(inside, {"__builtins__": None}, {}) == wanted))
        except Exception:
            scores.append(0.0)
    return scores


def fragile(prompt, completion):
    return float(completion.text.split("<answer>")[1] == "4*6</answer>")


def crashes(prompt, completion):
    if not completion.text:
        os._exit(1)
    return 0.0


def slow(prompt, completion):
    if completion.text == "4*6":
        time.sleep(1.2)
    return 0.0


def too_many(completions, **columns):
    return [0.0] * 3


def one_for_all(completions, **columns):
    return [0.0]


def _right(text, nums, target):
    from covey.tasks import get_task
    return get_task("countdown").verify(text, {"nums": nums, "target": target})


def inverted(prompt, completion):
    return 1.0 - _right(completion.text, **prompt.columns)


def timid(prompt, completion):
    right = _right(completion.text, **prompt.columns)
    return None if right and "=" in completion.text else float(right)


def minus_infinity(prompt, completion):
    return 1.0 if _right(completion.text, **prompt.columns) else float("-inf")


def of_the_step(completions, nums, target, trainer_state, **columns):
    share = trainer_state.global_step / trainer_state.max_steps
    return [_right(text, n, t) * (1.0 - share) for text, n, t in zip(completions, nums, target)]
'''


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    (tmp_path / "field.py").write_text(FIELD)
    (tmp_path / "bad.py").write_text(BAD)
    return tmp_path


def kinds(report: Report) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in report.findings:
        found.setdefault(finding.kind, set()).add(finding.probe)
    return found


def checked(target: str, **options: Any) -> Report:
    return check_reward(target, "countdown", dataset="countdown", **{"timeout_s": 1.0, **options})


def test_the_kit_is_right_itself() -> None:
    assert all(is_correct(text, list(nums), target) for _, text, nums, target, _ in RIGHT)
    assert not any(is_correct(text, list(nums), target) for _, text, nums, target, _ in WRONG)


@pytest.mark.parametrize("name", ["accuracy", "format", "soft_overlong"])
def test_ours_are_clean(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-reward", name, "--task", "countdown"]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "clean" and "152 completions" in said
    assert ("verdicts were not checked" in said) == (name != "accuracy")


def test_the_reward_of_the_article_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-reward", f"{ARTICLE}:article", "--reward_timeout", "1", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    found = {(finding["kind"], finding["probe"]) for finding in report["findings"]}
    assert report["judged"] and {
        ("pays for nothing", "empty"),  # 0.4 for a completion without an answer
        ("false accept", "power"),
        ("false accept", "nearly"),
        ("false accept", "comment"),
        ("false accept", "two answers, right first"),
        ("false reject", "spaces and lines"),
        ("hangs", "tag bomb"),
        ("hangs", "injection 4"),
        ("executes model text", "injection"),
    } <= found


@pytest.mark.parametrize("name", ["last_answer_by_whitelist", "first_answer_with_equation"])
def test_the_usual_verifiers_fail(bad: Path, name: str) -> None:
    found = kinds(checked(f"{bad}/field.py:{name}"))
    assert {"power", "floor division", "decimal point", "nearly"} <= found["false accept"]
    assert "injection 4" in found["hangs"] and "spaces and lines" in found["false reject"]


def test_what_a_score_may_not_depend_on(bad: Path) -> None:
    assert "depends on the batch" in kinds(checked(f"{bad}/bad.py:dice"))
    assert "depends on the batch" in kinds(checked(f"{bad}/bad.py:by_place"))


def test_crashes_exceptions_and_slowness_are_found(bad: Path) -> None:
    found = kinds(checked(f"{bad}/bad.py:fragile"))
    assert {"empty", "no tags"} <= found["exception"]
    assert kinds(checked(f"{bad}/bad.py:crashes"))["crash"] == {"empty"}
    assert kinds(checked(f"{bad}/bad.py:slow", timeout_s=3.0))["slow"] == {"no tags"}
    assert "returned 3" in checked(f"{bad}/bad.py:too_many").findings[0].detail
    assert "invalid result in a batch" in kinds(checked(f"{bad}/bad.py:one_for_all"))


def test_rewards_that_judge_the_wrong_way(bad: Path) -> None:
    assert set(kinds(checked(f"{bad}/bad.py:inverted"))) == {"the wrong way round"}
    assert "with its result" in kinds(checked(f"{bad}/bad.py:timid"))["abstains"]
    assert "another value" in kinds(checked(f"{bad}/bad.py:minus_infinity"))["not a number"]


def test_a_sound_reward_that_reads_the_step_is_clean(bad: Path) -> None:
    assert not checked(f"{bad}/bad.py:of_the_step").findings


def test_a_file_is_asked_for_its_own_functions_only(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-reward", f"{bad}/bad.py:accuracy"]) == 2
    assert "unknown reward 'accuracy' in" in capsys.readouterr().err


def test_model_text_that_is_executed_is_found_out(bad: Path) -> None:
    assert "executes model text" in kinds(checked(f"{bad}/bad.py:evaluates"))


def test_puzzles_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"nums": [3, 4, 9], "target": t}) + "\n" for t in (24, 16)))
    report = check_reward("accuracy", "countdown", dataset=str(path))
    assert not report.findings and report.probes < 60


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "needs a reward"),
        (["accurcy"], "Did you mean 'accuracy'?"),
        (["absent.py:mine"], "does not exist"),
        (["accuracy", "--task", "chess"], "countdown"),
        (["accuracy", "--dataset", "absent.jsonl"], "absent.jsonl"),
    ],
)
def test_wrong_input(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-reward", *words]) == 2
    assert said in capsys.readouterr().err
