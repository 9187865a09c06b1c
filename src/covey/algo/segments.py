"""Sums over the rows of a flat tensor: the ragged counterpart of ``x.sum(dim=1)``.

Shapes used all over ``algo``: N completion tokens stored flat, R rows (completions), K groups (prompts).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def row_index(lens: Tensor) -> Tensor:
    """[N] int64: the row of each token, from the row lengths [R] (their sum is N)."""
    return (lens.new_ones(lens.numel()).cumsum(0) - 1).repeat_interleave(lens)


def segment_sum(values: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """[S]: the sum of ``values`` [M] over each segment; ``segment`` [M] int64 holds ids in 0..S-1."""
    return values.new_zeros(num_segments).index_add(0, segment, values)


def row_sum(values: Tensor, mask: Tensor, row_of_token: Tensor, num_rows: int) -> Tensor:
    """[N]: the sum of ``values`` over the trained tokens of a row, put back on each of its tokens."""
    return segment_sum(values * mask, row_of_token, num_rows)[row_of_token]


def row_mean(values: Tensor, mask: Tensor, row_of_token: Tensor, num_rows: int) -> Tensor:
    """[N]: the mean of ``values`` over the trained tokens of a row, put back on each of its tokens."""
    return row_sum(values, mask, row_of_token, num_rows) / row_sum(mask, mask, row_of_token, num_rows).clamp(min=1)


def sum_to_come(values: Tensor, mask: Tensor, lens: Tensor) -> Tensor:
    """[N]: for each token the sum of ``values`` over it and the later trained tokens of its row."""
    kept = (values * mask).double()  # the running sum goes over all rows: in float32 a row would feel its neighbours
    ahead = kept.cumsum(0)
    ends = lens.cumsum(0) - 1
    return ((ahead[ends].repeat_interleave(lens) - ahead + kept) * mask).to(values.dtype)
