"""The choices of a flag are the lines of the table that the flag picks from."""

from __future__ import annotations

from typing import Any, get_args

from covey.algo.advantages import ADVANTAGE_ESTIMATORS, Scale
from covey.algo.kl import KL_ESTIMATORS
from covey.algo.losses import LOSSES
from covey.config import AlgoConfig
from covey.config.base import field_types
from covey.config.values import without_none


def choices(name: str) -> tuple[Any, ...]:
    return get_args(without_none(field_types(AlgoConfig)[name]))


def test_choices_are_the_tables_of_algo() -> None:
    assert set(choices("loss_type")) == set(LOSSES)
    assert set(choices("advantage_estimator")) == set(ADVANTAGE_ESTIMATORS)
    assert choices("scale_rewards") == get_args(Scale)
    assert set(choices("kl_estimator")) == set(KL_ESTIMATORS) - {"k1"}  # as a loss, k1 has no gradient on average
