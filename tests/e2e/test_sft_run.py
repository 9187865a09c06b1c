"""Supervised training: rows with an answer, and the worked solutions of the generator."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from covey.build.data import training_texts
from covey.config import SFTConfig
from covey.tasks.countdown import CountdownTask

Run = Callable[..., Any]


def write_rows(rows: Sequence[dict[str, Any]]) -> None:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def pairs_of(say: Callable[[str], None] = lambda text: None, **options: Any) -> list[tuple[str, str]]:
    """(last user turn, answer) of every example that a config gives."""
    config = SFTConfig.from_dict({"model": "m", **options})
    pairs = training_texts(config.data, config.countdown, config.data.dataset, 42, say)
    return [(prompt.messages[-1]["content"], text) for prompt, text in pairs]


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def test_messages_that_end_with_the_answer(covey: Run, sft: Run, lines_of: Run) -> None:
    write_rows([chat(f"{n} and {n}?", str(2 * n)) for n in range(8)])
    assert pairs_of(dataset="rows.jsonl")[3] == ("3 and 3?", "6")
    ended = covey(*sft(max_steps=12))
    assert ended.code == 0, ended.err
    records = lines_of("run/metrics.jsonl")
    assert len(records) == 12
    # random weights: about -log(1/101) = 4.6 nats per token at the start
    assert 4 < records[0]["loss"] < 5.2 and records[-1]["loss"] < 0.7 * records[0]["loss"]
    assert all(record["update_skipped"] == 0 for record in records)
    assert not AutoModelForCausalLM.from_pretrained("run/final", output_loading_info=True)[1]["missing_keys"]


def test_prompt_and_completion(covey: Run, sft: Run, lines_of: Run) -> None:
    write_rows([{"prompt": f"{n}?", "completion": f"<answer>{n}</answer>"} for n in range(4)])
    assert pairs_of(dataset="rows.jsonl")[1] == ("1?", "<answer>1</answer>")
    assert covey(*sft(max_steps=2)).code == 0
    losses = [record["loss"] for record in lines_of("run/metrics.jsonl")]
    assert losses[1] < losses[0]


def test_worked_solutions(covey: Run, sft: Run, lines_of: Run) -> None:
    ended = covey(*sft(dataset="countdown", countdown_num_puzzles=16, max_steps=5, system="You solve puzzles."))
    assert ended.code == 0, ended.err
    losses = [record["loss"] for record in lines_of("run/metrics.jsonl")]
    assert losses[-1] < losses[0]


def test_every_worked_solution_is_right() -> None:
    """Also where some puzzles have four numbers: the search is for three, and must not leave a number out."""
    said: list[str] = []
    config = SFTConfig.from_dict(
        {"model": "m", "dataset": "countdown", "countdown_num_numbers": [3, 4], "countdown_num_puzzles": 300}
    )
    pairs = training_texts(config.data, config.countdown, "countdown", 0, said.append)
    assert 0 < len(pairs) < 300 and all(CountdownTask().verify(text, prompt.columns) for prompt, text in pairs)
    assert said == [f"{300 - len(pairs)} puzzles without a worked solution left out"]


def test_answers_stay_with_their_prompts_when_rows_are_dropped() -> None:
    """Row 2 has no answer, row 3 an answer but no prompt, row 4 an answer that is no text."""
    said: list[str] = []
    rows = [
        {"prompt": "one", "completion": "1"},
        {"prompt": "two"},
        {"prompt": " ", "completion": "3"},
        {"messages": [{"role": "user", "content": "four"}, {"role": "assistant"}]},
        {"prompt": "five", "completion": "5"},
    ]
    config = SFTConfig.from_dict({"model": "m", "dataset": "rows", "bad_rows": "drop"})
    pairs = training_texts(config.data, config.countdown, rows, 0, said.append)
    assert [(prompt.messages[0]["content"], text) for prompt, text in pairs] == [("one", "1"), ("five", "5")]
    assert said[0].startswith("2 rows without an answer") and said[1].startswith("1 unusable rows")


def test_rows_without_an_answer_are_refused_by_number(covey: Run, sft: Run, no_weights: Path) -> None:
    write_rows([{"prompt": "a", "completion": "b"}, {"prompt": "c"}])
    ended = covey(*sft(model=no_weights))
    assert ended.code == 2 and "rows.jsonl" in ended.err and "row 2" in ended.err and "row 1" not in ended.err


def test_the_length_limit_counts_prompt_and_answer(covey: Run, sft: Run, no_weights: Path) -> None:
    write_rows([{"prompt": "a", "completion": "b" * size} for size in (1, 2, 3, 90, 600)])
    ended = covey(*sft(model=no_weights))
    assert ended.code == 2 and "rows.jsonl:5" in ended.err and "512" in ended.err  # the context of the model
    ended = covey(*sft(model=no_weights, max_length=100))
    assert ended.code == 2 and "rows.jsonl:4" in ended.err and "--max_length" in ended.err
    changes = {"truncation_strategy": "delete", "max_steps": None, "num_train_epochs": 2}
    ended = covey(*sft(max_length=100, per_device_train_batch_size=3, **changes))
    assert ended.code == 0 and "2 examples longer than 100 tokens dropped, 3 left" in ended.err
    assert Path("run/checkpoint-2").is_dir()  # 2 epochs of 3 examples, 3 per step


def test_four_steps_are_two_and_two(
    covey: Run, sft: Run, lines_of: Run, weights_of: Run, same_weights: Run, comparable: Run
) -> None:
    write_rows([chat(f"{n} and {n}?", str(2 * n)) for n in range(10)])
    assert covey(*sft(save_steps=2, output_dir="straight")).code == 0
    assert covey(*sft(resume_from_checkpoint="straight/checkpoint-2", output_dir="second")).code == 0
    straight, second = (comparable(lines_of(f"{run}/metrics.jsonl")) for run in ("straight", "second"))
    assert [record["step"] for record in second] == [3, 4] and straight[2:] == second
    assert same_weights(weights_of("straight/final"), weights_of("second/final"))


def test_dry_run(covey: Run, sft: Run, no_weights: Path) -> None:
    write_rows([chat("1?", "1")])
    ended = covey(*sft(model=no_weights, dry_run=True))
    assert ended.code == 0 and "4 optimizer steps" in ended.err and not Path("run").exists()


@pytest.mark.parametrize("numbers", [[2, 2], [4, 4]])
def test_puzzles_without_worked_solutions(covey: Run, sft: Run, no_weights: Path, numbers: list[int]) -> None:
    ended = covey(*sft(model=no_weights, dataset="countdown", countdown_num_puzzles=5, countdown_num_numbers=numbers))
    assert ended.code == 2 and "three positive integers" in ended.err
