"""Denominators: known fault 2, and that nothing about how a batch is cut up can change them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from covey.algo.losses import LOSSES
from covey.algo.masks import truncation_mask
from covey.algo.objective import Objective
from covey.algo.weights import AGGREGATIONS, AggregationParams, BatchCounts, aggregation_weights, count_batch
from covey.tensors import TokenBatch, make_batch

CONSTANTS = AggregationParams(max_completion_length=40, rows_per_micro_batch=2)
LENS = [[4, 1, 6], [2, 2, 3]]  # two groups of three rows


def random_batch(aggregation: str, masked_rows: tuple[int, ...] = (1,)) -> tuple[TokenBatch, Tensor]:
    """A batch with weights, and policy log-probs [N] that require grad."""
    generator = torch.Generator().manual_seed(0)
    batch = make_batch([[1], [2, 3]], [[[7] * n for n in group] for group in LENS])
    old, ref, noise = (torch.rand(3, batch.num_tokens, generator=generator) - 2).double().unbind()
    mask = torch.ones(batch.num_rows).double()
    mask[list(masked_rows)] = 0
    mask = mask[batch.row_of_token]
    batch = batch.with_fields(
        mask=mask,
        advantages=torch.randn(batch.num_rows, generator=generator).double()[batch.row_of_token],
        weights=aggregation_weights(mask, batch.lens, aggregation, CONSTANTS, group_of_row=batch.group_of_row),
        rollout_logprobs=old,
        old_logprobs=old,
        ref_logprobs=ref,
    )
    return batch, (old + (noise + 1.5) / 2).requires_grad_()


def objective() -> Objective:
    return Objective(LOSSES["grpo"].bind(), "k3", 0.1, on_policy=False)


def loss_and_gradient(parts: list[TokenBatch], logp: Tensor) -> tuple[Tensor, Tensor]:
    pieces = logp.split([part.num_tokens for part in parts])
    loss = torch.stack([objective()(part, piece)[0] for part, piece in zip(parts, pieces, strict=True)]).sum()
    return loss.detach(), torch.autograd.grad(loss, logp)[0]


def test_a_truncated_row_leaves_both_sides() -> None:
    lens = torch.tensor([25, 5])
    mask = truncation_mask(["stop", "length"], lens)
    assert mask.tolist() == [1.0] * 25 + [0.0] * 5
    for aggregation in ("seq-mean-token-mean", "token-mean", "micro-token-mean"):  # the fault gives 25 / 30 = 0.8333
        assert aggregation_weights(mask, lens, aggregation, CONSTANTS).sum().item() == pytest.approx(1.0, abs=1e-6)
    # Dr. GRPO divides by 2 rows * 40 tokens whatever is masked: 25 / 80
    assert aggregation_weights(mask, lens, "seq-mean-token-sum-norm", CONSTANTS).sum().item() == pytest.approx(
        0.3125, abs=1e-6
    )


def test_weights_by_hand() -> None:
    lens, mask = torch.tensor([3, 1, 2]), torch.tensor([1, 1, 0, 1, 0, 0], dtype=torch.float64)
    expected = {
        "seq-mean-token-mean": [1 / 4, 1 / 4, 0, 1 / 2, 0, 0],  # two rows with tokens, of 2 and 1
        "token-mean": [1 / 3, 1 / 3, 0, 1 / 3, 0, 0],  # three tokens
        "seq-mean-token-sum-norm": [1 / 120, 1 / 120, 0, 1 / 120, 0, 0],  # three rows of 40
        "micro-token-mean": [
            1 / 3,
            1 / 3,
            0,
            1 / 3,
            0,
            0,
        ],  # micro-batches {0, 1} and {2}; the second is empty and leaves
        "seq-mean-token-sum": [1 / 2, 1 / 2, 0, 1 / 2, 0, 0],  # two rows with tokens
        "prompt-mean-token-mean": [1 / 4, 1 / 4, 0, 1 / 2, 0, 0],  # groups {0} and {1, 2}, with 2 and 1 tokens
    }
    for name in AGGREGATIONS:
        weights = aggregation_weights(mask, lens, name, CONSTANTS, group_of_row=torch.tensor([0, 1, 1]))
        torch.testing.assert_close(weights, torch.tensor(expected[name], dtype=torch.float64), atol=1e-15, rtol=0)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_everything_masked_changes_nothing(aggregation: str) -> None:
    batch, logp = random_batch(aggregation, masked_rows=(0, 1, 2, 3, 4, 5))
    assert torch.count_nonzero(batch.weights) == 0
    loss, gradient = loss_and_gradient([batch], logp)
    assert loss.item() == 0.0
    assert torch.count_nonzero(gradient) == 0 and bool(gradient.isfinite().all())


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("rows_per_part", [1, 2, 6])
def test_the_micro_batch_size_is_free(aggregation: str, rows_per_part: int) -> None:
    batch, logp = random_batch(aggregation)
    loss, gradient = loss_and_gradient(batch.split(rows_per_part), logp)
    whole_loss, whole_gradient = loss_and_gradient([batch], logp)
    torch.testing.assert_close(loss, whole_loss, atol=1e-14, rtol=0)
    torch.testing.assert_close(gradient, whole_gradient, atol=1e-14, rtol=0)


@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"])
def test_the_row_order_is_free(aggregation: str) -> None:
    batch, _ = random_batch(aggregation)
    order = torch.tensor([5, 2, 0, 4, 1, 3])
    tokens = torch.cat([torch.nonzero(batch.row_of_token == row).squeeze(1) for row in order])
    weights = aggregation_weights(batch.mask[tokens], batch.lens[order], aggregation, CONSTANTS)
    torch.testing.assert_close(weights, batch.weights[tokens], atol=0, rtol=0)


# For bnpo a rank holds whole nominal micro-batches of two rows, for prompt whole groups of three.
@pytest.mark.parametrize(
    ("aggregation", "first_rank_rows"),
    [
        (name, rows)
        for name in AGGREGATIONS
        for rows in (2, 3, 4)
        if (name != "micro-token-mean" or rows != 3) and (name != "prompt-mean-token-mean" or rows == 3)
    ],
)
def test_ranks_with_different_numbers_of_rows(aggregation: str, first_rank_rows: int) -> None:
    batch, _ = random_batch(aggregation)
    ranks = [batch.select_rows(range(first_rank_rows)), batch.select_rows(range(first_rank_rows, 6))]
    counts = [count_batch(rank.mask, rank.lens, CONSTANTS, rank.group_of_row) for rank in ranks]
    total = BatchCounts(
        rows=sum(c.rows for c in counts),
        trained_rows=sum(c.trained_rows for c in counts),
        trained_tokens=sum(c.trained_tokens for c in counts),
        trained_micro_batches=sum(c.trained_micro_batches for c in counts),
        trained_groups=sum(c.trained_groups for c in counts),
    )
    micro_batches, groups = {2: (3, 3), 3: (4, 2), 4: (3, 3)}[first_rank_rows]  # a group on both ranks counts twice
    assert total == BatchCounts(
        rows=6, trained_rows=5, trained_tokens=17, trained_micro_batches=micro_batches, trained_groups=groups
    )
    weights = [
        aggregation_weights(rank.mask, rank.lens, aggregation, CONSTANTS, total, rank.group_of_row) for rank in ranks
    ]
    torch.testing.assert_close(torch.cat(weights), batch.weights, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("aggregation", "share"),
    [("seq-mean-token-mean", 2 / 5), ("token-mean", 10 / 17), ("seq-mean-token-sum-norm", 3 / 6)],
)
def test_adding_a_group_is_a_weighted_mean_of_losses(aggregation: str, share: float) -> None:
    """Group 0 has 3 rows, 2 of them trained, with 10 of the 17 trained tokens."""
    batch, logp = random_batch(aggregation)
    parts = batch.split(3)
    alone = [
        part.with_fields(weights=aggregation_weights(part.mask, part.lens, aggregation, CONSTANTS)) for part in parts
    ]
    first, second = (
        loss_and_gradient([part], piece)[0] for part, piece in zip(alone, logp.split([11, 7]), strict=True)
    )
    both, _ = loss_and_gradient([batch], logp)
    torch.testing.assert_close(both, share * first + (1 - share) * second, atol=1e-14, rtol=0)


def test_bnpo_depends_on_its_nominal_micro_batch_only() -> None:
    lens, mask = torch.tensor([1, 3]), torch.ones(4)
    whole = aggregation_weights(mask, lens, "micro-token-mean", AggregationParams(rows_per_micro_batch=2))
    single = aggregation_weights(mask, lens, "micro-token-mean", AggregationParams(rows_per_micro_batch=1))
    assert whole.tolist() == [0.25] * 4
    torch.testing.assert_close(single, torch.tensor([1 / 2, 1 / 6, 1 / 6, 1 / 6]))


def test_wrong_arguments_are_refused() -> None:
    lens, mask = torch.tensor([2]), torch.ones(2)
    with pytest.raises(ValueError, match="max_completion_length"):
        aggregation_weights(mask, lens, "seq-mean-token-sum-norm", AggregationParams())
    with pytest.raises(ValueError, match="rows_per_micro_batch"):
        aggregation_weights(mask, lens, "micro-token-mean", AggregationParams())
    with pytest.raises(ValueError, match="'mean'; known: seq-mean-token-mean, token-mean"):
        aggregation_weights(mask, lens, "mean", AggregationParams())
    with pytest.raises(ValueError, match="at least 1, got 0"):
        AggregationParams(rows_per_micro_batch=0)
    with pytest.raises(ValueError, match="1 finish reasons for 2 rows"):
        truncation_mask(["stop"], torch.tensor([1, 1]))
    with pytest.raises(ValueError, match="'eos'"):
        truncation_mask(["eos"], lens)
