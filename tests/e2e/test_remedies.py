"""Remedies against groups without variance, and curricula, in whole runs on a tiny model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from covey.algo.losses import LOSSES, ClipParams
from covey.algo.objective import Objective
from covey.backends.local import LocalBackend
from covey.backends.masters import AdamWParams
from covey.control.coefficients import Coefficients, KLControl
from covey.control.ladder import Ladder
from covey.control.rollouts import RolloutControl, RolloutLimits
from covey.control.source import Stream
from covey.models.load import load_model
from covey.rollout.base import Sampling
from covey.rollout.torch_engine import TorchEngine
from covey.tensors import make_batch
from covey.trainers.credit import CreditSettings
from covey.trainers.policy import PolicyParts, PolicySettings, optimizer_steps, rollout_batch, step_bounds
from covey.trainers.rollout import Rollout, RolloutParts, RolloutSettings
from covey.trainers.schedule import Schedule
from covey.types import Group, Prompt, Scored

Run = Callable[..., Any]

PLUGIN = '''
def hopeless(completions, **columns):
    return [0.0] * len(completions)


def on_two_prompts(completions, which, **columns):
    """Differs within the groups of the prompts 0 and 1 only."""
    return [float(sum(map(ord, text)) % 2) if w < 2 else 0.0 for text, w in zip(completions, which)]


def rarely(completions, **columns):
    """Right for about one completion in eight."""
    return [float(sum(map(ord, text)) % 8 == 0) for text in completions]
'''


@pytest.fixture
def words(grpo: Run, tmp_path: Path) -> Run:
    """A run on four prompts of the user's, in groups of 4, with rewards of 0 and 1."""
    (tmp_path / "zero_std.py").write_text(PLUGIN)
    rows = [{"prompt": f"say {i}", "which": i, "difficulty": i} for i in range(4)]
    (tmp_path / "four.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(**changes: Any) -> list[str]:
        options = {
            "dataset": "four.jsonl", "countdown_num_puzzles": None, "external_plugins": "zero_std.py",
            "reward_funcs": "hopeless", "per_device_train_batch_size": 16, "max_steps": 2, "dataset_shuffle": False,
        }  # fmt: skip
        return grpo(**{**options, **changes})

    return make


@pytest.mark.parametrize("outcome", ["partial", "skip"])
def test_hopeless_prompts_end_within_the_limit(
    covey: Run, words: Run, tiny: Path, lines_of: Run, weights_of: Run, same_weights: Run, outcome: str
) -> None:
    """Known fault 26: bounded tries, then the chosen outcome, and nothing moves."""
    ended = covey(*words(dynamic_sample=True, max_resample_times=2, resample_exhausted=outcome))
    assert ended.code == 0
    records = lines_of("run/metrics.jsonl")
    assert [r["groups/sampled"] for r in records] == [12, 12] and [r["groups/trained"] for r in records] == [0, 0]
    assert all(r["update_skipped"] == 1 and r["frac_reward_zero_std"] == 1 and r["reward/mean"] == 0 for r in records)
    assert same_weights(weights_of(tiny), weights_of("run/final"))
    events = [line["event"] for line in lines_of("run/events.jsonl")]
    assert len(events) == 2 and "0 of 4 groups have both outcomes, 12 were sampled" in events[0]
    assert events[0] in ended.out
    rows = lines_of("run/rollouts/step_1.jsonl")
    assert len(rows) == 48 and all(row["advantage"] is None for row in rows)  # nothing that was sampled is lost


def test_hopeless_prompts_may_stop_the_run(covey: Run, words: Run) -> None:
    ended = covey(*words(dynamic_sample=True, resample_exhausted="stop"))
    assert ended.code == 2 and "0 of 4 groups" in ended.err and "--max_resample_times" in ended.err


def test_good_groups_are_kept_and_the_denominator_is_theirs(
    covey: Run, words: Run, lines_of: Run, weights_of: Run
) -> None:
    """Known fault 26: the step on two kept groups is the step of a run on these two prompts alone."""
    options = {"reward_funcs": "on_two_prompts", "max_steps": 1, "max_resample_times": 1}
    assert covey(*words(dynamic_sample=True, **options)).code == 0
    (record,) = lines_of("run/metrics.jsonl")
    trained = [row for row in lines_of("run/rollouts/step_1.jsonl") if row["advantage"] is not None]
    assert record["groups/trained"] * 4 == len(trained) and {row["columns"]["which"] for row in trained} <= {0, 1}
    assert record["groups/sampled"] > record["groups/trained"] >= 2
    assert record["update_skipped"] == 0

    rows = [{"prompt": f"say {i}", "which": i} for i in range(2)]
    Path("half").mkdir()  # the same file name: it is part of the prompts' ids, on which the samples depend
    Path("half/four.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = {**options, "max_resample_times": None, "dataset": "half/four.jsonl", "per_device_train_batch_size": 8}
    dropped = {**options, "max_resample_times": None, "drop_zero_std": True}
    assert covey(*words(output_dir="two", **plain)).code == 0
    assert covey(*words(output_dir="dropped", **dropped)).code == 0
    two, four = lines_of("two/metrics.jsonl")[0], lines_of("dropped/metrics.jsonl")[0]
    assert four["groups/sampled"] == 4 and four["groups/trained"] == 2
    assert two["grad_norm"] == pytest.approx(four["grad_norm"], rel=1e-4)
    assert covey(*words(output_dir="kept", **{**options, "max_resample_times": None})).code == 0
    assert lines_of("kept/metrics.jsonl")[0]["grad_norm"] == pytest.approx(two["grad_norm"] / 2, rel=1e-4)


def test_a_group_grows_until_it_has_both_outcomes(covey: Run, words: Run, lines_of: Run) -> None:
    options = {"reward_funcs": "rarely", "adaptive_budget": True, "max_group_size": 12, "max_steps": 1}
    assert covey(*words(**options)).code == 0
    rows = lines_of("run/rollouts/step_1.jsonl")
    sizes = Counter(row["prompt_id"] for row in rows)
    assert set(sizes.values()) <= {4, 8, 12} and len(set(sizes.values())) > 1
    for prompt, size in sizes.items():
        rewards = [row["total"] for row in rows if row["prompt_id"] == prompt]
        if size < 12:
            assert len(set(rewards)) == 2  # both, so it was not sampled again
        if size > 4:
            assert len(set(rewards[: size - 4])) == 1  # one outcome, so it was
        texts = [row["completion"] for row in rows if row["prompt_id"] == prompt]
        assert size == 4 or texts[:4] != texts[4:8]  # other random numbers


def test_the_ladder_climbs_says_so_and_resumes(covey: Run, words: Run, lines_of: Run) -> None:
    ladder = ["temperature", "group_size", "refill"]
    options = {
        "zero_std_ladder": ladder, "zero_std_patience": 1, "max_resample_times": 1, "max_steps": 5, "beta": 0.01,
    }  # fmt: skip
    assert covey(*words(output_dir="straight", **options)).code == 0
    records = lines_of("straight/metrics.jsonl")
    assert [r["ladder/level"] for r in records] == [0, 1, 2, 3, 3]
    assert [r["temperature"] for r in records] == [1.0, 1.5, 1.5, 1.5, 1.5]
    assert [r["num_generations"] for r in records] == [4, 4, 8, 8, 8]
    assert [len(lines_of(f"straight/rollouts/step_{k}.jsonl")) for k in (1, 2, 3, 4)] == [16, 16, 32, 64]
    assert all(r["rollout/logp_gap"] < 1e-4 for r in records[:3])  # so the trainer's log-probs are those at 1.5
    events = lines_of("straight/events.jsonl")
    assert [e["event"].split(" on")[0] for e in events if "ladder" in e["event"]] == [f"ladder: {r}" for r in ladder]

    assert covey(*words(output_dir="run", **{**options, "max_steps": 2})).code == 0
    assert covey(*words(output_dir="run", resume_from_checkpoint="latest", **options)).code == 0
    assert [r["ladder/level"] for r in lines_of("run/metrics.jsonl")] == [0, 1, 2, 3, 3]
    assert lines_of("run/events.jsonl") == events


@pytest.mark.parametrize("kind", ["stages", "solve_rate"])
def test_curricula_run_and_resume(covey: Run, words: Run, lines_of: Run, kind: str) -> None:
    options = {"curriculum": kind, "reward_funcs": "on_two_prompts", "max_steps": 4, "lr_scheduler_type": "constant"}
    if kind == "stages":
        options |= {"curriculum_group_sizes": [4, 8], "num_generations": None}
    else:
        options["dataset_shuffle"] = None
    assert covey(*words(output_dir="straight", **options)).code == 0
    records = lines_of("straight/metrics.jsonl")
    if kind == "stages":
        assert [r["curriculum/stage"] for r in records] == [1, 1, 2, 2]
        assert [r["num_generations"] for r in records] == [4, 4, 8, 8]
        seen = [{row["columns"]["which"] for row in lines_of(f"straight/rollouts/step_{k}.jsonl")} for k in (1, 3)]
        assert seen == [{0, 1}, {2, 3}]
    else:
        assert records[-1]["curriculum/tried"] == 4

    assert covey(*words(output_dir="run", **{**options, "max_steps": 2})).code == 0
    ended = covey(*words(output_dir="run", resume_from_checkpoint="latest", **options))
    assert ended.code == 0
    if kind == "solve_rate":  # the length of a stage follows from the length of the run
        texts = [[row["completion"] for row in lines_of(f"{run}/rollouts/step_4.jsonl")] for run in ("run", "straight")]
        assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "options, said",
    [
        ({"max_resample_times": 5}, "is read only with --dynamic_sample true"),
        ({"zero_std_high": 0.9}, "is read only with --zero_std_ladder"),
        ({"zero_std_ladder": ["refill"], "dynamic_sample": True}, "has it on already"),
        ({"zero_std_ladder": ["refil"]}, "refill"),
        ({"zero_std_ladder": ["drop"], "zero_std_low": 0.8}, "below --zero_std_high 0.7"),
        ({"adaptive_budget": True, "max_group_size": 6}, "at least twice the size of a group"),
        ({"zero_std_ladder": ["temperature"], "ladder_temperature": 0.9}, "above --temperature 1"),
        ({"curriculum": "stages", "curriculum_group_sizes": [4, 5], "num_generations": None}, "sizes 5"),
        ({"curriculum": "solve_rate", "dataset_shuffle": True, "data_seed": 3, "curriculum_advance": 0.5}, "stages"),
        ({"dynamic_sample": True, "contrastive_coef": 0.1}, "--contrastive_coef needs the same number"),
        ({"drop_zero_std": True, "advantage_estimator": "reinforce_plus_plus"}, "of equal rewards has a gradient"),
        ({"loss_type": "gpg", "dynamic_sample": True, "resample_exhausted": "skip"}, "use partial or stop"),
        ({"curriculum": "stages", "num_generations": 8}, "--curriculum_group_sizes says it"),
    ],
)
def test_what_cannot_work_is_refused(
    covey: Run, words: Run, no_weights: Path, options: dict[str, Any], said: str
) -> None:
    ended = covey(*words(model=no_weights, **options))
    assert ended.code == 2 and said in ended.err


def test_stages_need_a_difficulty(covey: Run, words: Run, no_weights: Path) -> None:
    Path("plain.jsonl").write_text("".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in range(4)))
    ended = covey(*words(model=no_weights, dataset="plain.jsonl", curriculum="stages", num_generations=None))
    assert ended.code == 2 and "plain.jsonl:1 has no difficulty" in ended.err


