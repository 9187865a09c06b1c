"""The clipped surrogate of PPO, shared by GRPO, DAPO, Dr. GRPO, BNPO and GSPO.

Per token, with a ratio r of the policy to the one that sampled, and the advantage A:

    loss = -min(r * A, clip(r, 1 - epsilon, 1 + epsilon_high) * A)

``importance_sampling_level`` says what r is:

- ``token``: pi / pi_old of the token (GRPO 2402.03300);
- ``sequence``: the geometric mean of the token ratios over the row (GSPO 2507.18071);
- ``sequence_token``: the same value with the gradient of the token alone (GSPO-token, same paper); equal to
  ``sequence`` in value and gradient as long as all tokens of a row have one advantage.

Sources: PPO arXiv 1707.06347, the asymmetric range ("clip-higher") DAPO 2503.14476, the upper bound on r for negative A
two-sided clipping 2505.07291 (= dual-clip PPO 1912.09729).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from covey.algo.losses.base import LossInputs, LossParams, clip_metrics, ratio_metrics
from covey.algo.metrics import Metrics
from covey.algo.ratio import log_ratio
from covey.options import option

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["token", "sequence", "sequence_token"]

# A mean over a row moves far less than one token: the ranges of the papers, 0.2 and 3e-4 / 4e-4.
DEFAULT_RANGE: dict[str, tuple[float, float]] = {
    "token": (0.2, 0.2),
    "sequence": (3e-4, 4e-4),
    "sequence_token": (3e-4, 4e-4),
}


@dataclass(frozen=True, slots=True)
class ClipParams(LossParams):
    """Clip range of the ratio. Raises ValueError on a range that makes no sense."""

    epsilon: float | None = option(
        None, "the ratio is clipped below at 1 - epsilon; default: 0.2 for token ratios, 3e-4 for sequences"
    )
    epsilon_high: float | None = option(
        None, "and above at 1 + epsilon_high; default: epsilon (dapo: 0.28, sequences: 4e-4)"
    )
    delta: float | None = option(None, "largest ratio for negative advantages; default: no bound")
    importance_sampling_level: Level = option(
        "token",
        "the ratio of each token, or one per sequence (GSPO: sequence, GSPO-token: sequence_token)",
    )

    def __post_init__(self) -> None:
        if self.epsilon is not None and not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon must be between 0 and 1, got {self.epsilon}")
        if self.epsilon_high is not None and not self.epsilon_high > 0:
            raise ValueError(f"epsilon_high must be positive, got {self.epsilon_high}")
        if self.delta is not None and not self.delta > self.upper:
            raise ValueError(f"delta must be larger than 1 + epsilon_high = {self.upper:g}, got {self.delta}")

    def describe(self) -> str:
        bound = "" if self.delta is None else f", at most {self.delta:g} for negative advantages"
        return f"{self.importance_sampling_level} ratio within {self.lower:g} to {self.upper:g}{bound}"

    @property
    def of_sequences(self) -> bool:
        return self.importance_sampling_level != "token"

    @property
    def one_advantage_per_row(self) -> bool:
        return self.importance_sampling_level == "sequence"

    @property
    def widest_range(self) -> float:
        return max(1 - self.lower, self.upper - 1)

    @property
    def lower(self) -> float:
        return 1 - (DEFAULT_RANGE[self.importance_sampling_level][0] if self.epsilon is None else self.epsilon)

    @property
    def upper(self) -> float:
        """1 + epsilon_high; without one, an epsilon that was given counts for both sides."""
        if self.epsilon_high is not None:
            return 1 + self.epsilon_high
        return 1 + (DEFAULT_RANGE[self.importance_sampling_level][1] if self.epsilon is None else self.epsilon)


def clipped_policy_loss(inputs: LossInputs, params: ClipParams) -> tuple[Tensor, Metrics]:
    """Token terms [N], to be minimised.

    On-policy (``old_logp`` None) r is 1: the value is -A, nothing is clipped, and the gradient is the plain policy
    gradient; a loss near 0 that does not move is then normal.
    """
    ratio = _ratio(inputs, params.importance_sampling_level)
    bounded = ratio if params.delta is None else ratio.clamp(max=params.delta)
    clipped = ratio.clamp(params.lower, params.upper)
    loss = -(bounded * inputs.advantages).minimum(clipped * inputs.advantages)
    low = (inputs.advantages < 0) & (ratio < params.lower)
    high = (inputs.advantages > 0) & (ratio > params.upper)
    if params.delta is not None:
        high |= (inputs.advantages < 0) & (ratio > params.delta)
    return loss, clip_metrics(low, high, inputs.mask) | ratio_metrics(ratio, inputs.mask)


def _ratio(inputs: LossInputs, level: Level) -> Tensor:
    """[N]: the ratio of each token at the given level."""
    token = log_ratio(inputs.logp, inputs.old_logp)
    if level == "token":
        return token.exp()
    mean = inputs.row_mean(token)
    if level == "sequence":
        return mean.exp()
    return (mean.detach() + inputs.logp - inputs.logp.detach()).exp()
