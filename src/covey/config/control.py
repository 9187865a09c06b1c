"""What steers a run from step to step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from covey.config.base import Section
from covey.config.values import require
from covey.control.ladder import Remedy
from covey.errors import UserError


@dataclass(frozen=True)
class CoefficientConfig(Section):
    """How the weights of the KL term and of the entropy bonus move."""

    kl_control: Literal["fixed", "threshold", "proportional"] = "fixed"
    kl_high: float = 0.1
    kl_low: float = 0.01
    beta_up: float = 1.2
    beta_down: float = 0.8
    kl_target: float = 0.1
    kl_horizon: float = 10_000.0
    beta_min: float = 1e-4
    beta_max: float = 1.0
    kl_alarm: float = 0.5
    use_adaptive_entropy: bool = False
    entropy_target: float = 0.2
    entropy_coef_delta: float = 0.005
    entropy_coef_min: float = 0.0
    entropy_coef_max: float = 0.1

    def check(self) -> None:
        require(
            0 <= self.kl_low < self.kl_high, "kl_low", self.kl_low, f"at least 0 and below --kl_high {self.kl_high:g}"
        )
        require(self.beta_up >= 1, "beta_up", self.beta_up, "at least 1")
        require(0 < self.beta_down <= 1, "beta_down", self.beta_down, "above 0 and at most 1")
        require(self.kl_target > 0, "kl_target", self.kl_target, "above 0 nats per token")
        require(self.kl_horizon > 0, "kl_horizon", self.kl_horizon, "above 0 completions")
        low, high = self.beta_min, self.beta_max
        require(0 < low <= high, "beta_min", low, f"above 0 and at most --beta_max {high:g}")
        require(self.kl_alarm > 0, "kl_alarm", self.kl_alarm, "above 0 nats per token")
        require(self.entropy_target > 0, "entropy_target", self.entropy_target, "above 0 nats per token")
        require(self.entropy_coef_delta > 0, "entropy_coef_delta", self.entropy_coef_delta, "above 0")
        bounds = self.entropy_coef_min <= self.entropy_coef_max
        require(bounds, "entropy_coef_min", self.entropy_coef_min, "at most --entropy_coef_max")

    def check_start(self, beta: float, entropy_coef: float) -> None:
        """Refuse (UserError) coefficients that start outside the bounds between which they are to move."""
        if self.kl_control != "fixed":
            require(
                self.beta_min <= beta <= self.beta_max,
                "beta",
                beta,
                f"between --beta_min {self.beta_min:g} and --beta_max {self.beta_max:g}"
                f" with --kl_control {self.kl_control}",
            )
        if self.use_adaptive_entropy:
            require(
                self.entropy_coef_min <= entropy_coef <= self.entropy_coef_max,
                "entropy_coef",
                entropy_coef,
                f"between --entropy_coef_min {self.entropy_coef_min:g} and --entropy_coef_max"
                f" {self.entropy_coef_max:g} with --use_adaptive_entropy",
            )


@dataclass(frozen=True)
class RemedyConfig(Section):
    """What is done about groups without variance, always or as a ladder."""

    drop_zero_std: bool = False
    dynamic_sample: bool = False
    adaptive_budget: bool = False
    max_resample_times: int = 3
    resample_exhausted: Literal["partial", "skip", "stop"] = "partial"
    max_group_size: int | None = None
    zero_std_ladder: tuple[Remedy, ...] = ()
    zero_std_high: float = 0.7
    zero_std_low: float = 0.4
    zero_std_patience: int = 2
    ladder_temperature: float = 1.5

    def check(self) -> None:
        require(self.max_resample_times >= 1, "max_resample_times", self.max_resample_times, "at least 1")
        require(self.zero_std_patience >= 1, "zero_std_patience", self.zero_std_patience, "at least 1 rollout")
        low, high = self.zero_std_low, self.zero_std_high
        require(0 <= low < high <= 1, "zero_std_low", low, f"a share below --zero_std_high {high:g}")
        rungs = self.zero_std_ladder
        require(len(set(rungs)) == len(rungs), "zero_std_ladder", rungs, "named once each")
        for rung in rungs:
            if rung in self.always:
                raise UserError(f"--zero_std_ladder {rung}: --{ALWAYS[rung]} has it on already; drop one of them")

    @property
    def always(self) -> frozenset[Remedy]:
        """The remedies that are on from the start."""
        return frozenset(remedy for remedy, option in ALWAYS.items() if getattr(self, option))

    @property
    def all(self) -> frozenset[Remedy]:
        """The remedies that may be on."""
        return self.always | frozenset(self.zero_std_ladder)

    def check_group(self, largest: int, temperature: float, contrast: bool, group_relative: bool) -> None:
        """Refuse (UserError) remedies that can't work with groups of ``largest``, this temperature or objective."""
        if not self.all:
            return
        if not group_relative or largest < 2:
            raise UserError(
                "remedies against groups without variance are for advantages within groups of at least 2: here a group"
                " of equal rewards has a gradient, or there are no groups"
            )
        if "group_size" in self.all:
            largest *= 2
        most = self.max_group_size
        fits = most is None or most >= 2 * largest
        require(fits, "max_group_size", most, f"at least twice the size of a group, which may be {largest}")
        if "temperature" in self.all:
            hotter = self.ladder_temperature > temperature
            require(hotter, "ladder_temperature", self.ladder_temperature, f"above --temperature {temperature:g}")
        if contrast and self.all & {"budget", "group_size", "drop", "refill"}:
            raise UserError(
                "--contrastive_coef needs the same number of completions in every group and micro-batch; remedies"
                " against groups without variance change it"
            )


ALWAYS: dict[Remedy, str] = {"drop": "drop_zero_std", "refill": "dynamic_sample", "budget": "adaptive_budget"}
"""The remedies that an option turns on from the start."""


@dataclass(frozen=True)
class CurriculumConfig(Section):
    """Which prompts come when."""

    curriculum: Literal["stages", "solve_rate"] | None = None
    curriculum_group_sizes: tuple[int, ...] = (4, 8, 16)
    curriculum_advance: float = 0.8
    curriculum_memory: float = 0.7

    def check(self) -> None:
        sizes = self.curriculum_group_sizes
        require(bool(sizes) and min(sizes) >= 2, "curriculum_group_sizes", sizes, "one or more numbers of at least 2")
        advance, memory = self.curriculum_advance, self.curriculum_memory
        require(0 < advance <= 1, "curriculum_advance", advance, "a solve rate: above 0, at most 1")
        require(0 <= memory <= 1, "curriculum_memory", memory, "a share: 0 (only the last group counts) to 1")

    @property
    def group_sizes(self) -> tuple[int, ...] | None:
        """Completions per prompt of each stage, where there are stages."""
        return self.curriculum_group_sizes if self.curriculum == "stages" else None
