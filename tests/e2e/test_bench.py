"""``covey bench``: contenders in turns, in processes of their own, for about the same time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from covey.build.bench import sample_pairs, train
from covey.build.bench_pairs import right_and_wrong
from covey.build.bench_plan import BENCHES, read_bench, turns
from covey.config import BenchOptions
from covey.errors import UserError
from covey.types import Completion, Scored

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
    assert "--eval_num_prompts 8" in report["command"]
    assert (
        "| PPO |" in ended.out and "| Qwen3-30B-A3B |" in ended.out and Path("out/result.md").read_text() in ended.out
    )
    again = covey("bench", "mine.yaml", "--model", tiny, "--output_dir", "out")
    assert again.code == 2 and "not empty" in again.err


DPO = {"rlhf_type": "dpo", "sampling_share": 0.5, "num_generations": 4, "learning_rate": 1e-3, "beta": 0.2}


def test_a_contender_that_samples_its_own_pairs(covey: Run, tiny: Path) -> None:
    """The tiny model is never right, so its sampling finds no pairs and says so; its training gets some by hand."""
    Path("mine.yaml").write_text(yaml.safe_dump({**SMALL, "contenders": {"DPO": DPO}}))
    bench = read_bench("mine.yaml", BenchOptions(model=str(tiny), output_dir="out"))
    (contender,) = bench.contenders
    assert "beta" not in contender.sampling and contender.sampling["countdown_num_puzzles"] == 16
    with pytest.raises(UserError, match="DPO: none of the prompts of"):
        sample_pairs(bench, contender)
    pairs = [{"prompt": f"{n}?", "chosen": "yes", "rejected": "no"} for n in range(8)]
    Path("out/dpo/pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    train(contender, 2)
    train(contender, 3)  # continues
    assert [step["step"] for step in contender.steps] == [1, 2, 3] and contender.steps[2]["rewards/margins"] > 0
    assert json.loads(Path("out/dpo/run/config.json").read_text())["beta"] == 0.2


def test_right_and_wrong() -> None:
    def member(text: str, accuracy: float, reason: Any = "stop") -> Scored:
        return Scored(Completion((1,), (0.0,), text, reason), {"accuracy": accuracy}, accuracy)

    right, wrong, cut = member("a", 1.0), member("b", 0.0), member("c", 0.0, "length")
    assert right_and_wrong([cut, wrong, right]) == (right, wrong)
    assert right_and_wrong([right, cut, member(" ", 0.0)]) is None


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
        ({"options": None}, "wrong here: options"),
        ({"round": 5}, "wrong here: round"),
        ({"contenders": ["A"]}, "wrong here: contenders"),
        ({"contenders": {"A": {"rlhf_type": "grpo", "num_generation": 8}}}, "grpo has no option num_generation"),
        ({"contenders": {"A": {"rlhf_type": "grpo", "logging_steps": 5}}}, "logging_steps can not be set in a bench"),
        ({"options": {**SMALL["options"], "lam": 0.9}, "contenders": {"A": {"rlhf_type": "grpo"}}}, "reads .*lam"),
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
