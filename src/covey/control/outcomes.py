"""Whether a group has something to compare: its outcomes, and how many groups have only one."""

from __future__ import annotations

from collections.abc import Sequence

from covey.types import Group

RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-6, 1e-12
"""As ``algo.advantages`` has them (a test compares): a smaller range is rounding."""


def outcomes(group: Group) -> list[float]:
    """What the members of a group achieved: the accuracy where any of them has one, else the total.

    Without abstentions. Not the shaped total where there is an accuracy: a reward for format or length differs within a
    group of which every answer is wrong.
    """
    values = [m.rewards.get("accuracy") for m in group.members]
    if all(value is None for value in values):
        values = [m.total for m in group.members]
    return [value for value in values if value is not None]


def is_mixed(group: Group) -> bool:
    """Whether the members' outcomes differ."""
    return _differ(outcomes(group))


def has_variance(group: Group) -> bool:
    """Whether the totals of the scored members differ, so that there are advantages other than 0."""
    return _differ([m.total for m in group.members if m.total is not None])


def _differ(values: Sequence[float]) -> bool:
    if not values:
        return False
    low, high = min(values), max(values)
    return high - low > RELATIVE_TOLERANCE * max(abs(low), abs(high)) + ABSOLUTE_TOLERANCE


def solve_rate(group: Group) -> tuple[float, int] | None:
    """(solved, scored) members; every outcome counts as a share, cut to 0 to 1. None: nobody scored."""
    values = outcomes(group)
    if not values:
        return None
    return sum(min(max(value, 0.0), 1.0) for value in values), len(values)


def one_sided(groups: Sequence[Group]) -> tuple[float, float] | None:
    """Shares of the groups in which every answer is wrong, and right; None where accuracy is not a reward."""
    rates = [
        (sum(values) / len(values))
        for group in groups
        if "accuracy" in group.members[0].rewards and (values := outcomes(group))
    ]
    if not rates:
        return None
    return sum(rate == 0 for rate in rates) / len(rates), sum(rate == 1 for rate in rates) / len(rates)
