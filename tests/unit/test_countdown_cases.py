"""All of countdown_cases.jsonl: verdicts, time, no side effects (known faults 12 and 14)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from covey.rewards.format import is_well_formed
from covey.rewards.score_file import score_file
from covey.tasks import get_task

CASES_FILE = Path(__file__).parents[1] / "data" / "countdown_cases.jsonl"
CASES: list[dict[str, Any]] = [json.loads(line) for line in CASES_FILE.read_text(encoding="utf-8").splitlines()]
MARKER = "countdown_marker"


def _accuracy(text: str, numbers: list[int], target: int) -> bool | float | None:
    return get_task("countdown").verify(text, {"nums": numbers, "target": target})


def test_the_file_is_complete() -> None:
    assert len(CASES) == 87
    assert sum(case["expect_correct"] for case in CASES) == 21
    assert sum(case["expect_format"] for case in CASES) == 70


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case['why'][:40]}" for i, case in enumerate(CASES)])
def test_case(case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    start = time.thread_time()
    correct = _accuracy(case["completion"], case["numbers"], case["target"])
    well_formed = is_well_formed(case["completion"])
    assert time.thread_time() - start < 0.05
    assert correct is case["expect_correct"], case["why"]
    assert well_formed is case["expect_format"], case["why"]
    assert not (tmp_path / MARKER).exists()


def test_a_wrong_answer_scored_right_after_a_payload_still_gets_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    payloads = [case for case in CASES if MARKER in case["completion"] or "__" in case["completion"]]
    assert len(payloads) == 3
    patch = (
        "<answer>__import__('covey.tasks.countdown_expr', fromlist=['x']).__dict__.update(is_correct=lambda *a: 1)"
        "</answer>"
    )
    for text in [*(case["completion"] for case in payloads), patch]:
        assert _accuracy(text, [4, 6], 24) is False
        assert _accuracy("<think>t</think><answer>4+6</answer>", [4, 6], 24) is False
        assert _accuracy("<think>t</think><answer>4*6</answer>", [4, 6], 24) is True
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bomb", ["<think>", "</think>", "<answer>", "</answer>", "<think></think>", " ", "<", "9"])
def test_half_a_megabyte_of_anything_is_judged_in_under_50_ms(bomb: str) -> None:
    text = bomb * (500_000 // len(bomb))
    start = time.thread_time()
    assert _accuracy(text, [4, 6], 24) is False
    assert is_well_formed(text) is False
    assert time.thread_time() - start < 0.05


def test_score_file_gives_one_row_per_line_in_order() -> None:
    scores = list(score_file("countdown", CASES_FILE))
    assert scores == [
        {"format": float(case["expect_format"]), "accuracy": float(case["expect_correct"])} for case in CASES
    ]
