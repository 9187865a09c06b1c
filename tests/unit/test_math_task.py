"""The math task: math-verify behind our own row checks, closed on what can not be read."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from covey.cli.main import main
from covey.errors import UserError
from covey.rewards import RewardContext, RewardLimits, build_reward_set
from covey.tasks import ByRow, get_task, math
from covey.types import Completion, Prompt

TASK = get_task("math")


@pytest.mark.parametrize(
    "answer, text, right",
    [
        ("18", "<think>9 + 9</think>\n<answer>18</answer>", True),
        ("18", "<think>17?</think> So it is 18.", True),
        ("#### 1,018", "1018", True),
        ("She has 9 * 2 = 18.\n#### 18", "\\boxed{18}", True),
        ("\\frac{1}{2}", "<answer>0.5</answer>", True),
        ("1/2", "$\\frac12$", True),
        ("thus \\boxed{\\frac{3}{4}}", "<answer>$\\frac{6}{8}$</answer>", True),
        ("x^2+1", "\\boxed{1+x^2}", True),
        (7, "<answer>7</answer>", True),
        ("18", "<think>it is 18", False),
        ("18", "", False),
        ("18", "<answer>17, 18, 19</answer>", False),
        ("18", "\\boxed{18} \\boxed{17}", False),
        ("18", "<answer>eighteen</answer>", False),
        ("0.3333", "1/3", False),
    ],
)
def test_answers(answer: Any, text: str, right: bool) -> None:
    assert TASK.verify(text, {"answer": answer}) is right
    assert TASK.verify(text, {"solution": answer}) is right


def test_gold_that_can_not_be_read_is_never_right() -> None:
    """Where others give 1.0 or skip the row in silence: the row is refused at the start, and judged None."""
    assert TASK.verify("18", {"answer": ""}) is None
    assert TASK.validate_row({"answer": "  "}) == ['"answer" holds no answer that can be read: str \'  \'']
    assert TASK.validate_row({}) == ['"answer" (or "solution") is missing']
    assert "found bool True" in TASK.validate_row({"answer": True})[0]
    assert TASK.validate_row({"answer": "12 apples #### 12"}) == []


def test_the_right_answer_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """open-r1 #557: gold and answer swapped; the comparison is not symmetric."""
    seen: list[tuple[Any, Any]] = []

    class Library:
        parse = staticmethod(lambda text, **_: [text])
        verify = staticmethod(lambda gold, found, **_: seen.append((gold, found)) or True)

    monkeypatch.setattr(math, "_library", lambda: Library)
    math._parsed.cache_clear()
    assert TASK.verify("<answer>theirs</answer>", {"answer": "ours"})
    math._parsed.cache_clear()
    assert seen == [(["ours"], ["theirs"])]


def scored(texts: list[str], workers: int) -> list[float | None]:
    limits = RewardLimits(workers=workers, timeout_s=20.0)
    with build_reward_set(["accuracy"], context=RewardContext(TASK), limits=limits) as rewards:
        prompts = [Prompt("p", (), {"answer": "1/2"})] * len(texts)
        return [item.total for item in rewards.score(prompts, [Completion((1,), (), t, "stop") for t in texts]).scored]


def test_the_same_verdict_in_a_worker_and_from_a_thread() -> None:
    """Known fault 15: signal-based time limits of the library work on the main thread only; ours is a process."""
    texts = ["<answer>0.5</answer>", "<answer>2</answer>"]
    assert scored(texts, 1) == [1.0, 0.0] == scored(texts, 0)
    found: list[list[float | None]] = []
    thread = threading.Thread(target=lambda: found.append(scored(texts, 1)))
    thread.start()
    thread.join()
    assert found == [[1.0, 0.0]]


def test_rows_of_several_tasks() -> None:
    task = ByRow()
    rows: list[dict[str, Any]] = [{"task": "math", "answer": "4"}, {"task": "countdown", "nums": [4, 6], "target": 24}]
    assert [task.validate_row(row) for row in rows] == [[], []]
    assert task.verify("<answer>4</answer>", rows[0]) and task.verify("<answer>4*6</answer>", rows[1])
    assert not task.verify("<answer>4*6</answer>", rows[0])
    assert "must be one of countdown, math, found str 'chess'" in task.validate_row({"task": "chess"})[0]
    assert "found null" in task.validate_row({})[0]


GSM8K = [
    {"prompt": "Tom has 9 apples and buys as many again. How many?", "answer": "9 * 2 = <<9*2=18>>18\n#### 18"},
    {"prompt": "Half of 1?", "answer": "#### 0.5"},
]


def test_rows_as_of_gsm8k_are_checked_before_a_model_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gsm8k.jsonl"
    words = ["rlhf", "--rlhf_type", "grpo", "--model", "smollm2-135m", "--dataset", str(path), "--reward_funcs"]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*GSM8K, {"prompt": "2+2", "answer": ""}]))
    assert main([*words, "accuracy", "--task", "math", "--dry_run", "true"]) == 2
    assert "row 3" in (err := capsys.readouterr().err) and "holds no answer that can be read" in err
    dropped = [*words, "accuracy", "--task", "math", "--bad_rows", "drop", "--dry_run", "true"]
    assert main(dropped) == 0 and "1 unusable rows dropped" in capsys.readouterr().err
    assert main([*words, "accuracy", "--dry_run", "true"]) == 2
    assert "--task math and answer or solution" in capsys.readouterr().err


def test_without_the_library_there_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "math_verify", None)
    math._library.cache_clear()
    math._parsed.cache_clear()
    with pytest.raises(UserError, match=r"pip install 'covey\[math\]'"):
        TASK.validate_row({"answer": "18"})
    math._library.cache_clear()
    math._parsed.cache_clear()


