"""The training backend protocol and its gradient contract.

Contract: applied gradient = sum over micro-batches (and ranks) of grad(objective(micro-batch)). Every denominator is in
the batch (``weights``), fixed over the global batch before the first forward pass. No backend divides by anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from covey.tensors import TokenBatch

MetricSum = tuple[float, float]
"""(weighted sum, count) of a metric over the tokens or rows seen; sums of both add up over micro-batches."""

Objective = Callable[[TokenBatch, Tensor, Tensor | None], tuple[Tensor, Mapping[str, MetricSum]]]
"""(batch, logp [N], entropy [N] or None, both with gradient) -> (share of the loss, metrics)."""


ValueObjective = Callable[[TokenBatch, Tensor], tuple[Tensor, Mapping[str, MetricSum]]]
"""(batch, values [N] or scores [R], with gradient) -> (share of the loss, metrics)."""


@dataclass(frozen=True)
class UpdateStats:
    """What one optimizer step did."""

    loss: float
    grad_norm: float
    """Before clipping."""
    applied: bool
    """False when the gradient was exactly zero or not finite: weights and optimizer state are then untouched."""
    metrics: Mapping[str, MetricSum]


class TrainBackend(Protocol):
    def update(self, micros: Sequence[TokenBatch], objective: Objective, lr: float) -> UpdateStats:
        """One optimizer step over all micro-batches."""
        ...

    def logprobs(
        self, micros: Sequence[TokenBatch], *, reference: bool = False, with_entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """log pi and, if asked for, entropy, [N] each over all micro-batches, without gradient.

        Of the policy, or of the frozen reference.
        """
        ...

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The policy's weights under Hugging Face names, as the engine loads them."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class ValueBackend(Protocol):
    """A model with a scalar head under training: the critic of PPO, or a reward model."""

    def update(self, micros: Sequence[TokenBatch], objective: ValueObjective, lr: float) -> UpdateStats:
        """One optimizer step over all micro-batches."""
        ...

    def values(self, micros: Sequence[TokenBatch]) -> Tensor:
        """Values [N] (critic) or scores [R] (reward model) over all micro-batches, without gradient."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
