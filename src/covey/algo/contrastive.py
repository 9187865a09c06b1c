"""A contrast over the completions of one prompt, to be added to any policy loss (``--contrastive_coef``).

With d_i = sum_t log(pi / pi_old) of completion i, q = softmax(reward / alpha) over the group and s_i = scale * d_i:

| name    | term of one group                                                  | source                       |
|---------|--------------------------------------------------------------------|------------------------------|
| infonca | -sum_i q_i log softmax(s)_i                                         | InfoNCA, arXiv 2402.05369    |
| gvpo    | 1/2 sum_i ((s_i - mean s) - (r_i - mean r))^2 / (G - 1)             | GVPO, arXiv 2504.19599       |

Here the policy that sampled stands in the place of the papers' reference model, so no second model is needed. On-policy
every d_i is 0 in value, and the gradient of infonca is scale * sum_i (1/G - q_i) grad log pi(y_i): every completion is
pushed against the others of its group, which is not the same as standardised advantages (q weighs the best most).

The term is a mean over the groups of a step. A group must be whole in its micro-batch. Completions that nobody scored
or that are masked leave their group; a group with fewer than two left gives 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.algo.segments import segment_sum

if TYPE_CHECKING:
    from torch import Tensor

    from covey.algo.metrics import Metrics
    from covey.tensors import TokenBatch


@dataclass(frozen=True, slots=True)
class Contrast:
    """``term, metrics = contrast(batch, token_log_ratio)``: the share of these groups in the term of the step."""

    kind: str
    coef: float
    scale: float
    alpha: float
    num_groups: int
    """Of the whole optimizer step; the denominator."""

    def __call__(self, batch: TokenBatch, log_ratio: Tensor) -> tuple[Tensor, Metrics]:
        """``log_ratio`` [N] per token, with gradient; reads ``batch.rewards``."""
        if batch.rewards is None:
            raise ValueError("the batch has no rewards for the contrastive term")
        row = batch.row_of_token
        margins = segment_sum(log_ratio.masked_fill(batch.mask == 0, 0.0), row, batch.num_rows)
        used = batch.rewards.isfinite() & (segment_sum(batch.mask, row, batch.num_rows) > 0)
        group = batch.group_of_row[used]
        count = segment_sum(margins.new_ones(group.numel()), group, batch.num_groups)
        alive = count >= 2
        terms = CONTRASTS[self.kind](
            self.scale * margins[used], batch.rewards[used].to(margins.dtype), group, count, self.alpha
        )
        total = terms.masked_fill(~alive, 0.0).sum()
        metrics: Metrics = {"contrastive": (total.item(), float(alive.sum()))}
        return self.coef / self.num_groups * total, metrics


def log_softmax_within(values: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """[M]: log softmax of ``values`` over the rows with the same ``group`` [M]."""
    top = values.new_zeros(num_groups).scatter_reduce(0, group, values.detach(), "amax", include_self=False)
    shifted = values - top[group]
    return shifted - segment_sum(shifted.exp(), group, num_groups).log()[group]


def infonca(scores: Tensor, rewards: Tensor, group: Tensor, count: Tensor, alpha: float) -> Tensor:
    """[K]: cross-entropy of the scores' softmax to that of the rewards."""
    groups = count.numel()
    target = log_softmax_within(rewards / alpha, group, groups).exp()
    return -segment_sum(target * log_softmax_within(scores, group, groups), group, groups)


def gvpo(scores: Tensor, rewards: Tensor, group: Tensor, count: Tensor, alpha: float) -> Tensor:
    """[K]: half the variance (ddof=1) of score minus reward; its only optimum is the KL-regularised policy."""
    groups = count.numel()
    gap = scores - rewards
    centred = gap - (segment_sum(gap, group, groups) / count.clamp(min=1))[group]
    return segment_sum(centred.square(), group, groups) / (2 * (count - 1).clamp(min=1))


CONTRASTS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]] = {"infonca": infonca, "gvpo": gvpo}
