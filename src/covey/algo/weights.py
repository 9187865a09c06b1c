"""Every denominator of a loss, as one weight per token.

The loss of an optimizer step is ``sum(weights * token_loss)`` over all its tokens, wherever they are computed. The
weights come from the final mask over the *whole* batch of the step, before the first forward pass; so micro-batch size,
accumulation, packing and number of ranks can not change the gradient.

Each aggregation is one denominator per row: ``weight = mask / denominator[row]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.algo.segments import row_index, segment_sum

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class AggregationParams:
    """Constants that some aggregations divide by."""

    max_completion_length: int | None = None
    """Tokens; the constant length L of seq-mean-token-sum-norm."""
    rows_per_micro_batch: int | None = None
    """Rows; the nominal micro-batch of micro-token-mean."""

    def __post_init__(self) -> None:
        for name in ("max_completion_length", "rows_per_micro_batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What the whole batch of one optimizer step holds; each rank counts its own rows and the fields are summed."""

    rows: int
    trained_rows: int
    """Rows with at least one token that the mask leaves in."""
    trained_tokens: int
    trained_micro_batches: int = 0
    """Nominal micro-batches with at least one trained token; only micro-token-mean reads it."""
    trained_groups: int = 0
    """Groups with at least one trained token; only prompt-mean-token-mean reads it. Ranks must hold whole groups."""


@dataclass(frozen=True, slots=True)
class RowTokens:
    """The rows at hand: trained tokens [R] float64 of each row, and of the nominal micro-batch and group it is in."""

    in_row: Tensor
    in_micro_batch: Tensor
    in_group: Tensor


def row_tokens(mask: Tensor, lens: Tensor, params: AggregationParams, group_of_row: Tensor | None = None) -> RowTokens:
    """Count trained tokens by row, by nominal micro-batch (the whole batch when none is given) and by group."""
    rows = lens.numel()
    in_row = segment_sum(mask.double(), row_index(lens), rows)
    micro = (lens.new_ones(rows).cumsum(0) - 1) // (params.rows_per_micro_batch or max(rows, 1))
    group = micro.new_zeros(rows) if group_of_row is None else group_of_row
    return RowTokens(in_row, segment_sum(in_row, micro, rows)[micro], segment_sum(in_row, group, rows)[group])


def count_batch(
    mask: Tensor, lens: Tensor, params: AggregationParams, group_of_row: Tensor | None = None
) -> BatchCounts:
    """Counts of one rank's rows: ``mask`` [N] of 0 and 1, ``lens`` [R] tokens per row, ``group_of_row`` [R]."""
    tokens = row_tokens(mask, lens, params, group_of_row)
    size = params.rows_per_micro_batch or max(lens.numel(), 1)
    trained = tokens.in_row > 0
    return BatchCounts(
        rows=lens.numel(),
        trained_rows=int(trained.sum()),
        trained_tokens=int(tokens.in_row.sum()),
        trained_micro_batches=int((tokens.in_micro_batch[::size] > 0).sum()),
        trained_groups=0 if group_of_row is None else len(set(group_of_row[trained].tolist())),
    )


def grpo_denominator(tokens: RowTokens, counts: BatchCounts, params: AggregationParams) -> Tensor:
    """Mean over rows of the mean over their tokens (arXiv 2402.03300): short rows weigh more per token."""
    return counts.trained_rows * tokens.in_row


def dapo_denominator(tokens: RowTokens, counts: BatchCounts, params: AggregationParams) -> Tensor:
    """Mean over all tokens of the batch (arXiv 2503.14476): long rows weigh more."""
    return tokens.in_row.new_full(tokens.in_row.shape, counts.trained_tokens)


def dr_grpo_denominator(tokens: RowTokens, counts: BatchCounts, params: AggregationParams) -> Tensor:
    """Rows times a constant length (arXiv 2503.20783).

    The point of Dr. GRPO is a denominator that no sampled length can move, so fully masked rows still count as rows.
    """
    if params.max_completion_length is None:
        raise ValueError("aggregation 'seq-mean-token-sum-norm' divides by max_completion_length, which is not set")
    return tokens.in_row.new_full(tokens.in_row.shape, counts.rows * params.max_completion_length)


def bnpo_denominator(tokens: RowTokens, counts: BatchCounts, params: AggregationParams) -> Tensor:
    """Mean over micro-batches of their own token mean: what TRL and ms-swift call ``bnpo``.

    By definition it depends on the micro-batch. Here that is a nominal one: consecutive runs of
    ``rows_per_micro_batch`` rows of a rank, so that the weights are still fixed beforehand and how the rows are really
    computed is free. Micro-batches without a trained token leave the mean.
    """
    if params.rows_per_micro_batch is None:
        raise ValueError(
            "aggregation 'micro-token-mean' is a mean inside micro-batches, but rows_per_micro_batch is not set"
        )
    return counts.trained_micro_batches * tokens.in_micro_batch


def sequence_sum_denominator(tokens: RowTokens, counts: BatchCounts, params: AggregationParams) -> Tensor:
    """Mean over rows of the *sum* over their tokens: a completion as one action (REINFORCE, RLOO arXiv 2402.14740)."""
    return tokens.in_row.new_full(tokens.in_row.shape, counts.trained_rows)


def prompt_denominator(tokens: RowTokens, counts: BatchCounts, params: AggregationParams) -> Tensor:
    """Mean over prompts of the mean over the prompt's tokens (the equation of DAPO; ScaleRL arXiv 2510.13786)."""
    return counts.trained_groups * tokens.in_group


# Names as verl's loss_agg_mode where it has them.
AGGREGATIONS: dict[str, Callable[[RowTokens, BatchCounts, AggregationParams], Tensor]] = {
    "seq-mean-token-mean": grpo_denominator,
    "token-mean": dapo_denominator,
    "seq-mean-token-sum-norm": dr_grpo_denominator,
    "micro-token-mean": bnpo_denominator,
    "seq-mean-token-sum": sequence_sum_denominator,
    "prompt-mean-token-mean": prompt_denominator,
}


def aggregation_weights(
    mask: Tensor,
    lens: Tensor,
    aggregation: str,
    params: AggregationParams,
    counts: BatchCounts | None = None,
    group_of_row: Tensor | None = None,
) -> Tensor:
    """Weights [N] (dtype of ``mask``) of the rows at hand, from the final ``mask`` [N] of 0 and 1 and ``lens`` [R].

    ``counts``: of the whole step when these rows are only one rank's share (sum of every rank's :func:`count_batch`);
    None when they are all. ``group_of_row`` [R]: read by ``prompt-mean-token-mean`` only. Fully masked rows leave
    numerator and denominator alike (seq-mean-token-sum-norm: see there); when nothing is left all weights are 0, so the
    loss is exactly 0 with zero gradients. Raises ValueError on an unknown name or a missing constant.
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"unknown aggregation {aggregation!r}; known: {', '.join(AGGREGATIONS)}")
    if aggregation == "prompt-mean-token-mean" and group_of_row is None:
        raise ValueError("aggregation 'prompt-mean-token-mean' is a mean over groups, but group_of_row is not given")
    counts = counts or count_batch(mask, lens, params, group_of_row)
    tokens = row_tokens(mask, lens, params, group_of_row)
    # A denominator of 0 only occurs where nothing is trained: 0 / 0 there, which the fill makes 0.
    denominator = AGGREGATIONS[aggregation](tokens, counts, params)[row_index(lens)]
    return (mask / denominator).masked_fill(mask == 0, 0.0).to(mask.dtype)
