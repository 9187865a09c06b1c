"""How the next rollout is sampled: prompts, group size, temperature, and what is done about groups without variance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from covey.control.ladder import Ladder
from covey.control.outcomes import is_mixed
from covey.control.source import PromptSource
from covey.errors import UserError
from covey.types import Completion, Group, Prompt, Scored


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """The next rollout."""

    prompts: int
    """Groups to train on."""
    num_generations: int
    temperature: float
    drop: bool
    """Groups without variance leave the denominators."""
    refill: bool
    """Groups with one outcome are replaced by those of other prompts."""
    max_group_size: int
    """Completions up to which a group with one outcome grows."""


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """What the remedies may do."""

    completions: int
    """Of a rollout, without remedies."""
    temperature: float
    raised_temperature: float
    max_group_size: int | None
    """None: four times the group size."""
    max_tries: int
    """Samplings after the first that dynamic sampling may take."""
    when_exhausted: Literal["partial", "skip", "stop"]
    may_carry: bool = True
    """Groups may be trained on later; not where the loss knows nothing of the policy that sampled."""


@dataclass
class RolloutControl:
    """Decides how rollouts are sampled, from what the earlier ones were like.

    ``begin`` a rollout, ask for its ``plan``, ``take`` prompts as often as needed, ``settle`` what was sampled.
    """

    source: PromptSource
    ladder: Ladder
    limits: RolloutLimits
    prompts: Mapping[str, Prompt] = field(repr=False)
    """By id: a checkpoint names the prompts of carried groups only."""
    _carried: list[Group] = field(default_factory=list)
    _keep_rate: float = 1.0
    _number: int = -1
    _before: dict[str, Any] = field(default_factory=dict)

    def begin(self, number: int) -> None:
        """Rollout ``number`` begins; if it had begun before a stop, everything is as it was then."""
        if number == self._number:
            self._load(self._before)
        self._number, self._before = number, self._state()

    def plan(self) -> RolloutPlan:
        """How it is sampled."""
        remedies, limits = self.ladder.remedies, self.limits
        size = self.source.num_generations
        prompts = max(1, limits.completions // size)
        size = 2 * size if "group_size" in remedies else size
        return RolloutPlan(
            prompts=prompts,
            num_generations=size,
            temperature=limits.raised_temperature if "temperature" in remedies else limits.temperature,
            drop="drop" in remedies,
            refill="refill" in remedies,
            max_group_size=(limits.max_group_size or 4 * size) if "budget" in remedies else size,
        )

    def take_carried(self, plan: RolloutPlan) -> list[Group]:
        """Groups that earlier rollouts had too many of, at most as many as the rollout has; they leave the stock."""
        taken, self._carried = self._carried[: plan.prompts], self._carried[plan.prompts :]
        return taken

    def take(self, plan: RolloutPlan, kept: int) -> list[int]:
        """Prompts to sample next, when ``kept`` groups are there: as many as will probably do."""
        missing = plan.prompts - kept
        if plan.refill and self.limits.may_carry:
            missing = min(plan.prompts, math.ceil(missing / max(self._keep_rate, 0.25)))
        return self.source.take(missing)

    def settle(self, plan: RolloutPlan, kept: Sequence[Group], fresh: int) -> tuple[list[Group], str | None]:
        """The groups to train on, and what to say of it; ``kept`` of the ``fresh`` and carried ones were fit.

        What is left over is carried into the next rollout. UserError when too few are to stop the run.
        """
        groups, surplus = list(kept[: plan.prompts]), list(kept[plan.prompts :])
        self._carried = surplus + self._carried
        if not plan.refill or len(groups) == plan.prompts:
            return groups, None
        short = f"dynamic sampling: {len(groups)} of {plan.prompts} groups have both outcomes, {fresh} were sampled"
        if self.limits.when_exhausted == "stop":
            raise UserError(f"{short}; raise --max_resample_times, or choose another --resample_exhausted")
        if self.limits.when_exhausted == "partial":
            return groups, f"{short}; the step is taken on these"
        self._carried = groups + self._carried
        return [], f"{short}; no step is taken, they are kept for the next rollout"

    def observe(self, plan: RolloutPlan, indices: Sequence[int], fresh: Sequence[Group]) -> list[str]:
        """All groups sampled in a rollout, before any of them grew, and their prompts; says moves with reasons.

        The ladder looks at whole rollouts only: a few groups sampled beside carried ones say little.
        """
        one_outcome = sum(not is_mixed(group) for group in fresh) / len(fresh) if fresh else None
        if one_outcome is not None:
            self._keep_rate = 0.5 * self._keep_rate + 0.5 * (1 - one_outcome)
        enough = len(fresh) >= plan.prompts
        said = [self.source.observe(indices, fresh), self.ladder.observe(one_outcome if enough else None)]
        return [text for text in said if text is not None]

    def metrics(self, plan: RolloutPlan) -> dict[str, float | None]:
        """What can change from rollout to rollout."""
        found = self.source.metrics()
        if self.ladder.rungs:
            found["ladder/level"] = float(self.ladder.level)
        if self.ladder.rungs or found:
            found |= {"num_generations": float(plan.num_generations), "temperature": plan.temperature}
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"number": self._number, "before": self._before, "now": self._state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._number, self._before = state["number"], dict(state["before"])
        self._load(state["now"])

    def _state(self) -> dict[str, Any]:
        return {
            "source": {"kind": type(self.source).__name__, **self.source.state_dict()},
            "ladder": self.ladder.state_dict(),
            "keep_rate": self._keep_rate,
            "carried": [group_record(group) for group in self._carried],
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        if state["source"]["kind"] == type(self.source).__name__:  # another curriculum begins at its beginning
            self.source.load_state_dict(state["source"])
        self.ladder.load_state_dict(state["ladder"])
        self._keep_rate = state["keep_rate"]
        self._carried = [group_of(record, self.prompts) for record in state["carried"]]


def group_record(group: Group) -> dict[str, Any]:
    """A group as plain values, its prompt by id."""
    members = [
        {"completion": asdict(m.completion), "rewards": dict(m.rewards), "total": m.total} for m in group.members
    ]
    return {"prompt": group.prompt.id, "members": members}


def group_of(record: Mapping[str, Any], prompts: Mapping[str, Prompt]) -> Group:
    """The group of a record; ValueError when its prompt is not one of the run's."""
    if record["prompt"] not in prompts:
        raise ValueError(f"a carried group answers the prompt {record['prompt']}, which is not in the data")
    members = []
    for member in record["members"]:
        saved = member["completion"]
        tuples = {name: tuple(saved[name]) for name in ("token_ids", "logprobs")}
        members.append(Scored(Completion(**{**saved, **tuples}), member["rewards"], member["total"]))
    return Group(prompts[record["prompt"]], tuple(members))


def joined(group: Group, more: Group) -> Group:
    """A group with more members of the same prompt."""
    return replace(group, members=group.members + more.members)
