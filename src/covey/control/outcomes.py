"""Whether a group has something to compare: its outcomes, and how many groups have only one."""

from __future__ import annotations

from collections.abc import Sequence

from covey.types import Group


def outcomes(group: Group) -> list[float]:
    """What the members of a group achieved: the accuracy where it is a reward, else the total; without abstentions.

    Not the shaped total where there is an accuracy: a reward for format or length differs within a group of which every
    answer is wrong.
    """
    values = [m.rewards.get("accuracy", m.total) for m in group.members]
    return [value for value in values if value is not None]


def is_mixed(group: Group) -> bool:
    """Whether the members' outcomes differ."""
    values = outcomes(group)
    return bool(values) and min(values) != max(values)


def has_variance(group: Group) -> bool:
    """Whether the totals of the scored members differ, so that there are advantages other than 0."""
    totals = [m.total for m in group.members if m.total is not None]
    return bool(totals) and min(totals) != max(totals)


def solve_rate(group: Group) -> tuple[float, int] | None:
    """(solved, scored) members; an accuracy counts as it is, another outcome as solved when above 0. None: no score."""
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
