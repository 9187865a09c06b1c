"""Controllers of beta and of the entropy bonus (known fault 29); golden values: tests/numerics/test_golden.py."""

from __future__ import annotations

import math

import pytest

from covey.control.coefficients import (
    Coefficients,
    EntropyControl,
    KLControl,
    ProportionalRule,
    ThresholdRule,
)


def test_the_proportional_rule_of_fault_29() -> None:
    rule = ProportionalRule(target=1.0, horizon=100)
    assert [rule(0.1, kl, 10) for kl in (2.0, 0.5, 1.05)] == pytest.approx([0.102, 0.098, 0.1005])
    control = KLControl(0.1, rule)
    for _ in range(2):
        control.observe(2.0, 10)
    resumed = KLControl(0.1, rule)
    resumed.load_state_dict(control.state_dict())
    resumed.observe(2.0, 10)
    assert resumed.beta == pytest.approx(0.1061208)


@pytest.mark.parametrize("target, horizon", [(0, 1), (-1, 1), (1, 0), (1, -1), (math.nan, 1), (1, math.inf)])
def test_impossible_settings_are_refused(target: float, horizon: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        ProportionalRule(target, horizon)


@pytest.mark.parametrize("change", [{"low": 0.2}, {"low": -0.1}, {"up": 0.9}, {"down": 1.1}, {"down": 0.0}])
def test_thresholds_the_wrong_way_round_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="need 0 <= low"):
        ThresholdRule(**change)


def test_a_broken_kl_moves_nothing_and_is_said() -> None:
    control = KLControl(0.1, ThresholdRule())
    for broken in (math.nan, math.inf):
        said = control.observe(broken, 8)
        assert said is not None and "stays 0.1" in said
    assert control.observe(None, 8) is None
    assert control.beta == 0.1


def test_beta_stays_between_its_bounds() -> None:
    control = KLControl(0.1, ThresholdRule(), low=0.09, high=0.11)
    control.observe(1.0, 8)
    assert control.beta == 0.11
    for _ in range(3):
        control.observe(0.0, 8)
    assert control.beta == 0.09


def test_fixed_is_fixed() -> None:
    control = KLControl(0.1)
    for kl in (2.0, 2.0, 2.0):
        control.observe(kl, 10)
    assert control.beta == 0.1
    before = KLControl(0.1).state_dict()
    for after in (KLControl(0.3), KLControl(0.3, ThresholdRule())):
        after.load_state_dict(before)
        assert after.beta == 0.3  # the flag of the resumed run counts, also where beta begins to move now
    moved = KLControl(0.1, ThresholdRule())
    moved.observe(1.0, 8)
    bounded = KLControl(0.1, ThresholdRule(), high=0.11)
    bounded.load_state_dict(moved.state_dict())
    assert bounded.beta == 0.11


def test_a_kl_in_the_reward_is_that_of_the_whole_rollout() -> None:
    coefficients = Coefficients(KLControl(0.1, ThresholdRule()))
    for kl in (0.3, 0.3):
        coefficients.observe(kl, None, 8, hold=True)
    assert coefficients.kl.beta == 0.1
    coefficients.observe(0.003, None, 8)  # the mean of the three is 0.201: one move up
    assert coefficients.kl.beta == pytest.approx(0.12)
    assert coefficients.observe(0.001, None, 8) == () and coefficients.kl.beta == pytest.approx(0.096)


def test_the_alarm_speaks_once_per_spike() -> None:
    control = KLControl(0.1, alarm=0.5)
    said = [control.observe(kl, 8) for kl in (0.4, 0.6, 0.7, 0.3, 0.9)]
    assert [text is not None for text in said] == [False, True, False, False, True]
    assert said[1] is not None and "0.6 nats per token" in said[1] and "--kl_alarm 0.5" in said[1]


def test_the_entropy_bonus_acts_below_the_target_only() -> None:
    control = EntropyControl(coef=0.0, target=0.2, delta=0.005, low=0.0, high=0.012)
    weights = []
    for entropy in (0.1, 0.2, 0.1, 0.3, 0.1):
        control.observe(entropy)
        weights.append(control.weight)
    assert weights == pytest.approx([0.005, 0.01, 0.012, 0.0, 0.012])  # after 0.3 the coefficient is 0.007, and off


def test_coefficients_are_resumed_together() -> None:
    def fresh() -> Coefficients:
        return Coefficients(KLControl(0.1, ThresholdRule()), EntropyControl(0.0, 0.2, 0.01))

    first = fresh()
    assert first.observe(0.5, 0.1, 8) == ()
    second = fresh()
    second.load_state_dict(first.state_dict())
    assert second == first and second.kl.beta == pytest.approx(0.12) and second.entropy is not None
    assert second.entropy.coef == 0.01
    Coefficients(KLControl(0.1)).load_state_dict(first.state_dict())  # a run that goes on without it
    second.load_state_dict(Coefficients(KLControl(0.1)).state_dict())  # and one that begins with it
