"""What steers a run from step to step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from covey.config.base import Section
from covey.config.values import require


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