# --- the parts of a step ---

CREDIT = CreditSettings(False, False, None, 1.0, None, 0.0)


def parts_with(tiny: Path, prompts: list[Prompt]) -> tuple[PolicyParts, PolicySettings]:
    loaded = load_model(str(tiny), torch.device("cpu"))
    engine = TorchEngine(loaded.policy, loaded.tokenizer.decode, loaded.end_ids)
    limits = RolloutLimits(8, 1.0, 1.5, None, 3, "partial")
    control = RolloutControl(Stream(len(prompts), 4, False, 0), Ladder(), limits, {p.id: p for p in prompts})
    sampling = Sampling(max_new_tokens=6)
    rollout = RolloutParts(prompts, engine, lambda *_: None, sampling, control, lambda _: None)  # type: ignore[arg-type,return-value]
    backend = LocalBackend(loaded.policy, None, AdamWParams())
    objective = Objective(LOSSES["grpo"].bind(ClipParams()), "k3", 0.0, True)
    schedule = Schedule("constant", 1e-2, 0, 10)
    settings = PolicySettings(RolloutSettings(1, 8, 1, 8, 0), CREDIT, "seq-mean-token-mean")
    return PolicyParts(rollout, backend, objective, schedule, Coefficients(KLControl(0.0))), settings


def test_a_carried_group_is_off_policy_against_the_weights_that_sampled_it(tiny: Path) -> None:
    prompts = [Prompt(f"p{i}", (), {}, (5 + i, 6, 7)) for i in range(2)]
    parts, settings = parts_with(tiny, prompts)
    engine, backend = parts.rollout.engine, parts.backend
    engine.load_weights(backend.named_weights(), version=0)

    def sampled(number: int) -> Group:
        [rows] = engine.generate([prompts[number]], 4, parts.rollout.sampling, seed=(0, number))
        return Group(prompts[number], tuple(Scored(row, {"r": k % 2}, float(k % 2)) for k, row in enumerate(rows)))

    carried = sampled(0)
    batch = rollout_batch(Rollout((carried,), (carried,), False, {}, (), 0, 0), parts, settings)
    assert batch.old_logprobs is None  # on-policy: the ratio is 1 by definition
    weights = torch.ones(batch.num_tokens) / batch.num_tokens
    backend.update([batch.with_fields(advantages=torch.ones_like(weights), weights=weights)], parts.current(), 1e-2)
    engine.load_weights(backend.named_weights(), version=1)
    fresh = sampled(1)
    mixed = rollout_batch(Rollout((carried, fresh), (fresh,), True, {}, (), 0, 0), parts, settings)
    now, _ = backend.logprobs([mixed])
    assert mixed.old_logprobs is not None
    first = mixed.row_of_token < 4
    assert torch.equal(mixed.old_logprobs[first], mixed.rollout_logprobs[first])
    assert (mixed.old_logprobs[first] - now[first]).abs().max() > 1e-3  # the policy has moved away from it
    assert torch.equal(mixed.old_logprobs[~first], now[~first])
    assert not parts.current(stale=True).on_policy and parts.current().on_policy


