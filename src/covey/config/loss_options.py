"""The options of the policy losses as a config section, made from the loss table.

So a loss is one file in ``algo/losses`` and one line of its table; its options become flags by themselves. An option
that is not given (None) keeps the default of the loss, which may differ from loss to loss.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from covey.algo.advantages import ADVANTAGE_ESTIMATORS
from covey.algo.kl import KL_ESTIMATORS
from covey.algo.losses import LOSSES
from covey.algo.weights import AGGREGATIONS
from covey.config.base import TableSection
from covey.config.values import without_none
from covey.errors import UserError


@dataclass(frozen=True)
class LossSection(TableSection):
    """What the generated section can do."""

    def params_of(self, loss_type: str) -> Any:
        """The params of a loss, its defaults under the given options. UserError on a value the loss refuses."""
        spec = LOSSES[loss_type]
        try:
            return spec.with_options({k: v for k, v in self.given().items() if k in spec.option_names()})
        except ValueError as error:
            raise UserError(f"--{error} (--loss_type {loss_type})") from error


def losses_with(option: str) -> list[str]:
    """The losses that read an option."""
    return [name for name, spec in LOSSES.items() if option in spec.option_names()]


def _options() -> tuple[dict[str, Any], dict[str, str]]:
    """Option name -> type, and -> help; losses that share an option share its type."""
    types: dict[str, Any] = {}
    helps: dict[str, dict[str, None]] = {}
    for loss, spec in LOSSES.items():
        hints = get_type_hints(type(spec.params))
        for item in fields(spec.params):
            kind = without_none(hints[item.name])
            if types.setdefault(item.name, kind) != kind:
                raise TypeError(f"loss {loss}: option {item.name} is of another type in another loss")
            helps.setdefault(item.name, {})[item.metadata["help"]] = None
    return types, {name: "; ".join(texts) for name, texts in helps.items()}


_TYPES, LOSS_OPTION_HELP = _options()

if TYPE_CHECKING:
    LossConfig = LossSection
    LossName = str
    EstimatorName = str
    KLName = str
    AggregationName = str
else:
    LossConfig = LossSection.with_options("LossConfig", _TYPES)
    LossName = Literal[tuple(LOSSES)]
    EstimatorName = Literal[tuple(ADVANTAGE_ESTIMATORS)]
    KLName = Literal[tuple(KL_ESTIMATORS)]
    AggregationName = Literal[tuple(AGGREGATIONS)]
