"""Which completion tokens are trained."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def truncation_mask(finish_reasons: Sequence[str], lens: Tensor) -> Tensor:
    """[N] float32: 0 on every token of a row that hit the length limit, 1 elsewhere (``mask_truncated_completions``).

    ``finish_reasons`` is ``stop`` or ``length`` per row, ``lens`` [R] the tokens per row. Such a row still counts in
    the statistics of its group; it only leaves the loss. Raises ValueError on another reason or a wrong number of them.
    """
    if len(finish_reasons) != lens.numel():
        raise ValueError(f"{len(finish_reasons)} finish reasons for {lens.numel()} rows")
    unknown = set(finish_reasons) - {"stop", "length"}
    if unknown:
        raise ValueError(f"unknown finish reason {sorted(unknown)}; known: stop, length")
    kept = torch.tensor([float(reason == "stop") for reason in finish_reasons], device=lens.device)
    return torch.repeat_interleave(kept, lens)
