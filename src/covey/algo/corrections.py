"""Corrections for an engine whose log-probs differ from the trainer's (other kernels, precision, or older weights).

``log_w = old_logp - rollout_logp`` per token, both of the sampling policy, the first by the trainer. Every correction
is a factor on the advantages, fixed before the first forward pass: the policy losses here are of degree 1 in A, so
this multiplies the policy term and leaves the KL term alone (as TRL; ms-swift multiplies both).

| mode                | factor                                   | source                                       |
|---------------------|------------------------------------------|----------------------------------------------|
| token_truncate      | min(w, C)                                | TIS (Yao et al.)                             |
| token_mask          | w within [low, C], else 0                | IcePop 2510.18855                            |
| sequence_truncate   | min(prod w, C)                           | Liu, Li et al.; unbiased, of high variance   |
| sequence_mask       | prod w where at most C, else 0           | the same                                     |

A product over a row leaves any fixed band on long rows (a mean log w of 1e-3 is e^8 after 8,000 tokens), so the share
of rows and tokens that is left is a metric of every mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from covey.algo.metrics import Metrics, token_mean
from covey.algo.segments import row_mean, row_sum

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp() stays finite in float32


def token_truncate(w: Tensor, low: float, high: float) -> Tensor:
    """Truncated importance sampling."""
    return w.clamp(max=high)


def within(w: Tensor, low: float, high: float) -> Tensor:
    """The weight where it lies in the band, else 0."""
    return w.masked_fill((w < low) | (w > high), 0.0)


# name -> (of the whole row, rule)
CORRECTIONS: dict[str, tuple[bool, Callable[[Tensor, float, float], Tensor]]] = {
    "token_truncate": (False, token_truncate),
    "token_mask": (False, within),
    "sequence_truncate": (True, token_truncate),
    "sequence_mask": (True, within),
}


def importance_weights(
    log_w: Tensor, mask: Tensor, row_of_token: Tensor, num_rows: int, mode: str, low: float, high: float
) -> tuple[Tensor, Metrics]:
    """Factors [N] (0 on masked tokens) and what they did.

    ``log_w`` [N] is old minus rollout log-prob. The masks read ``low`` (0: no lower bound, as the sequence mask of the
    paper). Raises ValueError on an unknown mode or an empty band.
    """
    if mode not in CORRECTIONS:
        raise ValueError(f"unknown correction {mode!r}; known: {', '.join(CORRECTIONS)}")
    if not 0 <= low < high:
        raise ValueError(f"the band of the importance weight must be 0 <= low < high, got {low} and {high}")
    of_row, rule = CORRECTIONS[mode]
    log_w = log_w.masked_fill(mask == 0, 0.0)
    log_w = row_sum(log_w, mask, row_of_token, num_rows) if of_row else log_w
    w = log_w.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    factor = rule(w, low, high) * mask
    metrics: Metrics = {
        "mismatch/weight": token_mean(factor, mask),
        "mismatch/kept": token_mean((factor > 0).to(w.dtype), mask),
        "mismatch/changed": token_mean((factor != w).to(w.dtype), mask),
    }
    return factor, metrics


def sequence_keep(
    advantages: Tensor,
    rollout_logp: Tensor,
    logp: Tensor,
    mask: Tensor,
    row_of_token: Tensor,
    num_rows: int,
    delta: float,
) -> Tensor:
    """[N] of 0 and 1: off-policy sequence masking of DeepSeek-V3.2 (arXiv 2512.02556).

    A row of negative advantage whose tokens were on average more than ``delta`` nats likelier for the sampler than they
    are for the trainer is dropped: pushing down what the policy no longer says teaches nothing good.
    """
    gap = (rollout_logp - logp).masked_fill(mask == 0, 0.0)
    mean = row_mean(gap, mask, row_of_token, num_rows)
    return 1 - ((advantages < 0) & (mean > delta)).to(mask.dtype)
