"""The learning rate as a function of the step."""

from __future__ import annotations

import pytest

from covey.trainers.schedule import Schedule, warmup_steps


def rates(kind: str, warmup: int, total: int) -> list[float]:
    schedule = Schedule(kind, 1.0, warmup, total)
    return [schedule(step) for step in range(1, total + 1)]


def test_warm_up_is_linear_and_reaches_the_peak() -> None:
    assert rates("constant", 4, 6) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


def test_linear_decay() -> None:
    # after 1 step of warm-up, 4 steps from the peak down: 1 - k/4 for k = 0..3; it would be 0 one step later
    assert rates("linear", 1, 5) == pytest.approx([1, 1, 0.75, 0.5, 0.25])


def test_cosine_decay() -> None:
    # (1 + cos(pi k / 4)) / 2 for k = 0..3
    assert rates("cosine", 0, 4) == pytest.approx([1, 0.853553, 0.5, 0.146447], abs=1e-6)


def test_no_rate_is_zero_or_above_the_peak() -> None:
    for kind in ("constant", "linear", "cosine"):
        for warmup in (0, 1, 5, 9):
            assert all(0 < rate <= 1 for rate in rates(kind, warmup, 10))


def test_a_warm_up_longer_than_the_run_never_reaches_the_peak() -> None:
    assert rates("cosine", 10, 3) == pytest.approx([0.1, 0.2, 0.3])


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="known: constant, linear, cosine"):
        Schedule("polynomial", 1.0, 0, 3)(1)


def test_warm_up_length() -> None:
    assert warmup_steps(100, 7, 0.0) == 7
    assert warmup_steps(100, 0, 0.1) == 10
    assert warmup_steps(15, 0, 0.1) == 2  # 1.5 rounded up
    assert warmup_steps(100, 0, 0.0) == 0
