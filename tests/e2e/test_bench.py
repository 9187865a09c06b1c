"""``covey bench``: contenders in turns, in processes of their own, for about the same time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from covey.build.bench import BENCHES, read_bench, turns
from covey.config import BenchOptions
from covey.errors import UserError
from covey.evals.stats import paired_difference

Run = Callable[..., Any]

SMALL: dict[str, Any] = {
    "seconds": 1.0,
    "rounds": 1,
    "options": {
        "dataset": "countdown", "countdown_num_puzzles": 16, "max_completion_length": 8, "torch_dtype": "float32",
        "reward_funcs": ["format", "accuracy"], "per_device_train_batch_size": 8, "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
    },
    "contenders": {
        "GRPO": {"rlhf_type": "grpo", "num_generations": 4, "beta": 0.01},
        "PPO": {"rlhf_type": "ppo", "critic_lr": 1e-3},
    },
}  # fmt: skip


def test_contenders_take_turns_for_the_same_time(covey: Run, tiny: Path) -> None:
    Path("mine.yaml").write_text(yaml.safe_dump(SMALL))
    ended = covey("bench", "mine.yaml", "--model", tiny, "--output_dir", "out", "--eval_num_prompts", 8)
    assert ended.code == 0, ended.err
    report = json.loads(Path("out/result.json").read_text())
    grpo, ppo = report["contenders"]
    for row in (grpo, ppo):
        assert row["steps"] >= 2 and row["n"] == 8 and row["peak_memory_gb"] > 0.1 and row["tokens_per_s"] > 0
        assert row["seconds"] == pytest.approx(1.0, abs=1.0)
        assert row["accuracy_interval"][0] <= row["accuracy"] <= row["accuracy_interval"][1]
    assert ppo["difference_to_first"]["mean"] == ppo["accuracy"] - grpo["accuracy"]
    assert (
        "| PPO |" in ended.out and "| Qwen3-30B-A3B |" in ended.out and Path("out/result.md").read_text() in ended.out
    )
    again = covey("bench", "mine.yaml", "--model", tiny, "--output_dir", "out")
    assert again.code == 2 and "not empty" in again.err


@pytest.mark.parametrize("name", [path.stem for path in BENCHES.glob("*.yaml")])
def test_the_benches_that_come_with_covey(name: str, tmp_path: Path) -> None:
    bench = read_bench(name, BenchOptions(model="m", output_dir=str(tmp_path)))
    first, second = bench.contenders
    assert first.name == "GRPO" and bench.seconds == 480 and bench.evaluation["max_completion_length"] == 224
    assert turns(bench.contenders, 1) == (first, second) and turns(bench.contenders, 2) == (second, first)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"contenders": {"A": {"rlhf_type": "kto"}}}, "rlhf_type must be one of grpo, ppo, dpo"),
        ({"contenders": {"A": {"rlhf_type": "grpo", "lr_scheduler_type": "cosine"}}}, "must be constant"),
        ({"contenders": {"A": {"rlhf_type": "grpo", "loss_type": "cispo"}}}, "epsilon_high is not set"),
        ({"options": None}, "options"),
    ],
)
def test_what_is_wrong_with_a_file_shows_before_anything_runs(
    change: dict[str, Any], part: str, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.yaml"
    content = {key: value for key, value in {**SMALL, **change}.items() if value is not None}
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=part):
        read_bench(str(path), BenchOptions(model="m", output_dir=str(tmp_path / "out")))


def test_a_failing_contender_names_its_log(covey: Run, tiny: Path) -> None:
    Path("mine.yaml").write_text(yaml.safe_dump(SMALL))
    ended = covey("bench", "mine.yaml", "--model", tiny / "missing", "--output_dir", "out")
    assert ended.code == 2 and "missing" in ended.err


def test_paired_differences_by_hand() -> None:
    """Of four prompts a wins two and loses none: mean 0.5, sample variance 1/3, half width 1.96 * sqrt(1/12)."""
    mean, low, high = paired_difference([True, True, True, False], [True, False, False, False])
    assert mean == 0.5 and high - mean == pytest.approx(1.96 * math.sqrt(1 / 12)) == pytest.approx(mean - low)
    assert paired_difference([True, False], [True, False]) == (0, 0, 0)
    with pytest.raises(ValueError, match="got 1 and 2"):
        paired_difference([True], [True, False])