@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "token-mean", "prompt-mean-token-mean"])
def test_a_larger_group_has_no_larger_say(tiny: Path, aggregation: str) -> None:
    """The members of one group twice over: the same gradient, so the same weight for every distinct completion."""
    prompts = [Prompt("a", (), {}, (5,)), Prompt("b", (), {}, (6,))]
    parts, settings = parts_with(tiny, prompts)
    settings = PolicySettings(settings.rollout, settings.credit, aggregation)
    rows = [[[7, 8], [9]], [[10, 11, 12], [13, 14]]]
    plain = optimizer_steps(make_batch([[5], [6]], rows), (), parts, settings)[0]
    doubled = optimizer_steps(make_batch([[5], [6]], [rows[0], rows[1] + rows[1]]), (), parts, settings)[0]
    n = sum(map(len, rows[0]))
    own, twice = doubled.weights[:n], doubled.weights[n:].reshape(2, -1).sum(0)
    assert doubled.weights.sum() == pytest.approx(1.0) == plain.weights.sum()
    torch.testing.assert_close(own, plain.weights[:n])
    torch.testing.assert_close(twice, plain.weights[n:])


@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "token-mean"])
def test_weights_of_unequal_groups_add_up_to_one_in_every_step(tiny: Path, aggregation: str) -> None:
    """Also where rows are masked, and where a step's boundary cuts a group."""
    prompts = [Prompt("a", (), {}, (5,)), Prompt("b", (), {}, (6,))]
    parts, settings = parts_with(tiny, prompts)
    settings = PolicySettings(RolloutSettings(2, 4, 1, 8, 0), settings.credit, aggregation)
    batch = make_batch([[5], [6]], [[[7, 8]] * 2, [[9]] * 6])
    masked = batch.mask.clone()
    masked[-3:] = 0.0
    for mask in (batch.mask, masked):
        steps = optimizer_steps(batch.with_fields(mask=mask), (), parts, settings)
        assert [part.num_rows for part in steps] == [4, 4]
        assert [part.weights.sum().item() for part in steps] == pytest.approx([1.0, 1.0])


def test_a_short_rollout_serves_fewer_steps_not_smaller_ones() -> None:
    settings = RolloutSettings(4, 8, 1, 8, 0)
    assert [len(rows) for rows in step_bounds(32, settings)] == [8, 8, 8, 8]
    assert [len(rows) for rows in step_bounds(64, settings)] == [16, 16, 16, 16]
    assert [len(rows) for rows in step_bounds(20, settings)] == [6, 7, 7, 0]
    assert [len(rows) for rows in step_bounds(3, settings)] == [3, 0, 0, 0]
    assert [len(rows) for rows in step_bounds(0, settings)] == [0, 0, 0, 0]
