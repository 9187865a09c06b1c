"""The shape of a policy loss: ``(LossInputs, params) -> (token terms [N], metrics)``, to be minimised.

A loss is one file here, a function and its params dataclass, and one line of the table in ``__init__``. These files use
tensor methods and import torch for annotations only, so that the table can be read before torch is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from covey.algo.metrics import Metrics, token_mean
from covey.algo.segments import row_mean, row_sum

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a loss may read, all flat over N completion tokens. On masked tokens every value is 0."""

    logp: Tensor  # [N], the only tensor with a gradient
    old_logp: Tensor | None  # [N]; None: on-policy
    advantages: Tensor  # [N]
    mask: Tensor  # [N], 1 where trained
    row_of_token: Tensor  # [N] int64
    num_rows: int
    marked: Tensor | None = None  # [N] bool, what LossSpec.marks chose; None: the loss marks nothing

    def row_sum(self, values: Tensor) -> Tensor:
        """[N]: ``segments.row_sum`` over the rows of these tokens."""
        return row_sum(values, self.mask, self.row_of_token, self.num_rows)

    def row_mean(self, values: Tensor) -> Tensor:
        """[N]: ``segments.row_mean`` over the rows of these tokens."""
        return row_mean(values, self.mask, self.row_of_token, self.num_rows)


PolicyLoss = Callable[[LossInputs], tuple["Tensor", Metrics]]
Params = TypeVar("Params", bound="LossParams")
Params_contra = TypeVar("Params_contra", bound="LossParams", contravariant=True)


class LossFunction(Protocol[Params_contra]):
    """A policy loss before its params are bound."""

    def __call__(self, inputs: LossInputs, params: Params_contra) -> tuple[Tensor, Metrics]: ...


class MarkFunction(Protocol[Params_contra]):
    """Chooses tokens [N] bool from the whole optimizer step; ``logp`` has no gradient. ``seed``: of this step."""

    def __call__(self, inputs: LossInputs, params: Params_contra, *, seed: int) -> Tensor: ...


class LossParams:
    """What params dataclasses share."""

    __slots__ = ()

    @property
    def of_sequences(self) -> bool:
        """The loss weighs whole completions: one ratio per row."""
        return False

    @property
    def one_advantage_per_row(self) -> bool:
        """All tokens of a row must have the same advantage."""
        return self.of_sequences

    @property
    def widest_range(self) -> float:
        """The larger side of a clip range; 0 without one."""
        return 0.0

    def describe(self) -> str:
        """``epsilon 0.2, epsilon_high 0.2``: what the loss computes with, for the start of a run."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]
        return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def ratio_metrics(ratio: Tensor, mask: Tensor) -> Metrics:
    """Where the ratios are; ``ratio/deviation`` is the mean of abs(ratio - 1), 0 exactly when every ratio is 1."""
    return {
        "ratio/mean": token_mean(ratio, mask),
        "ratio/deviation": token_mean((ratio - 1).abs(), mask),
    }


def clip_metrics(low: Tensor, high: Tensor, mask: Tensor) -> Metrics:
    """Shares of the trained tokens whose gradient a bound takes; ``low`` and ``high`` [N] bool say on which side."""
    return {
        "clip_ratio": token_mean((low | high).to(mask.dtype), mask),
        "clip_ratio/low": token_mean(low.to(mask.dtype), mask),
        "clip_ratio/high": token_mean(high.to(mask.dtype), mask),
    }


@dataclass(frozen=True, slots=True)
class LossSpec(Generic[Params]):
    """One line of the loss table: the function, its default params, and the aggregation it was published with."""

    function: LossFunction[Params]
    params: Params
    aggregation: str
    marks: MarkFunction[Params] | None = None
    """Which tokens the loss treats apart, when that is a choice over all tokens of the optimizer step."""
    scale: str | None = None
    """The divisor of the advantages that is part of its definition (a name of SCALES)."""
    on_policy: bool | None = None
    """True: exact only for one optimizer step per rollout; False: does nothing of its own then."""

    def option_names(self) -> tuple[str, ...]:
        """The options that this loss reads."""
        return tuple(item.name for item in fields(self.params))  # type: ignore[arg-type]

    def with_options(self, given: Mapping[str, Any]) -> Params:
        """The default params with ``given`` put over them.

        Raises ValueError on a value out of range and on a required option that is missing.
        """
        params = replace(self.params, **given)  # type: ignore[type-var]
        for item in fields(params):  # type: ignore[arg-type]
            if item.metadata.get("required") and getattr(params, item.name) is None:
                raise ValueError(f"{item.name} is not set: {item.metadata['required']}")
        return params

    def bind(self, params: Params | None = None) -> PolicyLoss:
        """The loss as a function of its inputs alone, with the given or the default params."""
        return partial(self.function, params=self.params if params is None else params)
