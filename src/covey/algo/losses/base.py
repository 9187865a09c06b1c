"""The shape of a policy loss: ``(LossInputs, params) -> (token terms [N], metrics)``, to be minimised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from covey.algo.metrics import Metrics


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a loss may read, all flat over N completion tokens. On masked tokens every value is 0.

    Sequence-level losses reduce with ``segment_sum(x * mask, row_of_token, num_rows)`` and index the [R] result with
    ``row_of_token`` to put it back on the tokens.
    """

    logp: Tensor  # [N], the only tensor with a gradient
    old_logp: Tensor | None  # [N]; None: on-policy
    advantages: Tensor  # [N]
    mask: Tensor  # [N], 1 where trained
    row_of_token: Tensor  # [N] int64
    num_rows: int


PolicyLoss = Callable[[LossInputs], tuple[Tensor, Metrics]]
Params = TypeVar("Params")
Params_contra = TypeVar("Params_contra", contravariant=True)


class LossFunction(Protocol[Params_contra]):
    """A policy loss before its params are bound."""

    def __call__(self, inputs: LossInputs, params: Params_contra) -> tuple[Tensor, Metrics]: ...


@dataclass(frozen=True, slots=True)
class LossSpec(Generic[Params]):
    """One line of the loss table: the function, its default params, and the aggregation it was published with."""

    function: LossFunction[Params]
    params: Params
    aggregation: str

    def bind(self, params: Params | None = None) -> PolicyLoss:
        """The loss as a function of its inputs alone, with the given or the default params."""
        return partial(self.function, params=self.params if params is None else params)
