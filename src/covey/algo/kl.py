"""Per-token estimators of KL(pi || pi_ref) from the log-probs of the sampled tokens.

With x = log pi - log pi_ref:   k1 = x,   k2 = x^2 / 2,   k3 = exp(-x) + x - 1   (J. Schulman, "Approximating KL").
k1 and k3 have the right expected *value*, but as a loss only the *gradient* counts (arXiv 2506.09477, 2512.21852):

| in the loss   | expected gradient                                                             |
|---------------|-------------------------------------------------------------------------------|
| k1            | zero: no pull to the reference at all, so it is refused                       |
| k2            | that of KL(pi || ref), on-policy                                              |
| k3            | that of the *forward* KL(ref || pi); close to the above near the reference    |
| k3_unbiased   | that of KL(pi || ref), on- and off-policy (ratio * k3, DeepSeek-V3.2)         |
| k3+           | value of k3 with the gradient of k2 (straight-through)                        |

Every function takes ``(logp, ref_logp, old_logp)``, each [N] (``old_logp`` None: on-policy), and returns [N].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from covey.algo.ratio import log_ratio

if TYPE_CHECKING:
    from torch import Tensor

    KLEstimator = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def k1(logp: Tensor, ref_logp: Tensor, old_logp: Tensor | None) -> Tensor:
    """The plain log-ratio; unbiased in value, can be negative. For rewards and metrics, never for a loss."""
    return logp - ref_logp


def k2(logp: Tensor, ref_logp: Tensor, old_logp: Tensor | None) -> Tensor:
    """Half the squared log-ratio."""
    return (logp - ref_logp).square() / 2


def k3(logp: Tensor, ref_logp: Tensor, old_logp: Tensor | None) -> Tensor:
    """The non-negative, unbiased-in-value estimator of the GRPO paper."""
    x = logp - ref_logp
    return (-x).expm1() + x  # expm1: no cancellation where the policies are close


def k3_unbiased(logp: Tensor, ref_logp: Tensor, old_logp: Tensor | None) -> Tensor:
    """Ratio * k3. The ratio is not detached: its gradient is what makes the whole unbiased."""
    return log_ratio(logp, old_logp).exp() * k3(logp, ref_logp, old_logp)


def k3_plus(logp: Tensor, ref_logp: Tensor, old_logp: Tensor | None) -> Tensor:
    """Value of k3, gradient of k2."""
    gradient = k2(logp, ref_logp, old_logp)
    return gradient + (k3(logp, ref_logp, old_logp) - gradient).detach()


KL_ESTIMATORS: dict[str, KLEstimator] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "k3_unbiased": k3_unbiased,
    "k3+": k3_plus,
}


def kl_loss_estimator(name: str) -> KLEstimator:
    """The estimator to add to a loss. Raises ValueError on an unknown name and on ``k1``."""
    usable = [known for known in KL_ESTIMATORS if known != "k1"]
    if name == "k1":
        raise ValueError(
            "KL estimator 'k1' has an expected gradient of zero as a loss term: it would not hold the policy near the "
            f"reference whatever beta is; use one of {', '.join(usable)}"
        )
    if name not in KL_ESTIMATORS:
        raise ValueError(f"unknown KL estimator {name!r}; known: {', '.join(usable)}")
    return KL_ESTIMATORS[name]
