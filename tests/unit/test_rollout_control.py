"""Remedies against groups without variance, and where prompts come from: decisions, without a model."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from covey.algo import advantages
from covey.control.ladder import Ladder
from covey.control.outcomes import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE, has_variance, is_mixed, one_sided, solve_rate
from covey.control.rollouts import RolloutControl, RolloutLimits
from covey.control.source import PromptSource, SolveRates, Stages, Stream
from covey.errors import UserError
from covey.types import Completion, Group, Prompt, Scored

LIMITS = RolloutLimits(
    completions=32,
    temperature=1.0,
    raised_temperature=1.5,
    max_group_size=32,
    max_tries=3,
    when_exhausted="partial",
)
PROMPTS = [Prompt(f"p{i}", ()) for i in range(40)]


def group(rights: list[float | None], shaped: float = 0.0, index: int = 0, version: int = 0) -> Group:
    """Completions of these accuracies; ``shaped``: a second reward that differs from member to member."""
    members = []
    for number, right in enumerate(rights):
        completion = Completion((1, 2), (-0.5, -0.25), "ab", "stop", version)
        extra = shaped * number
        total = None if right is None else right + extra
        members.append(Scored(completion, {"accuracy": right, "format": extra}, total))
    return Group(PROMPTS[index], tuple(members))


def control(source: PromptSource | None = None, ladder: Ladder | None = None, **changes: Any) -> RolloutControl:
    limits = RolloutLimits(**{**{name: getattr(LIMITS, name) for name in LIMITS.__slots__}, **changes})
    stream = source or Stream(len(PROMPTS), 8, shuffle=False, seed=0)
    return RolloutControl(stream, ladder or Ladder(), limits, {prompt.id: prompt for prompt in PROMPTS})


# --- outcomes ---


def test_a_group_is_judged_by_accuracy_not_by_shaping() -> None:
    """The trap of dynamic sampling: a reward for format or length makes an all-wrong group look mixed."""
    wrong = group([0.0, 0.0, 0.0], shaped=0.1)
    assert not is_mixed(wrong) and has_variance(wrong)
    assert is_mixed(group([0.0, 1.0, 0.0])) and not is_mixed(group([1.0, 1.0]))
    assert not is_mixed(group([None, None])) and not has_variance(group([None, None]))


def test_without_an_accuracy_the_total_decides() -> None:
    completion = Completion((1,), (-0.5,), "a", "stop")
    same = Group(PROMPTS[0], tuple(Scored(completion, {"mine": 0.3}, 0.3) for _ in range(3)))
    assert not is_mixed(same) and one_sided([same]) is None
    judged = tuple(Scored(completion, {"accuracy": None, "mine": k}, k) for k in (0.0, 1.0))
    assert is_mixed(Group(PROMPTS[0], judged))  # accuracy does not apply to this prompt, another reward does
    assert solve_rate(same) == (pytest.approx(0.9), 3)


def test_all_wrong_and_all_right_are_told_apart() -> None:
    groups = [group([0.0, 0.0]), group([1.0, 1.0]), group([1.0, 0.0]), group([0.0, None])]
    assert one_sided(groups) == (0.5, 0.25)
    assert solve_rate(groups[3]) == (0.0, 1) and solve_rate(group([None])) is None


# --- the ladder ---


def test_the_ladder_climbs_and_steps_down_with_reasons() -> None:
    ladder = Ladder(("refill", "group_size"), high=0.7, low=0.4, patience=2)
    seen = [(ladder.observe(share), ladder.level) for share in (0.8, 0.9, 0.8, 0.75, 1.0, 0.9, 0.5, 0.3, 0.2, 0.1, 0.1)]
    assert [level for _, level in seen] == [0, 1, 1, 2, 2, 2, 2, 2, 1, 1, 0]
    said = [text for text, _ in seen if text]
    assert said[0] == (
        "ladder: refill on (rung 1 of 2): 0.90 of the groups have one outcome, above 0.7 2 times running"
    )
    assert [text.split(":")[1].split("(")[0].strip() for text in said] == [
        "refill on", "group_size on", "group_size off", "refill off",
    ]  # fmt: skip
    assert "below 0.4" in said[2]


def test_one_good_rollout_starts_the_count_anew() -> None:
    ladder = Ladder(("drop",), patience=2)
    for share in (0.9, 0.6, 0.9, None, 0.6, 0.9):
        assert ladder.observe(share) is None
    assert ladder.observe(0.9) is not None


def test_always_is_always() -> None:
    ladder = Ladder(("temperature",), always=frozenset({"refill"}), patience=1)
    assert ladder.remedies == {"refill"}
    ladder.observe(1.0)
    assert ladder.remedies == {"refill", "temperature"}
    assert Ladder(always=frozenset({"drop"})).observe(1.0) is None


# --- a rollout ---


def test_the_plan_follows_the_remedies() -> None:
    plain = control().plan()
    assert (plain.prompts, plain.num_generations, plain.temperature, plain.max_group_size) == (4, 8, 1.0, 8)
    assert not plain.refill and not plain.drop
    everything = Ladder(("drop", "refill", "budget", "group_size", "temperature"), level=5)
    plan = control(ladder=everything).plan()
    assert (plan.prompts, plan.num_generations, plan.temperature, plan.max_group_size) == (4, 16, 1.5, 32)
    assert plan.refill and plan.drop


REFILL = Ladder(always=frozenset({"refill"}))


def test_surplus_groups_are_carried_over_and_none_is_lost() -> None:
    steering = control(ladder=REFILL)
    steering.begin(0)
    plan = steering.plan()
    kept = [group([0.0, 1.0], index=i) for i in range(6)]
    trained, said = steering.settle(plan, kept, 9)
    assert trained == kept[:4] and said is None
    steering.begin(1)
    assert steering.take_carried(steering.plan()) == kept[4:]
    assert steering.take_carried(steering.plan()) == []


def test_a_batch_that_stays_short_has_a_documented_outcome() -> None:
    """Known fault 26."""
    kept = [group([0.0, 1.0], index=i) for i in range(2)]
    partial = control(ladder=REFILL)
    trained, said = partial.settle(partial.plan(), kept, 16)
    assert trained == kept and said is not None
    assert "2 of 4 groups have both outcomes, 16 were sampled; the step is taken on these" in said

    skip = control(ladder=REFILL, when_exhausted="skip")
    trained, said = skip.settle(skip.plan(), kept, 16)
    assert trained == [] and said is not None and "kept for the next rollout" in said
    assert skip.take_carried(skip.plan()) == kept

    stop = control(ladder=REFILL, when_exhausted="stop")
    with pytest.raises(UserError, match="--max_resample_times"):
        stop.settle(stop.plan(), kept, 16)


def test_more_is_sampled_where_less_is_kept() -> None:
    steering = control(ladder=REFILL)
    plan = steering.plan()
    assert len(steering.take(plan, 0)) == 4
    assert len(steering.take(plan, 3)) == 1  # nothing is known yet: as if every group was good
    steering.observe(plan, [0, 1], [group([0.0, 0.0]), group([1.0, 0.0])])  # a keep rate of 0.75
    assert len(steering.take(plan, 2)) == 3
    for _ in range(8):
        steering.observe(plan, [0], [group([0.0, 0.0])])
    assert len(steering.take(plan, 2)) == 4  # never more than a rollout has


def test_without_a_ratio_nothing_is_sampled_that_would_be_carried() -> None:
    """reinforce and gpg would take a carried group for one of their own policy."""
    steering = control(ladder=REFILL, may_carry=False)
    plan = steering.plan()
    for _ in range(8):
        steering.observe(plan, [0], [group([0.0, 0.0])])
    assert [len(steering.take(plan, kept)) for kept in (0, 2, 3)] == [4, 2, 1]


def test_a_few_groups_beside_carried_ones_do_not_move_the_ladder() -> None:
    steering = control(ladder=Ladder(("drop",), patience=1))
    assert steering.observe(steering.plan(), [0], [group([0.0, 0.0])]) == []
    assert len(steering.observe(steering.plan(), [0, 1, 2, 3], [group([0.0, 0.0])] * 4)) == 1


def test_a_rollout_that_begins_again_is_as_it_was(tmp_path: Any) -> None:
    """After a stop inside a rollout it is sampled anew: same prompts, same rung, same carried groups."""

    def fresh() -> RolloutControl:
        return control(ladder=Ladder(("refill",), patience=1))

    first = fresh()
    first.begin(0)
    first.settle(first.plan(), [group([0.0, 1.0], index=i, version=3) for i in range(5)], 5)
    first.begin(1)
    taken = first.take(first.plan(), 0)
    first.take_carried(first.plan())
    first.observe(first.plan(), [0, 1, 2, 3], [group([0.0, 0.0])] * 4)
    state = json.loads(json.dumps(first.state_dict()))  # plain values only

    inside, after = fresh(), fresh()
    inside.load_state_dict(state)
    inside.begin(1)
    assert inside.ladder.level == 0 and inside.take(inside.plan(), 0) == taken
    (carried,) = inside.take_carried(inside.plan())
    assert carried == group([0.0, 1.0], index=4, version=3)
    after.load_state_dict(state)
    after.begin(2)
    assert after.ladder.level == 1 and after.take_carried(after.plan()) == []
    assert after.take(after.plan(), 0) != taken


def test_a_carried_group_of_another_data_set_is_refused() -> None:
    steering = control()
    steering.settle(steering.plan(), [group([0.0, 1.0], index=i) for i in range(5)], 5)
    other = control()
    other.prompts = {}
    with pytest.raises(ValueError, match="p4, which is not in the data"):
        other.load_state_dict(steering.state_dict())


# --- curricula ---


def test_stages_go_from_easy_to_hard_with_their_group_sizes() -> None:
    source = Stages([float(9 - i) for i in range(9)], (4, 8, 16), 0.8, longest=100, shuffle=False, seed=0)
    steering = control(source)
    assert source.num_generations == 4 and steering.plan().prompts == 8
    assert source.take(4) == [8, 7, 6, 8]  # the easiest third, again and again
    for _ in range(2):
        said = source.observe([0], [group([1.0] * 4)])
    assert said == "curriculum: stage 2 of 3, groups of 8: solve rate 1.00"
    assert source.take(3) == [5, 4, 3] and steering.plan().prompts == 4
    assert source.metrics() == {"curriculum/stage": 2.0}
    again = Stages([float(9 - i) for i in range(9)], (4, 8, 16), 0.8, longest=100, shuffle=False, seed=0)
    again.load_state_dict(source.state_dict())
    assert again.take(2) == source.take(2) and again.num_generations == 8


def test_a_stage_ends_after_its_share_of_the_run() -> None:
    source = Stages([1.0, 2.0, 3.0, 4.0], (4, 8), 0.9, longest=3, shuffle=True, seed=0)
    said = [source.observe([0], [group([0.0, 1.0])]) for _ in range(5)]
    assert [text is not None for text in said] == [False, False, True, False, False]
    assert said[2] is not None and "3 rollouts are done" in said[2]


def test_solve_rates_prefer_what_is_solved_half_of_the_time() -> None:
    source = SolveRates(30, 8, 1, 0.7)
    sure, half, never = range(10), range(10, 20), range(20, 30)
    for i in sure:
        source.observe([i], [group([1.0] * 8)])
    for i in half:
        source.observe([i], [group([0.0, 1.0] * 4)])
    for i in never:
        source.observe([i], [group([0.0] * 8)])
    # Beta(1 + s, 1 + f): 5 * 5 / (10 * 11) and 9 * 1 / (10 * 11)
    assert source.weight(10) == pytest.approx(25 / 110) and source.weight(0) == pytest.approx(9 / 110)
    drawn: Counter[int] = Counter()
    for _ in range(200):
        drawn.update(i // 10 for i in source.take(5))
        source.observe([], [])
    assert drawn[1] > 1.7 * drawn[0] and drawn[1] > 1.7 * drawn[2]
    assert source.metrics() == {"curriculum/tried": 30.0, "curriculum/solve_rate": pytest.approx(0.5)}


def test_solve_rates_forget_and_are_resumed() -> None:
    source = SolveRates(3, 4, 1, 0.5)
    for _ in range(3):
        source.observe([0], [group([0.0] * 4)])
    source.observe([0], [group([1.0] * 4)])  # failed (4 * .5 + 4) * .5 + 4 = 7, halved; solved 4
    assert source.weight(0) == pytest.approx(5 * 4.5 / (9.5 * 10.5))
    again = SolveRates(3, 4, 1, 0.5)
    again.load_state_dict(source.state_dict())
    assert again.take(7) == source.take(7) and again.weight(0) == source.weight(0)
    source.observe([], [])
    assert sorted(source.take(2) + source.take(1)) == [0, 1, 2]  # without replacement, however often it is asked


def test_another_curriculum_begins_at_its_beginning() -> None:
    before = control()
    before.begin(0)
    before.take(before.plan(), 0)
    after = control(SolveRates(len(PROMPTS), 8, 1, 0.5))
    after.load_state_dict(before.state_dict())
    assert after.source.metrics()["curriculum/tried"] == 0


def test_every_prompt_counts_once_for_a_stage() -> None:
    """Adaptive budgets make groups of one outcome large; pooled over completions they would say 0.9 here."""
    source = Stages([1.0, 2.0], (4, 8), 0.8, longest=100, shuffle=False, seed=0)
    for _ in range(3):
        assert source.observe([0, 1], [group([1.0] * 32), group([0.0, 1.0])]) is None


def test_tolerances_are_those_of_the_advantages() -> None:
    assert (RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE) == (advantages.RELATIVE_TOLERANCE, advantages.ABSOLUTE_TOLERANCE)
    assert not is_mixed(group([0.1 + 0.2, 0.3])) and not has_variance(group([0.1 + 0.2, 0.3]))
