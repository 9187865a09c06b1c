"""``covey rlhf --rlhf_type dpo`` and ``rm``: training on pairs of a chosen and a rejected completion."""

from __future__ import annotations

from collections.abc import Iterator

from covey.algo.preference import PreferenceObjective
from covey.backends.local import LocalBackend, LocalValueBackend
from covey.build.data import Rows, TextPair, preference_pairs
from covey.build.objects import adamw, device_of, dtype_of, reference_of, say, schedule_of
from covey.build.sft import end_id, within_limits
from covey.build.stage import Outcome, open_resume, restore, training_stage
from covey.config import DPOConfig, RMConfig
from covey.models.load import load_model, load_tokenizer, save_model, save_value_model
from covey.models.tokenizer import ChatTokenizer, tokenize_prompt
from covey.models.value import ValueModel
from covey.plan.batch import SFTPlan, plan_sft
from covey.runlog.display import Display
from covey.trainers.preference import Pair, PairSettings, dpo_step, rm_step
from covey.types import StepResult


def run_dpo(
    config: DPOConfig, *, rows: Rows | None = None, display: Display | None = None, name: str = "DPO"
) -> Outcome | None:
    """Direct preference optimisation; None after a dry run."""
    pairs = read_pairs(config, rows)
    if pairs is None:
        return None
    resume = open_resume(config.run, config)
    encoded = encode(pairs, load_tokenizer(config.model.model), config)
    plan = pair_plan(config, len(encoded))
    dtype = dtype_of(config.model)
    loaded = load_model(
        config.model.model, device_of(config.model.device), checkpointing=config.batch.gradient_checkpointing
    )
    backend = LocalBackend(
        loaded.policy, reference_of(loaded, dtype), adamw(config.optim), compute_dtype=dtype, with_entropy=False
    )
    states = {"backend": backend}
    start = restore(states, resume)
    objective = PreferenceObjective(config.preference.loss_type, config.preference.beta, plan.examples_per_step)
    settings, schedule = pair_settings(config, plan), schedule_of(config.optim, plan.total_steps)
    with training_stage(
        config,
        config.run,
        {"rlhf_type": "dpo"},
        lambda path: save_model(loaded, path),
        states,
        plan.total_steps,
        resume,
        display,
        name,
    ) as stage:

        def advance(step: int) -> Iterator[StepResult]:
            stage.note(f"update {step + 1}")
            return dpo_step(backend, encoded, settings, objective, schedule, step)

        return stage.run(advance, start)


def run_rm(
    config: RMConfig, *, rows: Rows | None = None, display: Display | None = None, name: str = "RM"
) -> Outcome | None:
    """A Bradley-Terry reward model, saved as transformers' sequence classification model; None after a dry run."""
    pairs = read_pairs(config, rows)
    if pairs is None:
        return None
    resume = open_resume(config.run, config)
    encoded = encode(pairs, load_tokenizer(config.model.model), config)
    plan = pair_plan(config, len(encoded))
    loaded = load_model(
        config.model.model, device_of(config.model.device), checkpointing=config.batch.gradient_checkpointing
    )
    model = ValueModel(loaded.policy)
    backend = LocalValueBackend(model, adamw(config.optim), of_rows=True, compute_dtype=dtype_of(config.model))
    states = {"backend": backend}
    start = restore(states, resume)
    settings, schedule = pair_settings(config, plan), schedule_of(config.optim, plan.total_steps)
    with training_stage(
        config,
        config.run,
        {"rlhf_type": "rm"},
        lambda path: save_value_model(model, loaded, path),
        states,
        plan.total_steps,
        resume,
        display,
        name,
    ) as stage:

        def advance(step: int) -> Iterator[StepResult]:
            stage.note(f"update {step + 1}")
            return rm_step(backend, encoded, settings, schedule, step)

        return stage.run(advance, start)


def read_pairs(config: DPOConfig | RMConfig, rows: Rows | None) -> list[TextPair] | None:
    """The pairs as texts, and what will be done with them; None after a dry run."""
    source = config.data.dataset if rows is None else rows
    pairs = preference_pairs(config.data, config.countdown, source, data_seed(config), say)
    for line in pair_plan(config, len(pairs)).describe("pair"):
        say(line)
    return None if config.run.dry_run else pairs


def data_seed(config: DPOConfig | RMConfig) -> int:
    return config.run.seed if config.data.data_seed is None else config.data.data_seed


def pair_plan(config: DPOConfig | RMConfig, num_pairs: int) -> SFTPlan:
    return plan_sft(
        per_device_train_batch_size=config.batch.per_device_train_batch_size,
        gradient_accumulation_steps=config.batch.gradient_accumulation_steps,
        num_examples=num_pairs,
        max_steps=config.run.max_steps,
        num_train_epochs=config.run.num_train_epochs,
    )


def pair_settings(config: DPOConfig | RMConfig, plan: SFTPlan) -> PairSettings:
    return PairSettings(plan.examples_per_step, plan.per_device, config.data.dataset_shuffle, data_seed(config))


def encode(pairs: list[TextPair], tokenizer: ChatTokenizer, config: DPOConfig | RMConfig) -> list[Pair]:
    """Ids of prompt and both completions; each completion ends with the tokenizer's end token."""
    end = end_id(tokenizer, config.model.model)
    encoded: list[tuple[str, Pair]] = []
    for pair in pairs:
        prompt = tokenize_prompt(tokenizer, pair.prompt, None, "raise")
        assert prompt is not None  # only a limit drops prompts
        both = [(*tokenizer.encode_text(text), end) for text in (pair.chosen, pair.rejected)]
        encoded.append((pair.prompt.id, Pair(prompt.token_ids, both[0], both[1])))
    longest = [len(p.prompt_ids) + max(len(p.chosen_ids), len(p.rejected_ids)) for _, p in encoded]
    names = [name for name, _ in encoded]
    kept = within_limits(names, longest, config.data, config.model.model, "prompt and longer completion together")
    return [encoded[i][1] for i in kept]
