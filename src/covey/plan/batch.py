"""Batch arithmetic of a run: units, products and step counts, checked before a model loads.

Units, as ms-swift and TRL count them: a *micro-batch* is ``per_device_train_batch_size`` completions on each device; an
*optimizer step* is ``gradient_accumulation_steps`` micro-batches; a *rollout* samples ``steps_per_generation``
micro-batches at once and is used for ``num_iterations`` passes. A *group* is the G completions of one prompt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from covey.errors import UserError

_LISTED = 8  # valid values named in a refusal; more would hide the nearest ones


@dataclass(frozen=True)
class BatchPlan:
    """The resolved arithmetic of a GRPO run; sizes count completions over all devices."""

    per_device: int
    accumulation: int
    world_size: int
    num_generations: int
    steps_per_generation: int
    num_iterations: int
    max_completion_length: int
    num_prompts: int
    total_steps: int

    @property
    def completions_per_step(self) -> int:
        """Completions behind one optimizer step."""
        return self.per_device * self.accumulation * self.world_size

    @property
    def generation_batch_size(self) -> int:
        """Completions sampled by one rollout."""
        return self.per_device * self.world_size * self.steps_per_generation

    @property
    def prompts_per_generation(self) -> int:
        """Prompts (= groups) of one rollout."""
        return self.generation_batch_size // self.num_generations

    @property
    def groups_per_step(self) -> float:
        """Groups behind one optimizer step; a fraction when a rollout's groups are split over several steps."""
        return self.completions_per_step / self.num_generations

    @property
    def steps_per_rollout(self) -> int:
        """Optimizer steps taken on one rollout, all passes together."""
        return self.steps_per_generation // self.accumulation * self.num_iterations

    @property
    def on_policy(self) -> bool:
        """True when each rollout is used for exactly one optimizer step, so the importance ratio is 1."""
        return self.steps_per_rollout == 1

    @property
    def num_rollouts(self) -> int:
        """Rollouts of the whole run; the last one may be used for fewer steps."""
        return math.ceil(self.total_steps / self.steps_per_rollout)

    @property
    def epochs(self) -> float:
        """Passes over the training prompts."""
        return self.num_rollouts * self.prompts_per_generation / self.num_prompts

    @property
    def max_tokens_per_rollout(self) -> int:
        """Upper bound on the completion tokens of one rollout."""
        return self.generation_batch_size * self.max_completion_length

    def describe(self) -> list[str]:
        """Lines for the start of a run."""
        split = self.completions_per_step % self.num_generations != 0
        return [
            f"rollout         {_count(self.generation_batch_size, 'completion')} ="
            f" {_count(self.prompts_per_generation, 'prompt')} x {self.num_generations} generations,"
            f" at most {self.max_tokens_per_rollout:,} completion tokens",
            f"optimizer step  {_count(self.completions_per_step, 'completion')} = {self.per_device} per device"
            f" x {_count(self.world_size, 'device')} x {_micro_count(self.accumulation)}"
            f" ({self.groups_per_step:g} groups{', split over steps; advantages use whole groups' if split else ''})",
            f"per rollout     {_count(self.steps_per_rollout, 'optimizer step')}"
            + (" (on-policy: the ratio is 1)" if self.on_policy else " (off-policy: the clip range matters)"),
            f"run             {_count(self.total_steps, 'optimizer step')}, {_count(self.num_rollouts, 'rollout')},"
            f" {self.epochs:.2f} epochs of {_count(self.num_prompts, 'prompt')},"
            f" at most {self.num_rollouts * self.max_tokens_per_rollout:,} completion tokens",
        ]


@dataclass(frozen=True)
class SFTPlan:
    """The resolved arithmetic of supervised training; sizes count examples over all devices."""

    per_device: int
    accumulation: int
    world_size: int
    num_examples: int
    total_steps: int

    @property
    def examples_per_step(self) -> int:
        """Examples behind one optimizer step."""
        return self.per_device * self.accumulation * self.world_size

    def describe(self, noun: str) -> list[str]:
        """Lines for the start of a run; ``noun``: what an example is called."""
        return [
            f"optimizer step  {_count(self.examples_per_step, noun)} = {self.per_device} per device"
            f" x {_count(self.world_size, 'device')} x {_micro_count(self.accumulation)}",
            f"run             {_count(self.total_steps, 'optimizer step')},"
            f" {self.total_steps * self.examples_per_step / self.num_examples:.2f} epochs"
            f" of {_count(self.num_examples, noun)}",
        ]


def plan_batches(
    *,
    per_device_train_batch_size: int,
    gradient_accumulation_steps: int,
    num_generations: int,
    max_completion_length: int,
    num_prompts: int,
    steps_per_generation: int | None = None,
    generation_batch_size: int | None = None,
    num_iterations: int = 1,
    world_size: int = 1,
    max_steps: int = -1,
    num_train_epochs: float = 1.0,
) -> BatchPlan:
    """The plan of a GRPO run over ``num_prompts`` training prompts; with ``max_steps`` -1 the epochs decide.

    A part of a rollout left at the end of the last epoch is filled from the start of the next one.
    Raises UserError, with the product and the nearest valid settings, when the sizes do not fit each other.
    """
    _check_positive(
        num_generations=num_generations,
        per_device_train_batch_size=per_device_train_batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
        num_iterations=num_iterations,
        max_completion_length=max_completion_length,
    )
    if num_prompts < 1:
        raise UserError("the training set has no prompts: check --dataset")
    micro = per_device_train_batch_size * world_size
    micro_batches = _micro_batches(micro, gradient_accumulation_steps, steps_per_generation, generation_batch_size)
    follows_accumulation = steps_per_generation is None and generation_batch_size is None
    _check_whole_groups(per_device_train_batch_size, world_size, micro_batches, num_generations, follows_accumulation)
    steps_per_rollout = micro_batches // gradient_accumulation_steps * num_iterations
    prompts_per_rollout = micro * micro_batches // num_generations
    return BatchPlan(
        per_device=per_device_train_batch_size,
        accumulation=gradient_accumulation_steps,
        world_size=world_size,
        num_generations=num_generations,
        steps_per_generation=micro_batches,
        num_iterations=num_iterations,
        max_completion_length=max_completion_length,
        num_prompts=num_prompts,
        total_steps=_total_steps(num_prompts, prompts_per_rollout, steps_per_rollout, max_steps, num_train_epochs),
    )


