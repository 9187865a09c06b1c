"""GRPO from the command line to the model folder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.cli.parse import parse
from covey.trainers.checkpoint import check_complete
from covey.trainers.credit import AdvantageSettings, pack, shown_advantages, with_advantages
from covey.types import Completion, Group, Prompt, Scored

METRICS = {
    "step", "reward/mean", "reward/std", "reward/digits", "frac_reward_zero_std", "kl", "beta", "clip_ratio", "entropy",
    "grad_norm", "lr", "completions/mean_length", "completions/clipped_ratio", "time/rollout_s", "time/reward_s",
    "time/train_s", "time/step_s", "tokens_per_s", "memory/rss_gb",
}  # fmt: skip
Run = Callable[..., Any]


def test_the_run_folder(covey: Run, grpo: Run, tiny: Path, lines_of: Run, weights_of: Run, same_weights: Run) -> None:
    words = grpo(save_steps=2)
    ended = covey(*words)
    assert ended.code == 0, ended.err

    records = lines_of("run/metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3]
    for record in records:
        assert record.keys() >= METRICS
        assert 0 <= record["reward/digits"] <= 1 and record["reward/mean"] == record["reward/digits"]
        assert record["kl"] is None and record["beta"] == 0  # no reference model, so no value; never a 0
        assert record["grad_norm"] > 0 and record["update_skipped"] == 0
        assert record["rollout/logp_gap"] < 1e-4  # engine and trainer agree on the sampled ids, in fp32
        parts = record["time/rollout_s"] + record["time/reward_s"] + record["time/train_s"]
        assert record["time/step_s"] == pytest.approx(parts)
    # cosine without warm-up, three steps: peak * (1 + cos(pi * k / 3)) / 2 for k = 0, 1, 2
    assert [record["lr"] for record in records] == pytest.approx([1e-2, 0.75e-2, 0.25e-2])

    rollout = lines_of("run/rollouts/step_2.jsonl")
    assert len(rollout) == 8 and len({row["prompt_id"] for row in rollout}) == 2
    assert {row["weight_version"] for row in rollout} == {1}  # sampled after the first update
    assert all(row["rewards"]["digits"] == sum(map(str.isdigit, row["completion"])) / 8 for row in rollout)
    for group in (rollout[:4], rollout[4:]):
        assert sum(row["advantage"] for row in group) == pytest.approx(0, abs=1e-5)

    assert sorted(path.name for path in Path("run").glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]
    check_complete(Path("run/checkpoint-2"))
    assert same_weights(weights_of("run/final"), weights_of("run/checkpoint-3"))
    assert not same_weights(weights_of("run/final"), weights_of(tiny))
    model, found = AutoModelForCausalLM.from_pretrained("run/final", output_loading_info=True)
    assert not found["missing_keys"] and model.dtype == torch.float32
    assert AutoTokenizer.from_pretrained("run/final").chat_template


def test_config_json_parses_back_to_the_same_config(covey: Run, grpo: Run) -> None:
    words = grpo(max_steps=1, beta=0.01, save_total_limit=None, system="You count.")
    assert covey(*words).code == 0
    assert parse("rlhf", ["--config", "run/config.json"]).config == parse(words[0], words[1:]).config


def test_kl_starts_at_zero_and_grows(covey: Run, grpo: Run, lines_of: Run) -> None:
    assert covey(*grpo(beta=0.05)).code == 0
    kl = [record["kl"] for record in lines_of("run/metrics.jsonl")]
    assert abs(kl[0]) < 1e-6 and kl[1] > 0 and kl[2] > kl[1]


def test_each_rollout_is_used_for_its_steps_and_no_more(covey: Run, grpo: Run, lines_of: Run) -> None:
    """Known fault 6. 2 micro-batches x 2 passes: 4 steps per rollout; 6 steps end in the middle of the second one."""
    options = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "num_iterations": 2, "max_steps": 6}
    assert covey(*grpo(reward_funcs="uneven", save_steps=4, **options)).code == 0
    records = lines_of("run/metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert sorted(path.name for path in Path("run/rollouts").iterdir()) == ["step_1.jsonl", "step_5.jsonl"]
    assert {row["weight_version"] for row in lines_of("run/rollouts/step_5.jsonl")} == {4}
    moved = [record["ratio/deviation"] > 1e-4 for record in records]
    assert moved == [False, True, True, True, False, True]
    assert ["reward/mean" in record for record in records] == [True, False, False, False, True, False]
    assert Path("run/checkpoint-6").is_dir() and not Path("run/checkpoint-8").exists()
    assert min(record["lr"] for record in records) > 0


def test_a_reward_that_always_abstains(
    covey: Run, grpo: Run, tiny: Path, lines_of: Run, weights_of: Run, same_weights: Run
) -> None:
    """Known faults 17 and 38: no NaN anywhere, nothing trained, and the log says so."""
    assert covey(*grpo(reward_funcs="nobody", max_steps=2, beta=0.0)).code == 0
    for record in lines_of("run/metrics.jsonl"):
        assert record["reward/mean"] is None and record["reward/std"] is None and record["reward/nobody"] is None
        assert record["update_skipped"] == 1 and record["grad_norm"] == 0 and record["loss"] == 0
        assert "nonfinite_values" not in record
    for row in lines_of("run/rollouts/step_1.jsonl"):
        assert row["total"] is None and row["advantage"] is None
    assert same_weights(weights_of("run/final"), weights_of(tiny))


def test_equal_rewards_teach_nothing(
    covey: Run, grpo: Run, tiny: Path, lines_of: Run, weights_of: Run, same_weights: Run
) -> None:
    assert covey(*grpo(reward_funcs="constant", max_steps=1)).code == 0
    (record,) = lines_of("run/metrics.jsonl")
    assert record["frac_reward_zero_std"] == 1 and record["reward/mean"] == pytest.approx(0.7)
    assert record["update_skipped"] == 1
    assert same_weights(weights_of("run/final"), weights_of(tiny))


@pytest.mark.parametrize("loss", ["bnpo", "dapo", "dr_grpo"])
def test_other_losses_and_truncated_rows_left_out(covey: Run, grpo: Run, lines_of: Run, loss: str) -> None:
    """With 2 tokens nearly every row is cut; without a trained row the step is skipped, never NaN (known fault 2)."""
    words = grpo(loss_type=loss, overlong_filter=True, max_completion_length=2, max_steps=2, beta=0.01)
    assert covey(*words).code == 0
    for record in lines_of("run/metrics.jsonl"):
        assert "nonfinite_values" not in record and math.isfinite(record["loss"])


def test_a_reward_that_raises(covey: Run, grpo: Run) -> None:
    ended = covey(*grpo(reward_funcs="raises_from_call_2", save_steps=1))
    assert ended.code == 2
    assert "ZeroDivisionError" in ended.err and "my own mistake" in ended.err and "raises_from_call_2" in ended.err
    assert "in raises_from_call_2\n" in ended.err  # the traceback of the user's own code
    check_complete(Path("run/checkpoint-1"))


def test_a_wrong_number_of_rewards(covey: Run, grpo: Run) -> None:
    """Known fault 18."""
    ended = covey(*grpo(reward_funcs="too_few"))
    assert ended.code == 2 and "'too_few'" in ended.err and "8 scores" in ended.err and "it returned 1" in ended.err


def test_columns_reach_the_reward_row_by_row(covey: Run, grpo: Run, lines_of: Run) -> None:
    """Known fault 25."""
    rows = [{"prompt": f"say {tag}", "tag": tag} for tag in "abcde"]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = grpo(dataset="rows.jsonl", countdown_num_puzzles=None, reward_funcs="tag_value", max_steps=5)
    assert covey(*words).code == 0
    seen = set()
    for step in range(1, 6):
        for row in lines_of(f"run/rollouts/step_{step}.jsonl"):
            assert row["prompt"] == f"say {row['columns']['tag']}"
            assert row["rewards"]["tag_value"] == "abcde".index(row["columns"]["tag"])
            seen.add(row["columns"]["tag"])
    assert seen == set("abcde")  # 5 steps of 2 prompts: two whole passes


def test_bad_rows_are_reported_together_or_dropped(covey: Run, grpo: Run, no_weights: Path) -> None:
    """Known fault 25."""
    rows: list[dict[str, Any]] = [{"prompt": "a", "tag": "a"}, {"tag": "b"}, {"prompt": None, "tag": "c"}]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {"dataset": "rows.jsonl", "countdown_num_puzzles": None, "reward_funcs": "tag_value"}
    ended = covey(*grpo(model=no_weights, **changes))
    assert ended.code == 2 and "row 2" in ended.err and "row 3" in ended.err and "row 1:" not in ended.err
    ended = covey(*grpo(model=no_weights, bad_rows="drop", dry_run=True, **changes))
    assert ended.code == 0 and "2 unusable rows dropped" in ended.err


def test_a_dotted_path_names_a_reward(covey: Run, grpo: Run, lines_of: Run) -> None:
    Path("my_module.py").write_text("def letters(prompt, completion):\n    return float(len(completion.text))\n")
    words = grpo(reward_funcs="my_module.letters", external_plugins=None, max_steps=1)
    assert covey(*words).code == 0
    (record,) = lines_of("run/metrics.jsonl")
    assert record["reward/letters"] > 1


def test_evaluation_while_training(covey: Run, grpo: Run, lines_of: Run) -> None:
    words = grpo(eval_steps=2, eval_num_prompts=3, eval_num_samples=2, reward_funcs=["format", "digits"], max_steps=4)
    assert covey(*words).code == 0
    records = lines_of("run/metrics.jsonl")
    assert ["eval/format" in record for record in records] == [False, True, False, True]
    assert records[1]["eval/n"] == 6 and records[1]["eval/format"] == 0 and records[1]["eval/accuracy"] is None
    held_out = {row["prompt_id"] for row in lines_of("run/eval/step_2.jsonl")}
    trained = {row["prompt_id"] for step in range(1, 5) for row in lines_of(f"run/rollouts/step_{step}.jsonl")}
    assert len(held_out) == 3 and not held_out & trained


def test_dry_run_prints_the_arithmetic_and_loads_nothing(covey: Run, grpo: Run, no_weights: Path) -> None:
    ended = covey(*grpo(model=no_weights, dry_run=True))
    assert ended.code == 0
    assert "8 completions = 2 prompts x 4 generations" in ended.err and "3 optimizer steps" in ended.err
    assert "learning_rate: 0.01" in ended.out
    assert not Path("run").exists()


def test_group_sizes_are_refused_before_a_model_loads(covey: Run, grpo: Run, no_weights: Path) -> None:
    """Known fault 24."""
    ended = covey(*grpo(model=no_weights, per_device_train_batch_size=7, num_generations=8))
    assert ended.code == 2 and " 7 " in ended.err and " 8 " in ended.err and "--num_generations 7" in ended.err
    ended = covey(*grpo(model=no_weights, num_generations=1))
    assert ended.code == 2 and "at least 2" in ended.err


def test_long_prompts_are_refused_or_dropped(covey: Run, grpo: Run, tiny: Path, no_weights: Path) -> None:
    rows = [{"prompt": "x" * size} for size in (5, 6, 7, 100)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {"dataset": "rows.jsonl", "countdown_num_puzzles": None, "max_length": 60, "max_steps": None}
    ended = covey(*grpo(model=no_weights, **changes))
    assert ended.code == 2 and "rows.jsonl:4" in ended.err and "--max_length 60" in ended.err
    ended = covey(*grpo(truncation_strategy="delete", num_train_epochs=2, **changes))
    assert ended.code == 0, ended.err
    assert "1 prompts longer than --max_length 60 dropped, 3 left" in ended.err
    # 3 prompts x 2 epochs / 2 prompts per rollout: 3 steps, not the 4 of the four rows
    assert Path("run/checkpoint-3").is_dir() and not Path("run/checkpoint-4").exists()


def test_what_is_wrong_is_said_before_weights_are_read(covey: Run, grpo: Run, no_weights: Path) -> None:
    ended = covey(*grpo(model=no_weights, max_completion_length=500))
    assert ended.code == 2 and "--max_completion_length 500" in ended.err and "512 positions" in ended.err
    ended = covey(*grpo(model="./nowhere"))
    assert ended.code == 2 and "no such folder" in ended.err
    ended = covey(*grpo(model=no_weights, reward_funcs="digitz"))
    assert ended.code == 2 and "Did you mean 'digits'?" in ended.err
    ended = covey(*grpo(model=no_weights, external_plugins="missing.py"))
    assert ended.code == 2 and "missing.py does not exist" in ended.err
    Path("rows.jsonl").write_text('{"prompt": "a"}\n')
    words = grpo(model=no_weights, dataset="rows.jsonl", countdown_num_puzzles=None, reward_funcs="accuracy")
    ended = covey(*words)
    assert ended.code == 2 and "nums and target (countdown)" in ended.err
    Path("used").mkdir()
    Path("used/metrics.jsonl").write_text('{"step": 1}\n')
    ended = covey(*grpo(model=no_weights, output_dir="used"))
    assert ended.code == 2 and "already holds a run" in ended.err
    ended = covey(*grpo(model=no_weights))
    assert ended.code == 2 and "cannot be loaded" in ended.err  # the weights are what is missing in the end


def test_only_the_data_seed_changes_the_order_and_nothing_else(covey: Run, grpo: Run, lines_of: Run) -> None:
    """Known fault 36. One rollout holds all rows, so each prompt must get the same completions in another place."""
    Path("rows.jsonl").write_text("".join(json.dumps({"prompt": f"number {i}"}) + "\n" for i in range(6)))
    found = []
    for data_seed in (1, 2):
        words = grpo(
            dataset="rows.jsonl", countdown_num_puzzles=None, per_device_train_batch_size=24, max_steps=1,
            data_seed=data_seed, output_dir=f"run{data_seed}",
        )  # fmt: skip
        assert covey(*words).code == 0
        found.append([(row["prompt"], row["completion"]) for row in lines_of(f"run{data_seed}/rollouts/step_1.jsonl")])
    assert found[0] != found[1] and sorted(found[0]) == sorted(found[1])


ADVANTAGES = AdvantageSettings("grpo", "group", (1.0,))


def scored(ids: tuple[int, ...], text: str, total: float | None) -> Scored:
    completion = Completion(ids, tuple(-0.5 * (i + 1) for i in range(len(ids))), text, "length")
    return Scored(completion, {"r": total}, total)


def test_sampled_ids_are_trained_as_they_are(tiny: Path) -> None:
    """Known fault 10: "1" and "2" sampled apart are a text that encodes to one id."""
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    ids = (tokenizer.convert_tokens_to_ids("1"), tokenizer.convert_tokens_to_ids("2"))
    text = tokenizer.decode(ids)
    assert text == "12" and len(tokenizer(text)["input_ids"]) == 1
    group = Group(Prompt("p", (), {}, (5, 6)), (scored(ids, text, 1.0), scored((7, *ids), "x" + text, 0.0)))
    batch = pack([group], overlong_filter=False)
    assert batch.prompt_ids.tolist() == [5, 6] and batch.completion_ids.tolist() == [*ids, 7, *ids]
    assert batch.rollout_logprobs.tolist() == [-0.5, -1.0, -0.5, -1.0, -1.5]


def test_rows_that_nobody_scored_leave_the_group() -> None:
    """Known faults 3 and 17: totals None, 0, 1, 0. Mean 1/3, sample std 0.57735: advantages -0.57735 and 1.1547."""
    members = tuple(scored((7, 8), "ab", total) for total in (None, 0.0, 1.0, 0.0))
    groups = [Group(Prompt("p", (), {}, (5,)), members)]
    batch = with_advantages(pack(groups, overlong_filter=False), groups, ADVANTAGES)
    shown = shown_advantages(batch, groups)
    assert batch.mask.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    expected = [0, 0, -0.57725, -0.57725, 1.1545, 1.1545, -0.57725, -0.57725]  # divided by std + 1e-4
    assert batch.advantages.tolist() == pytest.approx(expected, abs=1e-4)
    assert shown[0][0] is None and shown[0][1:] == pytest.approx([-0.57725, 1.1545, -0.57725], abs=1e-4)


def test_bfloat16(covey: Run, grpo: Run, lines_of: Run, weights_of: Run) -> None:
    """fp32 masters in the trainer state, the rounded copy as the model."""
    assert covey(*grpo(torch_dtype="bfloat16", beta=0.01)).code == 0
    records = lines_of("run/metrics.jsonl")
    assert all(record["rollout/logp_gap"] < 0.02 and "nonfinite_values" not in record for record in records)
    assert {tensor.dtype for tensor in weights_of("run/final").values()} == {torch.bfloat16}
    state = torch.load("run/checkpoint-3/trainer_state.pt", weights_only=True)
    assert {tensor.dtype for tensor in state["backend"]["masters"]} == {torch.float32}


def test_any_other_model_runs_through_its_own_forward(covey: Run, grpo: Run, tiny_gpt2: Path, lines_of: Run) -> None:
    assert covey(*grpo(model=tiny_gpt2, beta=0.05)).code == 0
    records = lines_of("run/metrics.jsonl")
    assert abs(records[0]["kl"]) < 1e-6 < records[2]["kl"]
    assert all(record["rollout/logp_gap"] < 1e-4 for record in records)
    assert not AutoModelForCausalLM.from_pretrained("run/final", output_loading_info=True)[1]["missing_keys"]


def test_sixty_steps_learn_and_keep_their_memory(covey: Run, grpo: Run, lines_of: Run) -> None:
    """Known fault 34, and the point of it all: the tiny model learns to write digits."""
    words = grpo(max_steps=60, save_steps=0, countdown_num_puzzles=64, lr_scheduler_type="constant")
    assert covey(*words).code == 0
    records = lines_of("run/metrics.jsonl")
    rewards = [record["reward/mean"] for record in records]
    assert sum(rewards[:5]) / 5 < 0.2 and sum(rewards[-5:]) / 5 > 0.6
    memory = [record["memory/rss_gb"] for record in records]
    assert max(memory[30:]) - memory[19] < 0.02
