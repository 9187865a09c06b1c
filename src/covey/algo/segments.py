"""Sums over the rows of a flat tensor: the ragged counterpart of ``x.sum(dim=1)``.

Shapes used all over ``algo``: N completion tokens stored flat, R rows (completions), K groups (prompts).
"""

from __future__ import annotations

import torch
from torch import Tensor


def row_index(lens: Tensor) -> Tensor:
    """[N] int64: the row of each token, from the row lengths [R] (their sum is N)."""
    return torch.repeat_interleave(torch.arange(lens.numel(), device=lens.device), lens)


def segment_sum(values: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """[S]: the sum of ``values`` [M] over each segment; ``segment`` [M] int64 holds ids in 0..S-1."""
    return values.new_zeros(num_segments).index_add(0, segment, values)
