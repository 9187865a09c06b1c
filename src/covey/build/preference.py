"""``covey rlhf --rlhf_type dpo`` and ``rm``: training on pairs of a chosen and a rejected completion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from covey.algo.preference import PreferenceObjective
from covey.backends.local import LocalBackend, LocalValueBackend
from covey.build.data import Rows, TextPair, preference_pairs
from covey.build.objects import (
    adamw,
    data_seed,
    device_of,
    dtype_of,
    examples_plan,
    reference_of,
    say,
    schedule_of,
)
from covey.build.sft import end_id, within_limits
from covey.build.stage import Job, Outcome, Stateful, open_resume, run_examples
from covey.config import DPOConfig, RMConfig
from covey.models.load import (
    LoadedModel,
    check_can_classify,
    load_model,
    load_tokenizer,
    save_model,
    save_value_model,
)
from covey.models.tokenizer import ChatTokenizer, tokenize_prompt
from covey.models.value import ValueModel
from covey.runlog.display import Display
from covey.trainers.examples import ExampleSettings
from covey.trainers.loop import Advance
from covey.trainers.preference import Pair, dpo_step, rm_step

Config = TypeVar("Config", DPOConfig, RMConfig)


@dataclass(frozen=True)
class PairTrainer:
    """What differs between the two trainings on pairs."""

    state: Stateful
    save: Callable[[Path], None]
    advance: Advance


def run_dpo(
    config: DPOConfig, *, rows: Rows | None = None, display: Display | None = None, name: str = "DPO"
) -> Outcome | None:
    """Direct preference optimisation; None after a dry run."""
    return run_pairs(config, "dpo", dpo_trainer, rows, display, name)


def run_rm(
    config: RMConfig, *, rows: Rows | None = None, display: Display | None = None, name: str = "RM"
) -> Outcome | None:
    """A Bradley-Terry reward model, saved as transformers' sequence classification model; None after a dry run."""
    if not config.run.dry_run:
        check_can_classify(config.model.model)
    return run_pairs(config, "rm", rm_trainer, rows, display, name)


def run_pairs(
    config: Config,
    kind: str,
    make: Callable[[Config, LoadedModel, list[Pair], ExampleSettings, int], PairTrainer],
    rows: Rows | None,
    display: Display | None,
    name: str,
) -> Outcome | None:
    """Read and encode the pairs, load the model, train."""
    source, seed = config.data.dataset if rows is None else rows, data_seed(config.data, config.run)
    texts = preference_pairs(config.data, config.countdown, source, seed, say)
    for line in examples_plan(config.batch, config.run, len(texts)).describe("pair"):
        say(line)
    if config.run.dry_run:
        return None
    resume = open_resume(config, kind)
    pairs = encode(texts, load_tokenizer(config.model.model), config)
    plan = examples_plan(config.batch, config.run, len(pairs))  # dropped pairs shorten an epoch
    loaded = load_model(
        config.model.model, device_of(config.model.device), checkpointing=config.batch.gradient_checkpointing
    )
    settings = ExampleSettings(plan.examples_per_step, plan.per_device, config.data.dataset_shuffle, seed)
    trainer = make(config, loaded, pairs, settings, plan.total_steps)
    job = Job(
        kind=kind,
        name=name,
        config=config,
        save=trainer.save,
        states={"backend": trainer.state},
        total_steps=plan.total_steps,
        resume=resume,
        display=display,
    )
    return run_examples(job, trainer.advance)


def dpo_trainer(
    config: DPOConfig, loaded: LoadedModel, pairs: list[Pair], settings: ExampleSettings, total_steps: int
) -> PairTrainer:
    """The policy against a frozen copy of itself."""
    dtype = dtype_of(config.model)
    backend = LocalBackend(
        loaded.policy, reference_of(loaded, dtype), adamw(config.optim), compute_dtype=dtype, with_entropy=False
    )
    objective = PreferenceObjective(config.preference.loss_type, config.preference.beta, settings.per_step)
    schedule = schedule_of(config.optim, total_steps)
    return PairTrainer(
        backend,
        lambda path: save_model(loaded, path),
        lambda step: dpo_step(backend, pairs, settings, objective, schedule, step),
    )


def rm_trainer(
    config: RMConfig, loaded: LoadedModel, pairs: list[Pair], settings: ExampleSettings, total_steps: int
) -> PairTrainer:
    """The policy's backbone with a score head."""
    model = ValueModel(loaded.policy)
    backend = LocalValueBackend(model, adamw(config.optim), of_rows=True, compute_dtype=dtype_of(config.model))
    schedule = schedule_of(config.optim, total_steps)
    return PairTrainer(
        backend,
        lambda path: save_value_model(model, loaded, path),
        lambda step: rm_step(backend, pairs, settings, schedule, step),
    )


def encode(pairs: list[TextPair], tokenizer: ChatTokenizer, config: DPOConfig | RMConfig) -> list[Pair]:
    """Ids of prompt and both completions; each completion ends with the tokenizer's end token."""
    end = end_id(tokenizer, config.model.model)
    encoded: list[Pair] = []
    for pair in pairs:
        prompt = tokenize_prompt(tokenizer, pair.prompt, None, "raise")
        assert prompt is not None  # only a limit drops prompts
        both = [(*tokenizer.encode_text(text), end) for text in (pair.chosen, pair.rejected)]
        encoded.append(Pair(prompt.token_ids, both[0], both[1]))
    longest = [len(p.prompt_ids) + max(len(p.chosen_ids), len(p.rejected_ids)) for p in encoded]
    names = [pair.prompt.id for pair in pairs]
    kept = within_limits(names, longest, config.data, config.model.model, "prompt and longer completion together")
    return [encoded[i] for i in kept]
