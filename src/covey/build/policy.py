"""What GRPO and PPO runs have in common: prompts and rewards, batch plan, models, settings of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from covey.algo.objective import Objective
from covey.backends.local import LocalBackend
from covey.build.data import Rows, heldout_prompts, reward_set, training_prompts
from covey.build.objects import (
    adamw,
    check_context,
    check_objective,
    credit_of,
    data_seed,
    describe_objective,
    device_of,
    dtype_of,
    engine_of,
    reference_of,
    sampling_of,
    say,
    schedule_of,
)
from covey.build.stage import Job, Resume, Stage, Stateful, open_resume, restore
from covey.build.steering import Steering, source_of
from covey.config import GRPOConfig, PolicyConfig
from covey.evals.accuracy import evaluate
from covey.models.load import LoadedModel, load_model, load_tokenizer, save_model
from covey.models.tokenizer import ChatTokenizer, tokenize_prompts
from covey.plan.batch import BatchPlan, plan_batches
from covey.rewards import RewardSet, ScoredBatch
from covey.rollout.base import RolloutEngine, Sampling
from covey.rollout.torch_engine import TorchEngine
from covey.runlog.display import Display
from covey.runlog.writer import write_rollouts
from covey.trainers.policy import PolicyParts, PolicySettings
from covey.trainers.rollout import RolloutParts, RolloutSettings
from covey.types import Completion, Prompt

Rewards = Sequence[str | Callable[..., Any]]


@dataclass(frozen=True)
class Inputs:
    """Everything that is read and checked before a model loads."""

    score: RewardSet
    prompts: list[Prompt]
    held_out: list[Prompt]
    plan: BatchPlan


def prepare(
    config: PolicyConfig, kind: str, rows: Rows | None, val_rows: Rows | None, rewards: Rewards | None
) -> tuple[Inputs, Resume | None] | None:
    """Read and check everything, say what will be done, find the checkpoint to resume; None after a dry run."""
    inputs = read_inputs(config, rows, val_rows, rewards)
    for line in [*inputs.plan.describe(), *describe_objective(config, inputs.plan)]:
        say(line)
    if config.run.dry_run:
        return None
    resume = open_resume(config, kind)
    return tokenized(config, inputs, load_tokenizer(config.model.model)), resume


def read_inputs(config: PolicyConfig, rows: Rows | None, val_rows: Rows | None, rewards: Rewards | None) -> Inputs:
    """Rewards, prompts and the batch plan; UserError on anything wrong with them."""
    seed = data_seed(config.data, config.run)
    source = config.data.dataset if rows is None else rows
    prompts = training_prompts(config.data, config.countdown, source, seed, say)
    held_out: list[Prompt] = []
    if config.eval.eval_steps:
        val_source = (config.eval.val_dataset or "countdown") if val_rows is None else val_rows
        held_out = heldout_prompts(
            config.data, config.countdown, val_source, config.eval.eval_num_prompts, config.run.seed, say
        )
    score = reward_set(config, [*prompts, *held_out], rewards)
    plan = batch_plan(config, len(prompts))
    check_objective(config, plan)
    source_of(config, prompts, plan)  # refuses a curriculum that does not fit
    return Inputs(score, prompts, held_out, plan)


def batch_plan(config: PolicyConfig, num_prompts: int) -> BatchPlan:
    batch, rollout = config.batch, config.rollout
    sizes = config.curriculum.group_sizes if isinstance(config, GRPOConfig) else None
    return plan_batches(
        per_device_train_batch_size=batch.per_device_train_batch_size,
        gradient_accumulation_steps=batch.gradient_accumulation_steps,
        num_generations=sizes[0] if sizes else rollout.num_generations,
        max_completion_length=config.sampling.max_completion_length,
        num_prompts=num_prompts,
        steps_per_generation=rollout.steps_per_generation,
        generation_batch_size=rollout.generation_batch_size,
        num_iterations=rollout.num_iterations,
        max_steps=config.run.max_steps,
        num_train_epochs=config.run.num_train_epochs,
    )


def tokenized(config: PolicyConfig, inputs: Inputs, tokenizer: ChatTokenizer) -> Inputs:
    """The same inputs with token ids, long prompts handled as the config says."""
    limit, strategy = config.data.max_length, config.data.truncation_strategy
    plan = inputs.plan
    prompts, dropped = tokenize_prompts(tokenizer, inputs.prompts, limit, strategy)
    if dropped:
        say(f"{dropped} prompts longer than --max_length {limit} dropped, {len(prompts)} left")
        plan = batch_plan(config, len(prompts))  # an epoch is shorter now
        say(plan.describe()[-1])
    held_out, lost = tokenize_prompts(tokenizer, inputs.held_out, limit, strategy) if inputs.held_out else ([], 0)
    if lost:
        say(f"{lost} held-out prompts longer than --max_length {limit} dropped, {len(held_out)} left")
    longest = max(len(prompt.token_ids) for prompt in [*prompts, *held_out])
    check_context(config.model.model, longest, config.sampling.max_completion_length)
    return Inputs(inputs.score, prompts, held_out, plan)


@dataclass(frozen=True)
class Learner:
    """The models and objects of a run, loaded, before its stage is opened."""

    loaded: LoadedModel
    backend: LocalBackend
    engine: TorchEngine
    sampling: Sampling
    dtype: torch.dtype
    device: torch.device


def load_learner(config: PolicyConfig) -> Learner:
    """Load the policy, its reference where there is a KL term, and the engine."""
    dtype, device = dtype_of(config.model), device_of(config.model.device)
    loaded = load_model(config.model.model, device, checkpointing=config.batch.gradient_checkpointing)
    reference = reference_of(loaded, dtype) if config.algo.beta else None
    backend = LocalBackend(loaded.policy, reference, adamw(config.optim), compute_dtype=dtype)
    sampling = sampling_of(config.sampling)
    if sampling.is_filtered:
        say(
            "note: top_k, top_p and min_p sample from a truncated distribution, but the loss and the rollout/* metrics"
            " use the full one, so both are approximate"
        )
    return Learner(loaded, backend, engine_of(loaded), sampling, dtype, device)


def open_job(
    config: PolicyConfig,
    kind: str,
    name: str,
    inputs: Inputs,
    learner: Learner,
    states: Mapping[str, Stateful],
    resume: Resume | None,
    display: Display | None,
) -> tuple[Job, int]:
    """The job, and the step it continues after: states restored, and the engine given the policy's weights."""
    start = restore(states, resume)
    learner.engine.load_weights(learner.backend.named_weights(), version=start)
    job = Job(
        kind=kind,
        name=name,
        config=config,
        save=lambda path: save_model(learner.loaded, path),
        states=states,
        total_steps=inputs.plan.total_steps,
        resume=resume,
        display=display,
    )
    return job, start


