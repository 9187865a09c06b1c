"""The options of the shipped rewards as a config section, made from the reward table.

So a reward is one file in ``rewards`` and one line of its table; its options become flags by themselves. An option that
is not given (None) keeps the reward's own default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from covey.config.base import TableSection
from covey.config.values import without_none
from covey.rewards import REWARDS, RewardContext


@dataclass(frozen=True)
class RewardOptionsSection(TableSection):
    """What the generated section can do."""

    def check_for(self, rewards: Sequence[str], max_completion_length: int) -> None:
        """Refuse (UserError) options that a named reward can't work with, or lacks."""
        context = RewardContext(max_completion_length=max_completion_length, options=self.given())
        for name in rewards:
            if name in REWARDS and (params := REWARDS[name].params) is not None:
                context.params(params)


def rewards_with(option: str) -> list[str]:
    """The rewards that read an option."""
    return [
        name
        for name, spec in REWARDS.items()
        if spec.params is not None and option in {item.name for item in fields(spec.params)}
    ]


def _options() -> tuple[dict[str, Any], dict[str, str]]:
    """Option name -> type, and -> help."""
    types: dict[str, Any] = {}
    helps: dict[str, str] = {}
    for spec in REWARDS.values():
        if spec.params is None:
            continue
        hints = get_type_hints(spec.params)
        for item in fields(spec.params):
            types[item.name] = without_none(hints[item.name])
            helps[item.name] = item.metadata["help"]
    return types, helps


_TYPES, REWARD_OPTION_HELP = _options()

if TYPE_CHECKING:
    RewardOptionsConfig = RewardOptionsSection
else:
    RewardOptionsConfig = RewardOptionsSection.with_options("RewardOptionsConfig", _TYPES)
