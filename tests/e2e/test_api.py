"""The Python interface."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.errors import UserError
from covey.trainers.checkpoint import check_complete
from covey.types import Completion, Prompt

Run = Callable[..., Any]
SMALL = {
    "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 8, "learning_rate": 1e-2,
    "max_steps": 2, "torch_dtype": "float32",
}  # fmt: skip
ROWS = [{"prompt": f"say {word}", "word": word, "worth": worth} for worth, word in enumerate(["red", "green", "blue"])]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_rows_and_functions(tiny: Path, lines_of: Run) -> None:
    seen: list[tuple[str, str, int]] = []

    def worth_of(prompts: list[str], completions: list[str], word: list[str], worth: list[int]) -> list[float]:
        seen.extend(zip(prompts, word, worth, strict=True))
        return [float(value) for value in worth]

    def length(prompt: Prompt, completion: Completion) -> float:
        return len(completion.token_ids) / 8

    run = covey.train_grpo(
        model=str(tiny), dataset=ROWS, rewards=[worth_of, length], reward_weights=[2.0, 1.0], output_dir="mine",
        reward_workers=0, **SMALL,
    )  # fmt: skip
    assert run.output_dir == Path("mine") and run.model_dir == Path("mine/final") and run.steps == 2
    assert (run.model_dir / "config.json").is_file()
    assert len(seen) == 16 and all(prompt == f"say {word}" and ROWS[w]["word"] == word for prompt, word, w in seen)
    for row in lines_of("mine/rollouts/step_1.jsonl"):
        assert row["total"] == pytest.approx(2 * row["columns"]["worth"] + row["length"] / 8)
    config = json.loads(Path("mine/config.json").read_text())
    assert config["dataset"] == "<3 rows>" and config["reward_funcs"] == ["worth_of", "length"]


def test_two_functions_of_one_name_have_two_metrics(tiny: Path, lines_of: Run) -> None:
    rewards: list[Any] = [lambda prompt, completion: 1.0, lambda prompt, completion: len(completion.text) / 8]
    covey.train_grpo(model=str(tiny), dataset=ROWS, rewards=rewards, output_dir="mine", **{**SMALL, "max_steps": 1})
    (record,) = lines_of("mine/metrics.jsonl")
    assert record["reward/lambda"] == 1.0 and record["reward/lambda_2"] > 0


def test_names_and_held_out_rows(tiny: Path, lines_of: Run) -> None:
    puzzles = [{"nums": [1, 2, 3], "target": 6}, {"nums": [2, 3, 4], "target": 24}]
    covey.train_grpo(
        model=str(tiny), dataset="countdown", rewards=["format", "accuracy"], val_dataset=puzzles, eval_steps=1,
        output_dir="mine", countdown_num_puzzles=4, **{**SMALL, "max_steps": 1},
    )  # fmt: skip
    (record,) = lines_of("mine/metrics.jsonl")
    assert record["eval/n"] == 2 and record["eval/accuracy"] == 0


def test_train_sft(tiny: Path, lines_of: Run) -> None:
    rows = [{"prompt": f"{n}?", "completion": str(n)} for n in range(4)]
    run = covey.train_sft(
        model=str(tiny), dataset=rows, output_dir="mine", max_steps=3, per_device_train_batch_size=4, learning_rate=1e-2
    )
    losses = [record["loss"] for record in lines_of("mine/metrics.jsonl")]
    assert run.steps == 3 and losses[-1] < losses[0]


def test_wrong_options_are_named(tiny: Path) -> None:
    def reward(prompt: Prompt, completion: Completion) -> float:
        return 0.0

    with pytest.raises(UserError, match="did you mean max_steps"):
        covey.train_grpo(model=str(tiny), dataset=ROWS, rewards=[reward], max_stepz=5)
    with pytest.raises(UserError, match="reward_funcs"):
        covey.train_grpo(model=str(tiny), dataset=ROWS, rewards=[reward], reward_funcs=["format"])
    with pytest.raises(UserError, match="2 values for 1 reward"):
        covey.train_grpo(model=str(tiny), dataset=ROWS, rewards=[reward], reward_weights=[1.0, 2.0])
    with pytest.raises(UserError, match="row 1"):
        covey.train_grpo(model=str(tiny), dataset=[{"word": "red"}], rewards=[reward], prompt_template="say {number}")
    with pytest.raises(UserError, match="dry_run"):
        covey.train_grpo(model=str(tiny), dataset=ROWS, rewards=[reward], dry_run=True, **SMALL)
    assert not Path("runs").exists()


def test_ctrl_c_is_a_keyboard_interrupt_with_a_checkpoint(tiny: Path) -> None:
    calls: list[int] = []

    def reward(completions: list[str]) -> list[float]:
        calls.append(len(completions))
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return [float(len(text)) for text in completions]

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        covey.train_grpo(
            model=str(tiny), dataset=ROWS, rewards=[reward], output_dir="mine", reward_workers=0, **SMALL
        )
    check_complete(Path("mine/checkpoint-1"))
    assert signal.getsignal(signal.SIGINT) is handler
    run = covey.train_grpo(
        model=str(tiny), dataset=ROWS, rewards=[reward], output_dir="mine", resume_from_checkpoint="latest", **SMALL
    )
    assert run.steps == 2


def test_the_example_in_the_package_docstring_compiles() -> None:
    assert covey.__doc__ is not None
    code = covey.__doc__.split("\n\n", 1)[1]
    compile(code, "covey", "exec")
    assert "covey.train_grpo(" in code


def test_every_kind_of_training_has_a_function(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small: dict[str, Any] = {"max_steps": 1, "torch_dtype": "float32", "per_device_train_batch_size": 2}
    pairs = [{"prompt": "2+2", "chosen": "4", "rejected": "5"}, {"prompt": "3+3", "chosen": "6", "rejected": "7"}]
    model = str(tiny)
    for run in (
        covey.train_dpo(model=model, dataset=pairs, output_dir="dpo", **small),
        covey.train_rm(model=model, dataset=pairs, output_dir="rm", **small),
        covey.train_sft(model=model, dataset=[{"prompt": "1", "completion": "2"}] * 2, output_dir="sft", **small),
        covey.train_ppo(
            model=model,
            dataset=[{"prompt": "say"}] * 2,
            rewards=[lambda prompt, completion: float(len(completion.text) % 3)],
            max_completion_length=8,
            output_dir="ppo",
            **small,
        ),
    ):
        assert run.steps == 1 and (run.model_dir / "config.json").is_file()
