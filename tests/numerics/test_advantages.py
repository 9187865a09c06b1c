"""Group-relative advantages: known fault 3, exact zeros, ragged groups."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from covey.algo.advantages import ADVANTAGE_ESTIMATORS, gdpo_advantages, group_advantages, zero_std_groups

NAN = float("nan")
SCALES = ["group", "batch", "none"]


def one_group(rewards: list[float], scale: str = "group", eps: float = 0.0) -> Tensor:
    return group_advantages(
        torch.tensor(rewards, dtype=torch.float64), torch.zeros(len(rewards)).long(), "grpo", scale, eps
    )


def assert_close(actual: Tensor, expected: list[float], atol: float = 1e-12) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), atol=atol, rtol=0)


@pytest.mark.parametrize("bad", [NAN, float("inf"), -float("inf")])
def test_a_row_that_nobody_scored_gets_zero_and_leaves_the_statistics(bad: float) -> None:
    # mean of 1 and 3 is 2, sample std sqrt(2): -1/sqrt(2), 0, 1/sqrt(2)
    assert_close(one_group([1.0, bad, 3.0]), [-(0.5**0.5), 0.0, 0.5**0.5])


def test_one_success_in_four_uses_the_sample_std() -> None:
    # mean 1/4, variance (3/16 + 9/16) / 3 = 1/4, std 1/2: -1/4 / 1/2 and 3/4 / 1/2
    assert_close(one_group([0.0, 0.0, 0.0, 1.0]), [-0.5, -0.5, -0.5, 1.5])


def test_none_rewards_of_known_fault_17() -> None:
    # mean of 0, 1, 0 is 1/3
    assert_close(one_group([NAN, 0.0, 1.0, 0.0], "none"), [0.0, -1 / 3, 2 / 3, -1 / 3])


@pytest.mark.parametrize("estimator", [name for name in ADVANTAGE_ESTIMATORS if name != "reinforce_plus_plus"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("rewards", [[5.0], [2.0] * 4, [NAN, 5.0], [NAN, NAN], [0.1 + 0.2, 0.3]])
def test_a_group_without_a_difference_gives_exact_zeros(rewards: list[float], scale: str, estimator: str) -> None:
    # A second group with a signal, so that the batch std is not zero.
    values = torch.tensor([*rewards, 0.0, 1.0], dtype=torch.float64)
    groups = torch.tensor([0] * len(rewards) + [1, 1])
    advantages = group_advantages(values, groups, estimator, scale, eps=0.0, lens=torch.ones(len(values)))
    assert advantages[: len(rewards)].tolist() == [0.0] * len(rewards)
    assert advantages[-1] > 0 > advantages[-2]


@pytest.mark.parametrize("scale", SCALES)
def test_constant_float32_groups_give_exact_zeros(scale: str) -> None:
    # In float32 the mean of eight equal numbers need not be that number, and (rounding / tiny eps) is no small number.
    values = torch.arange(1, 400, dtype=torch.float32) / 100
    rewards, groups = values.repeat_interleave(8), torch.arange(399).repeat_interleave(8)
    assert torch.count_nonzero(group_advantages(rewards, groups, "grpo", scale, eps=1e-9)) == 0
    assert bool(zero_std_groups(rewards, groups).all())


def test_rounding_of_a_weighted_sum_is_no_signal() -> None:
    # 0.4 + 0.6 against 1 - 2^-23: neighbours in float32
    rewards = torch.tensor([1.0, 1.0 - 2**-23, 1.0, 1.0])
    assert group_advantages(rewards, torch.zeros(4).long(), "grpo", "group").tolist() == [0.0] * 4
    assert group_advantages(rewards - torch.tensor([1e-3, 0, 0, 0]), torch.zeros(4).long(), "grpo", "group")[0] < -1


def test_groups_of_unequal_size_do_not_touch_each_other() -> None:
    rewards = [0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 7.0]
    groups = torch.tensor([0, 0, 1, 1, 1, 1, 2])
    advantages = group_advantages(torch.tensor(rewards, dtype=torch.float64), groups, "grpo", "group", eps=0.0)
    # group 0: mean 1/2, std sqrt(1/2); group 1: as above; group 2: alone
    assert_close(advantages, [-(0.5**0.5), 0.5**0.5, -0.5, -0.5, -0.5, 1.5, 0.0])
    shuffled = torch.tensor([6, 3, 0, 5, 1, 2, 4])
    again = group_advantages(
        torch.tensor(rewards, dtype=torch.float64)[shuffled], groups[shuffled], "grpo", "group", eps=0.0
    )
    assert_close(again, advantages[shuffled].tolist())


def test_the_batch_std_is_that_of_the_raw_scored_rewards() -> None:
    rewards = torch.tensor([0.0, 2.0, NAN, 4.0, 6.0], dtype=torch.float64)
    advantages = group_advantages(rewards, torch.tensor([0, 0, 0, 1, 1]), "grpo", "batch", eps=0.0)
    std = (20 / 3) ** 0.5  # 0, 2, 4, 6 around 3: (9 + 1 + 1 + 9) / 3
    assert_close(advantages, [-1 / std, 1 / std, 0.0, -1 / std, 1 / std])


def test_leave_one_out_is_the_scaled_group_mean_form() -> None:
    rewards, groups = torch.rand(9, dtype=torch.float64), torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])
    size = torch.tensor([4.0, 4, 4, 4, 3, 3, 3, 2, 2], dtype=torch.float64)
    centred = group_advantages(rewards, groups, "grpo", "none")
    assert_close(group_advantages(rewards, groups, "rloo", "none"), (size / (size - 1) * centred).tolist())


def test_leave_one_out_skips_rows_that_nobody_scored() -> None:
    rewards = torch.tensor([1.0, NAN, 0.0, 0.5], dtype=torch.float64)
    # others of row 0: 0 and 0.5; of row 2: 1 and 0.5; of row 3: 1 and 0
    assert_close(group_advantages(rewards, torch.zeros(4).long(), "rloo", "none"), [0.75, 0.0, -0.75, 0.0])


def test_zero_std_groups() -> None:
    rewards = torch.tensor([1.0, 1.0, 0.0, 1.0, NAN, 1.0, NAN, NAN])
    assert zero_std_groups(rewards, torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])).tolist() == [True, False, True, True]


def test_dtype_is_kept_and_an_empty_batch_is_fine() -> None:
    assert one_group([0.0, 1.0]).dtype == torch.float64
    empty = group_advantages(torch.zeros(0), torch.zeros(0).long(), "grpo", "batch")
    assert empty.shape == (0,) and empty.dtype == torch.float32


def test_wrong_arguments_are_refused() -> None:
    rewards, groups = torch.rand(2), torch.zeros(2).long()
    with pytest.raises(ValueError, match=r"'gpro'; known: grpo, rloo"):
        group_advantages(rewards, groups, "gpro", "group")
    with pytest.raises(ValueError, match=r"'std'; known: group, batch, none"):
        group_advantages(rewards, groups, "grpo", "std")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must both be"):
        group_advantages(rewards, groups[:1], "grpo", "group")
    with pytest.raises(ValueError, match="floating point"):
        group_advantages(groups, groups, "grpo", "group")


def test_divisors_that_make_no_sense_are_refused_and_not_used() -> None:
    """A negative group mean would turn the signs of maxrl round; success rates lie between 0 and 1."""
    groups = torch.tensor([0, 0, 1, 1])
    with pytest.raises(ValueError, match="one is negative"):
        group_advantages(torch.tensor([0.0, -1.0, 1.0, 0.0]), groups, "maxrl")
    with pytest.raises(ValueError, match="between 0 and 1"):
        group_advantages(torch.tensor([2.0, 1.0, 1.0, 0.0]), groups, "bnpo_paper")
    alone = group_advantages(torch.tensor([1.0, 0.0, float("nan"), float("nan")]), groups, "bnpo_paper")
    assert alone.tolist() == [0.5, -0.5, 0.0, 0.0]  # one group: nothing to fit, no division


def test_rows_that_nobody_scored_are_no_part_of_gdpos_batch() -> None:
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    weights, groups = torch.tensor([1.0, 0.5], dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    plain = gdpo_advantages(rewards, weights, groups)
    unscored = torch.cat([rewards, torch.full((2, 2), float("nan"), dtype=torch.float64)])
    more = gdpo_advantages(unscored, weights, torch.tensor([0, 0, 1, 1, 1, 2]))
    assert torch.allclose(more[:4], plain) and more[4:].tolist() == [0.0, 0.0]
