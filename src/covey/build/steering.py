"""What steers a run, from its config: coefficients, the source of prompts, remedies."""

from __future__ import annotations

from dataclasses import dataclass

from covey.algo.losses import LOSSES
from covey.build.data import difficulties
from covey.build.objects import data_seed
from covey.build.stage import Stateful
from covey.config import GRPOConfig, PolicyConfig
from covey.control.coefficients import (
    Coefficients,
    EntropyControl,
    KLControl,
    KLRule,
    ProportionalRule,
    ThresholdRule,
)
from covey.control.ladder import Ladder
from covey.control.rollouts import RolloutControl, RolloutLimits
from covey.control.source import PromptSource, SolveRates, Stages, Stream
from covey.errors import UserError
from covey.plan.batch import BatchPlan
from covey.types import Prompt


@dataclass(frozen=True)
class Steering:
    """The controllers of a run; all of their state is in its checkpoints."""

    coefficients: Coefficients
    rollouts: RolloutControl

    @property
    def states(self) -> dict[str, Stateful]:
        return {"coefficients": self.coefficients, "rollouts": self.rollouts}


def steering_of(config: PolicyConfig, prompts: list[Prompt], plan: BatchPlan) -> Steering:
    """The controllers of a config for these prompts; UserError where they do not fit."""
    return Steering(coefficients_of(config), rollouts_of(config, prompts, plan))


def coefficients_of(config: PolicyConfig) -> Coefficients:
    """What moves beta and the weight of the entropy bonus."""
    algo, moving = config.algo, config.coefficients
    rules: dict[str, KLRule | None] = {
        "fixed": None,
        "threshold": ThresholdRule(moving.kl_high, moving.kl_low, moving.beta_up, moving.beta_down),
        "proportional": ProportionalRule(moving.kl_target, moving.kl_horizon),
    }
    kl = KLControl(algo.beta, rules[moving.kl_control], moving.beta_min, moving.beta_max, moving.kl_alarm)
    if not moving.use_adaptive_entropy:
        return Coefficients(kl)
    low, high = moving.entropy_coef_min, moving.entropy_coef_max
    return Coefficients(
        kl, EntropyControl(algo.entropy_coef, moving.entropy_target, moving.entropy_coef_delta, low, high)
    )


def rollouts_of(config: PolicyConfig, prompts: list[Prompt], plan: BatchPlan) -> RolloutControl:
    """How rollouts are sampled."""
    temperature = config.sampling.temperature
    ladder = Ladder()
    limits = RolloutLimits(plan.generation_batch_size, temperature, temperature, None, 0, "partial")
    if isinstance(config, GRPOConfig):
        remedies = config.remedies
        ladder = Ladder(
            remedies.zero_std_ladder,
            remedies.always,
            remedies.zero_std_high,
            remedies.zero_std_low,
            remedies.zero_std_patience,
        )
        limits = RolloutLimits(
            completions=plan.generation_batch_size,
            temperature=temperature,
            raised_temperature=remedies.ladder_temperature,
            max_group_size=remedies.max_group_size,
            max_tries=remedies.max_resample_times,
            when_exhausted=remedies.resample_exhausted,
            may_carry=not LOSSES[config.algo.loss_type].on_policy,
        )
    return RolloutControl(source_of(config, prompts, plan), ladder, limits, {prompt.id: prompt for prompt in prompts})


def source_of(config: PolicyConfig, prompts: list[Prompt], plan: BatchPlan) -> PromptSource:
    """In which order prompts come, and in what groups."""
    shuffle, seed = config.data.dataset_shuffle, data_seed(config.data, config.run)
    wanted = config.curriculum if isinstance(config, GRPOConfig) else None
    if wanted is None or wanted.curriculum is None:
        return Stream(len(prompts), plan.num_generations, shuffle, seed)
    if wanted.curriculum == "solve_rate":
        return SolveRates(len(prompts), plan.num_generations, seed, memory=wanted.curriculum_memory)
    sizes = wanted.curriculum_group_sizes
    if uneven := [size for size in sizes if plan.generation_batch_size % size]:
        raise UserError(
            f"--curriculum_group_sizes {uneven[0]}: a rollout of {plan.generation_batch_size} completions can not"
            " be cut into such groups"
        )
    if len(prompts) < len(sizes):
        raise UserError(f"--curriculum stages: {len(prompts)} prompts are too few for {len(sizes)} stages")
    longest = max(1, plan.num_rollouts // len(sizes))
    return Stages(difficulties(prompts, config.data.task), sizes, wanted.curriculum_advance, longest, shuffle, seed)
