"""Losses on pairs of completions of one prompt, a chosen and a rejected one.

With m = log-ratio of policy to reference of the chosen completion minus that of the rejected one:

| name          | loss                                     | log-ratio of a completion  | source              |
|---------------|------------------------------------------|----------------------------|---------------------|
| sigmoid       | -log sigmoid(beta m)                     | sum over its tokens        | DPO 2305.18290      |
| sigmoid_norm  | -log sigmoid(beta m)                     | mean over its tokens       | as TRL              |
| ipo           | (m - 1 / (2 beta))^2                     | mean over its tokens       | IPO 2310.12036, TRL |

The paper of IPO writes the sum; TRL, from which the recorded value comes, averages, and so does this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import logsigmoid

from covey.algo.metrics import Metrics
from covey.algo.segments import segment_sum
from covey.tensors import TokenBatch


def dpo(margin: Tensor, beta: float) -> Tensor:
    """[P]: direct preference optimisation."""
    return -logsigmoid(beta * margin)


def ipo(margin: Tensor, beta: float) -> Tensor:
    """[P]: identity preference optimisation; the margin is pulled to 1 / (2 beta), not to infinity."""
    return (margin - 1 / (2 * beta)).square()


# name -> (mean over tokens, loss)
PREFERENCES: dict[str, tuple[bool, Callable[[Tensor, float], Tensor]]] = {
    "sigmoid": (False, dpo),
    "sigmoid_norm": (True, dpo),
    "ipo": (True, ipo),
}


@dataclass(frozen=True, slots=True)
class PreferenceObjective:
    """``loss, metrics = objective(batch, logp, entropy)`` over pairs: rows 0, 2, 4 ... chosen, 1, 3, 5 ... rejected."""

    kind: str
    beta: float
    num_pairs: int
    """Of the whole optimizer step; the denominator."""

    def __call__(self, batch: TokenBatch, logp: Tensor, entropy: Tensor | None = None) -> tuple[Tensor, Metrics]:
        """Reads ``ref_logprobs``; ``entropy`` is not read."""
        if batch.ref_logprobs is None:
            raise ValueError("ref_logprobs are missing")
        mean, loss = PREFERENCES[self.kind]
        row = batch.row_of_token
        ratio = segment_sum(logp - batch.ref_logprobs, row, batch.num_rows)
        if mean:
            ratio = ratio / batch.lens
        chosen, rejected = self.beta * ratio[0::2], self.beta * ratio[1::2]
        terms = loss(ratio[0::2] - ratio[1::2], self.beta)
        total = segment_sum(logp.detach(), row, batch.num_rows)
        return terms.sum() / self.num_pairs, pair_metrics(chosen, rejected) | {
            "logps/chosen": _mean(total[0::2]),
            "logps/rejected": _mean(total[1::2]),
        }


@dataclass(frozen=True, slots=True)
class BradleyTerryObjective:
    """``loss, metrics = objective(batch, scores)`` of a reward model: -log sigmoid(chosen - rejected) (1952)."""

    num_pairs: int

    def __call__(self, batch: TokenBatch, scores: Tensor) -> tuple[Tensor, Metrics]:
        """``scores`` [R], one per completion, pairs as in PreferenceObjective."""
        chosen, rejected = scores[0::2], scores[1::2]
        return -logsigmoid(chosen - rejected).sum() / self.num_pairs, pair_metrics(chosen, rejected)


def pair_metrics(chosen: Tensor, rejected: Tensor) -> Metrics:
    """Rewards as TRL names them; ``rewards/accuracies`` is the share of pairs in the right order."""
    return {
        "rewards/chosen": _mean(chosen),
        "rewards/rejected": _mean(rejected),
        "rewards/margins": _mean(chosen - rejected),
        "rewards/accuracies": _mean((chosen > rejected).to(chosen.dtype)),
    }


def _mean(values: Tensor) -> tuple[float, float]:
    return values.detach().sum().item(), float(values.numel())
