"""``covey sft``: supervised training on worked solutions or on rows with an answer."""

from __future__ import annotations

from covey.backends.local import LocalBackend
from covey.build.data import Rows, training_texts
from covey.build.objects import adamw, data_seed, device_of, dtype_of, examples_plan, say, schedule_of
from covey.build.stage import Job, Outcome, open_resume, run_examples
from covey.config import DataConfig, SFTConfig
from covey.errors import UserError
from covey.models.load import context_length, load_model, load_tokenizer, save_model
from covey.models.tokenizer import ChatTokenizer, tokenize_prompt
from covey.runlog.display import Display
from covey.trainers.examples import ExampleSettings
from covey.trainers.sft import Example, sft_step
from covey.types import Prompt


def run_sft(
    config: SFTConfig, *, rows: Rows | None = None, display: Display | None = None, name: str = "SFT"
) -> Outcome | None:
    """Train on the completions of ``rows`` (or of the config's dataset); None after a dry run."""
    seed = data_seed(config.data, config.run)
    pairs = training_texts(config.data, config.countdown, config.data.dataset if rows is None else rows, seed, say)
    plan = examples_plan(config.batch, config.run, len(pairs))
    for line in plan.describe("example"):
        say(line)
    if config.run.dry_run:
        return None
    resume = open_resume(config, "sft")
    examples = encode(pairs, load_tokenizer(config.model.model), config)
    plan = examples_plan(config.batch, config.run, len(examples))  # dropped examples shorten an epoch
    loaded = load_model(
        config.model.model, device_of(config.model.device), checkpointing=config.batch.gradient_checkpointing
    )
    backend = LocalBackend(
        loaded.policy, None, adamw(config.optim), compute_dtype=dtype_of(config.model), with_entropy=False
    )
    settings = ExampleSettings(plan.examples_per_step, plan.per_device, config.data.dataset_shuffle, seed)
    schedule = schedule_of(config.optim, plan.total_steps)
    job = Job(
        kind="sft",
        name=name,
        config=config,
        save=lambda path: save_model(loaded, path),
        states={"backend": backend},
        total_steps=plan.total_steps,
        resume=resume,
        display=display,
    )
    return run_examples(job, lambda step: sft_step(backend, examples, settings, schedule, step))


def end_id(tokenizer: ChatTokenizer, model: str) -> int:
    """The end token that a completion is trained to stop with."""
    end: int | None = tokenizer.hf.eos_token_id
    if end is None:
        raise UserError(f"--model {model}: the tokenizer has no end token, so an answer could not end")
    return end


def within_limits(names: list[str], lengths: list[int], data: DataConfig, model: str, what: str) -> list[int]:
    """Positions of the examples no longer than ``--max_length`` and the model's context; never cut.

    The others stop the run (UserError), or are dropped and counted, as ``--truncation_strategy`` says.
    """
    limits = [limit for limit in (data.max_length, context_length(model)) if limit is not None]
    kept = [i for i, length in enumerate(lengths) if all(length <= limit for limit in limits)]
    longer = sorted(set(range(len(lengths))) - set(kept))
    if longer and data.truncation_strategy == "raise":
        raise UserError(
            f"example {names[longer[0]]} has {lengths[longer[0]]} tokens, {what}, more than {min(limits)}"
            " (--max_length, or the model's context); drop such examples with --truncation_strategy delete"
        )
    if not kept:
        raise UserError(f"all {len(lengths)} examples are longer than {min(limits)} tokens, {what}")
    if longer:
        say(f"{len(longer)} examples longer than {min(limits)} tokens dropped, {len(kept)} left")
    return kept


def encode(pairs: list[tuple[Prompt, str]], tokenizer: ChatTokenizer, config: SFTConfig) -> list[Example]:
    """Prompt and answer ids; the answer ends with the tokenizer's end token, which is learned like any other.

    Prompt and answer together longer than ``--max_length`` (or the model's context) are refused or dropped, never cut.
    """
    end = end_id(tokenizer, config.model.model)
    examples = []
    for raw, text in pairs:
        prompt = tokenize_prompt(tokenizer, raw, None, "raise")
        assert prompt is not None  # only a limit drops prompts
        examples.append(Example(prompt.token_ids, (*tokenizer.encode_text(text), end)))
    lengths = [len(example.prompt_ids) + len(example.completion_ids) for example in examples]
    names = [raw.id for raw, _ in pairs]
    kept = within_limits(names, lengths, config.data, config.model.model, "prompt and answer together")
    return [examples[i] for i in kept]
