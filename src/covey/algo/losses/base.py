"""The shape of a policy loss: ``(LossInputs, params) -> (token terms [N], metrics)``, to be minimised.

A loss is one file here, a function and its params dataclass, and one line of the table in ``__init__``. The fields of
the params become flags by themselves: their type, default and help come from :func:`option`. The command line reads
them before torch is loaded, so these files use tensor methods and import torch for annotations only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from covey.algo.metrics import Metrics
from covey.algo.segments import segment_sum

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

    def row_sum(self, values: Tensor) -> Tensor:
        """[N]: the sum of ``values`` over the trained tokens of a row, put back on each of its tokens."""
        return segment_sum(values * self.mask, self.row_of_token, self.num_rows)[self.row_of_token]

    def row_mean(self, values: Tensor) -> Tensor:
        """[N]: the mean of ``values`` over the trained tokens of a row, put back on each of its tokens."""
        return self.row_sum(values) / self.row_sum(self.mask).clamp(min=1)


PolicyLoss = Callable[[LossInputs], tuple["Tensor", Metrics]]
Params = TypeVar("Params")
Params_contra = TypeVar("Params_contra", contravariant=True)


class LossFunction(Protocol[Params_contra]):
    """A policy loss before its params are bound."""

    def __call__(self, inputs: LossInputs, params: Params_contra) -> tuple[Tensor, Metrics]: ...


def option(default: Any, help: str, *, swift: Any = None, required: str | None = None) -> Any:
    """A field of a params dataclass that is a flag of the same name.

    ``swift``: ms-swift's default, where it has the flag. ``required``: there is no value that is right for everybody;
    the default must be None and the text says what to give.
    """
    return field(default=default, metadata={"help": help, "swift": swift, "required": required})


@dataclass(frozen=True, slots=True)
class LossSpec(Generic[Params]):
    """One line of the loss table: the function, its default params, and the aggregation it was published with."""

    function: LossFunction[Params]
    params: Params
    aggregation: str

    @property
    def options(self) -> dict[str, Any]:
        """Option name -> default of this loss."""
        return {f.name: getattr(self.params, f.name) for f in fields(self.params)}  # type: ignore[arg-type]

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
