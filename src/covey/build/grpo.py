"""``covey rlhf --rlhf_type grpo``: assemble the objects of a GRPO run and drive it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.algo.losses import LOSSES
from covey.backends.local import LocalBackend
from covey.build.data import Rows, heldout_prompts, reward_set, training_prompts
from covey.build.objects import (
    adamw,
    check_context,
    device_of,
    dtype_of,
    engine_of,
    objective_of,
    reference_of,
    sampling_of,
    say,
    schedule_of,
)
from covey.build.stage import Outcome, Resume, Stage, open_resume, restore, training_stage
from covey.config import GRPOConfig
from covey.evals.accuracy import evaluate
from covey.models.load import load_model, load_tokenizer
from covey.models.tokenizer import ChatTokenizer, tokenize_prompts
from covey.plan.batch import BatchPlan, plan_batches
from covey.rewards import RewardSet
from covey.rollout.base import RolloutEngine
from covey.runlog.display import Display
from covey.runlog.writer import write_rollouts
from covey.trainers.grpo import GRPOParts, GRPOSettings, grpo_step
from covey.types import Prompt

Rewards = Sequence[str | Callable[..., Any]]


@dataclass(frozen=True)
class Inputs:
    """Everything that is read and checked before a model loads."""

    score: RewardSet
    prompts: list[Prompt]
    held_out: list[Prompt]
    plan: BatchPlan


def run_grpo(
    config: GRPOConfig,
    *,
    rows: Rows | None = None,
    val_rows: Rows | None = None,
    rewards: Rewards | None = None,
    display: Display | None = None,
    name: str = "GRPO",
) -> Outcome | None:
    """Train; None after a dry run. ``rows``, ``val_rows`` and ``rewards`` replace what the config names."""
    inputs = read_inputs(config, rows, val_rows, rewards)
    for line in inputs.plan.describe():
        say(line)
    if config.run.dry_run:
        return None
    resume = open_resume(config.run, config)
    inputs = tokenized(config, inputs, load_tokenizer(config.model.model))
    return train(config, inputs, resume, display, name)


def read_inputs(config: GRPOConfig, rows: Rows | None, val_rows: Rows | None, rewards: Rewards | None) -> Inputs:
    """Rewards, prompts and the batch plan; UserError on anything wrong with them."""
    seed = data_seed(config)
    source = config.data.dataset if rows is None else rows
    prompts = training_prompts(config.data, config.countdown, source, seed, say)
    held_out: list[Prompt] = []
    if config.eval.eval_steps:
        val_source = (config.eval.val_dataset or "countdown") if val_rows is None else val_rows
        held_out = heldout_prompts(
            config.data, config.countdown, val_source, config.eval.eval_num_prompts, config.run.seed, say
        )
    score = reward_set(config.reward, [*prompts, *held_out], rewards)
    return Inputs(score, prompts, held_out, batch_plan(config, len(prompts)))


def batch_plan(config: GRPOConfig, num_prompts: int) -> BatchPlan:
    batch, rollout = config.batch, config.rollout
    return plan_batches(
        per_device_train_batch_size=batch.per_device_train_batch_size,
        gradient_accumulation_steps=batch.gradient_accumulation_steps,
        num_generations=rollout.num_generations,
        max_completion_length=config.sampling.max_completion_length,
        num_prompts=num_prompts,
        steps_per_generation=rollout.steps_per_generation,
        generation_batch_size=rollout.generation_batch_size,
        num_iterations=rollout.num_iterations,
        max_steps=config.run.max_steps,
        num_train_epochs=config.run.num_train_epochs,
    )


def data_seed(config: GRPOConfig) -> int:
    return config.run.seed if config.data.data_seed is None else config.data.data_seed


def tokenized(config: GRPOConfig, inputs: Inputs, tokenizer: ChatTokenizer) -> Inputs:
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


def train(config: GRPOConfig, inputs: Inputs, resume: Resume | None, display: Display | None, name: str) -> Outcome:
    """Load the model and run the steps."""
    plan, dtype = inputs.plan, dtype_of(config.model)
    loaded = load_model(
        config.model.model, device_of(config.model.device), checkpointing=config.batch.gradient_checkpointing
    )
    objective = objective_of(config.algo, plan.on_policy)
    reference = reference_of(loaded, dtype) if objective.reads_ref else None
    backend = LocalBackend(
        loaded.policy, reference, adamw(config.optim), compute_dtype=dtype, temperature=config.sampling.temperature
    )
    start = restore(backend, resume)
    engine = engine_of(loaded)
    engine.load_weights(backend.named_weights(), version=start)
    sampling = sampling_of(config.sampling)
    if sampling.is_filtered:
        say(
            "note: top_k, top_p and min_p sample from a truncated distribution, but the loss and the rollout/* metrics"
            " use the full one, so both are approximate"
        )
    kind = {"rlhf_type": "grpo"}
    with training_stage(config, config.run, kind, loaded, backend, plan.total_steps, resume, display, name) as stage:
        parts = GRPOParts(
            prompts=inputs.prompts,
            engine=engine,
            backend=backend,
            score=inputs.score.score,
            objective=objective,
            sampling=sampling,
            schedule=schedule_of(config.optim, plan.total_steps),
            note=stage.note,
        )
        settings = settings_of(config, plan)
        if inputs.held_out:
            stage.loop.eval_steps = config.eval.eval_steps
            stage.loop.evaluate = lambda step: eval_in_training(config, inputs, engine, stage, step)
        return stage.run(lambda step: grpo_step(parts, settings, step), start)


def settings_of(config: GRPOConfig, plan: BatchPlan) -> GRPOSettings:
    return GRPOSettings(
        num_generations=plan.num_generations,
        prompts_per_rollout=plan.prompts_per_generation,
        rows_per_step=plan.completions_per_step,
        rows_per_micro_batch=plan.per_device,
        num_iterations=plan.num_iterations,
        advantage_estimator=config.algo.advantage_estimator,
        scale_rewards=config.algo.scale,
        aggregation=LOSSES[config.algo.loss_type].aggregation,
        overlong_filter=config.algo.overlong_filter,
        shuffle=config.data.dataset_shuffle,
        seed=config.run.seed,
        data_seed=data_seed(config),
    )


def eval_in_training(
    config: GRPOConfig, inputs: Inputs, engine: RolloutEngine, stage: Stage, step: int
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
