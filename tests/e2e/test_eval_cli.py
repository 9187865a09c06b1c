"""covey eval, sample and chat."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from covey.build.baseline import evaluate_random_expressions
from covey.config import EvalRunConfig

Run = Callable[..., Any]
SHORT = ("--max_completion_length", 6, "--torch_dtype", "float32")


def test_json_is_one_line_and_nothing_else(covey: Run, tiny: Path) -> None:
    words = ("eval", "--model", tiny, "--dataset", "countdown", "--eval_num_prompts", 5, *SHORT)
    words += ("--eval_num_samples", 2)
    ended = covey(*words, "--json", "true")
    assert ended.code == 0, ended.err
    assert ended.out.count("\n") == 1
    result = json.loads(ended.out)
    assert result["n"] == 10 and result["accuracy"] == 0 and result["format"] == 0
    # Wilson, 0 of 10 with z = 1.96: (0, z^2 / (10 + z^2)) = (0, 0.2775)
    assert result["accuracy_interval"] == pytest.approx([0, 0.2775], abs=1e-4)
    assert result["accuracy_when_formatted"] is None and 0 < result["mean_length"] <= 6
    assert result["model"] == str(tiny) and result["seconds"] > 0

    again = json.loads(covey(*words, "--json", "true").out)
    assert {**again, "seconds": 0} == {**result, "seconds": 0}


def test_the_table_and_the_completions(covey: Run, tiny: Path, lines_of: Run) -> None:
    words = ("eval", "--model", tiny, "--dataset", "countdown", "--eval_num_prompts", 3, "--output_dir", "out", *SHORT)
    ended = covey(*words)
    assert ended.code == 0 and "accuracy" in ended.out and "0.0%" in ended.out
    rows = lines_of("out/completions.jsonl")
    assert len(rows) == 3 and rows[0]["rewards"] == {"format": 0.0, "accuracy": 0.0}


def test_own_rows_and_own_reward(covey: Run, tiny: Path, plugin: Path) -> None:
    Path("rows.jsonl").write_text("".join(json.dumps({"prompt": "x" * size}) + "\n" for size in (3, 4, 90)))
    words = ("eval", "--model", tiny, "--dataset", "rows.jsonl", "--external_plugins", plugin, *SHORT)
    words += ("--reward_funcs", "digits", "--max_length", 60, "--truncation_strategy", "delete", "--json")
    ended = covey(*words)
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert result["n"] == 2 and result["accuracy"] is None and result["format_interval"] is None
    assert "1 prompts longer than --max_length 60 dropped" in ended.err


def test_wrong_input(covey: Run, no_weights: Path) -> None:
    Path("rows.jsonl").write_text('{"prompt": "a"}\n')
    ended = covey("eval", "--model", no_weights, "--dataset", "rows.jsonl")
    assert ended.code == 2 and "nums and target (countdown)" in ended.err and "--reward_funcs" in ended.err
    ended = covey("eval", "--model", no_weights, "--dataset", "nowhere.jsonl")
    assert ended.code == 2 and "nowhere.jsonl does not exist" in ended.err
    ended = covey("eval", "--model", no_weights, "--dataset", "countdown", "--max_completion_length", 500)
    assert ended.code == 2 and "512 positions" in ended.err
    ended = covey("eval", "--model", no_weights, "--dataset", "countdown", *SHORT)
    assert ended.code == 2 and "cannot be loaded" in ended.err


def test_random_expressions_are_well_formed_and_rarely_right() -> None:
    config = EvalRunConfig.from_dict({"model": "", "dataset": "countdown", "eval_num_prompts": 300})
    result = evaluate_random_expressions(config)
    assert result.n == 300 and result.format == 1.0
    assert result.accuracy is not None and 0 < result.accuracy < 0.2
    assert evaluate_random_expressions(config) == result


def test_sample_prints_a_json_line_per_completion(covey: Run, tiny: Path) -> None:
    words = ("sample", "--model", tiny, "--prompt", "24 from 8, 6, 2", "7?", "--num_samples", 3, "--seed", 1, *SHORT)
    ended = covey(*words)
    assert ended.code == 0, ended.err
    rows = [json.loads(line) for line in ended.out.splitlines()]
    assert [row["prompt"] for row in rows] == ["24 from 8, 6, 2"] * 3 + ["7?"] * 3
    assert len({row["completion"] for row in rows}) > 1
    assert all(1 <= row["tokens"] <= 6 and row["finish_reason"] in ("stop", "length") for row in rows)
    assert covey(*words).out == ended.out


def test_chat_answers_piped_lines(covey: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    greedy = ("--temperature", 0, "--system", "Be brief.", *SHORT)
    sampled = json.loads(covey("sample", "--model", tiny, "--prompt", "hello", *greedy).out)
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    ended = covey("chat", "--model", tiny, *greedy)
    assert ended.code == 0 and ended.out == sampled["completion"] + "\n"

    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nand now?\n\nnot read\n"))
    longer = covey("chat", "--model", tiny, *greedy)
    assert longer.code == 0 and longer.out.startswith(ended.out) and len(longer.out) > len(ended.out)
