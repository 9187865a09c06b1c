"""Wilson interval against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from covey.evals.stats import paired_difference, wilson_interval


def test_eight_of_ten() -> None:
    # z^2 = 3.8416; centre (0.8 + 0.19208) / 1.38416 = 0.716738;
    # half 1.96 * sqrt(0.16 / 10 + 3.8416 / 400) / 1.38416 = 0.226581
    assert wilson_interval(8, 10) == pytest.approx((0.490157, 0.943319), abs=2e-6)


def test_ends_are_exact_and_not_empty() -> None:
    # At 0 of n the upper bound is z^2 / (n + z^2) = 3.8416 / 13.8416.
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.277540), abs=1e-6)
    low, high = wilson_interval(10, 10)
    assert high == 1.0 and low == pytest.approx(1 - 0.277540, abs=1e-6)


def test_nothing_measured_is_nothing_known() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "n"), [(3, 2), (-1, 2), (0, -1)])
def test_impossible_counts_are_refused(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="successes"):
        wilson_interval(successes, n)


def test_paired_differences_by_hand() -> None:
    """Of four prompts a wins two and loses none: mean 0.5, sample variance 1/3, half width 1.96 * sqrt(1/12)."""
    mean, low, high = paired_difference([True, True, True, False], [True, False, False, False])
    assert mean == 0.5 and high - mean == pytest.approx(1.96 * math.sqrt(1 / 12)) == pytest.approx(mean - low)
    assert paired_difference([True, False], [True, False]) == (0, 0, 0)
    with pytest.raises(ValueError, match="got 1 and 2"):
        paired_difference([True], [True, False])