def parts_of(
    config: PolicyConfig,
    inputs: Inputs,
    learner: Learner,
    objective: Objective,
    steering: Steering,
    steps: int,
    stage: Stage,
) -> PolicyParts:
    """The objects of a step, of which the policy takes ``steps``; also sets up the evaluations during training."""
    inputs.score.check = stage.stop.check

    def score(prompts: Sequence[Prompt], completions: Sequence[Completion]) -> ScoredBatch:
        inputs.score.at(learner.engine.weight_version, inputs.plan.total_steps)
        return inputs.score.score(prompts, completions)

    if inputs.held_out:
        stage.loop.eval_steps = config.eval.eval_steps
        stage.loop.evaluate = lambda step: eval_in_training(config, inputs, learner.engine, stage, step)
    return PolicyParts(
        rollout=RolloutParts(
            inputs.prompts, learner.engine, score, learner.sampling, steering.rollouts, stage.note
        ),
        backend=learner.backend,
        objective=objective,
        schedule=schedule_of(config.optim, steps),
        coefficients=steering.coefficients,
    )


def settings_of(config: PolicyConfig, plan: BatchPlan) -> PolicySettings:
    rollout = RolloutSettings(
        steps_per_pass=plan.steps_per_rollout // plan.num_iterations,
        rows_per_step=plan.completions_per_step,
        num_iterations=plan.num_iterations,
        rows_per_micro_batch=plan.per_device,
        seed=config.run.seed,
    )
    return PolicySettings(rollout, credit_of(config), config.algo.aggregation)


def eval_in_training(
    config: PolicyConfig, inputs: Inputs, engine: RolloutEngine, stage: Stage, step: int
) -> Mapping[str, float | None]:
    """``eval/*`` metrics on the held-out prompts, and their completions in ``eval/step_N.jsonl``."""
    result, groups = evaluate(
        engine,
        inputs.held_out,
        config.eval.eval_num_samples,
        sampling_of(config.sampling),
        inputs.score.score,
        seed=(config.run.seed, -1),
        progress=lambda done, total: stage.note(f"evaluation {done}/{total}"),
    )
    folder = stage.loop.writer.folder / "eval"
    folder.mkdir(exist_ok=True)
    write_rollouts(folder / f"step_{step}.jsonl", step, groups)
    return {f"eval/{key}": value for key, value in result.to_dict().items() if not isinstance(value, list)}