def plan_sft(
    *,
    per_device_train_batch_size: int,
    gradient_accumulation_steps: int,
    num_examples: int,
    world_size: int = 1,
    max_steps: int = -1,
    num_train_epochs: float = 1.0,
) -> SFTPlan:
    """The plan of a supervised run over ``num_examples`` examples; raises UserError as ``plan_batches`` does."""
    _check_positive(
        per_device_train_batch_size=per_device_train_batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
    )
    if num_examples < 1:
        raise UserError("the training set has no examples: check --dataset")
    per_step = per_device_train_batch_size * gradient_accumulation_steps * world_size
    return SFTPlan(
        per_device=per_device_train_batch_size,
        accumulation=gradient_accumulation_steps,
        world_size=world_size,
        num_examples=num_examples,
        total_steps=_total_steps(num_examples, per_step, 1, max_steps, num_train_epochs),
    )


def check_group_size(num_generations: int) -> None:
    """Refuse a group too small to have a relative advantage (UserError)."""
    if num_generations < 2:
        raise UserError(
            f"--num_generations {num_generations}: needs at least 2 completions per prompt, because an advantage is"
            " relative to the other completions of the same prompt (8 is usual); only"
            " --advantage_estimator reinforce_plus_plus and --rlhf_type ppo do without"
        )


def _micro_batches(micro: int, accumulation: int, steps: int | None, generation_batch: int | None) -> int:
    """Micro-batches of one rollout from the two ways to say it; ``micro`` counts completions over all devices."""
    if generation_batch is not None:
        if generation_batch < 1 or generation_batch % micro:
            raise UserError(
                f"--generation_batch_size {generation_batch} completions is not a multiple of one micro-batch of"
                f" {micro} completions (--per_device_train_batch_size x devices); nearest valid:"
                f" {_or(nearest_multiples(generation_batch, micro))}"
            )
        if steps is not None and steps * micro != generation_batch:
            raise UserError(
                f"--generation_batch_size {generation_batch} and --steps_per_generation {steps} disagree: {steps}"
                f" micro-batches of {micro} completions are {steps * micro}; give only one of them"
            )
        steps = generation_batch // micro
    if steps is None:
        return accumulation
    if steps < 1 or steps % accumulation:
        raise UserError(
            f"a rollout of {steps} micro-batches (--steps_per_generation) does not hold a whole number of optimizer"
            f" steps of {accumulation} micro-batches (--gradient_accumulation_steps); nearest valid"
            f" --steps_per_generation: {_or(nearest_multiples(steps, accumulation))}"
        )
    return steps


def _check_whole_groups(per_device: int, world: int, steps: int, group: int, follows_accumulation: bool) -> None:
    total = per_device * world * steps
    if total % group == 0:
        return
    steps_flag = "--gradient_accumulation_steps" if follows_accumulation else "--steps_per_generation"
    fitting = [size for size in range(2, total + 1) if total % size == 0]
    nearest = sorted(sorted(fitting, key=lambda size: abs(size - group))[:_LISTED])
    options = [f"--num_generations {_or(nearest)}"] if nearest else []
    options.append(
        f"--per_device_train_batch_size {_or(nearest_multiples(per_device, group // math.gcd(group, world * steps)))}"
    )
    options.append(f"{steps_flag} {_or(nearest_multiples(steps, group // math.gcd(group, world * per_device)))}")
    raise UserError(
        f"a rollout of {total} completions cannot be cut into whole groups of {group} (--num_generations): {total} ="
        f" {per_device} completions per device (--per_device_train_batch_size) x {_count(world, 'device')} x"
        f" {_micro_count(steps)} ({steps_flag}); batch sizes count completions, not prompts."
        f" Nearest valid settings: {'; or '.join(options)}"
    )


def nearest_multiples(value: int, step: int) -> list[int]:
    """The multiples of ``step`` next to ``value``: below (if positive) and above."""
    below = value // step * step
    return [multiple for multiple in (below, below + step) if multiple > 0]


def _total_steps(rows: int, rows_per_draw: int, steps_per_draw: int, max_steps: int, epochs: float) -> int:
    """Optimizer steps when each draw takes ``rows_per_draw`` rows and is used for ``steps_per_draw`` steps."""
    if max_steps > 0:
        return max_steps
    if epochs <= 0:
        raise UserError(f"--num_train_epochs {epochs:g}: must be above 0, or give --max_steps")
    draws = math.ceil(round(rows * epochs / rows_per_draw, 9))  # rounded, or 0.1 x 30 / 3 would be 2 draws
    return draws * steps_per_draw


def _check_positive(**values: int) -> None:
    for flag, value in values.items():
        if value < 1:
            raise UserError(f"--{flag} {value}: must be at least 1")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def _micro_count(number: int) -> str:
    return f"{number:,} micro-{'batch' if number == 1 else 'batches'}"


def _or(values: list[int]) -> str:
    return " or ".join(str(value) for value in values)
