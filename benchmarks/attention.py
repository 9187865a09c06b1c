"""Masked attention of a training step on the CPU: Covey's batched products against scaled_dot_product_attention.

    python benchmarks/attention.py

Shapes of SmolLM2-135M (9 query heads, 3 key/value heads, 64 wide), 16 completions of 110 tokens after a prompt of 36,
bf16. Prints the median milliseconds of forward and backward of both, interleaved, and their ratio.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from covey.models.attention import attend_padded

ROWS, LENGTH, PROMPT, HEADS, KV_HEADS, DIM, REPEATS = 16, 110, 36, 9, 3, 64, 15


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    rep = HEADS // KV_HEADS
    k, v = k.repeat_interleave(rep, dim=2), v.repeat_interleave(rep, dim=2)
    heads_first = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(*heads_first, attn_mask=mask[:, None]).transpose(1, 2)


def milliseconds(attend: Callable[..., Tensor], inputs: list[Tensor], mask: Tensor) -> float:
    began = time.perf_counter()
    attend(*inputs, mask).sum().backward()
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    torch.manual_seed(0)
    keys = PROMPT + LENGTH
    shapes = [(ROWS, LENGTH, HEADS, DIM), (ROWS, keys, KV_HEADS, DIM), (ROWS, keys, KV_HEADS, DIM)]
    inputs = [torch.randn(shape, dtype=torch.bfloat16).requires_grad_() for shape in shapes]
    mask = torch.ones(LENGTH, keys, dtype=torch.bool).tril(PROMPT)[None]
    times: dict[str, list[float]] = {"covey": [], "sdpa": []}
    for _ in range(REPEATS):
        times["covey"].append(milliseconds(attend_padded, inputs, mask))
        times["sdpa"].append(milliseconds(sdpa, inputs, mask))
    ours, theirs = (statistics.median(times[name]) for name in ("covey", "sdpa"))
    threads = torch.get_num_threads()
    print(f"covey {ours:.1f} ms, sdpa {theirs:.1f} ms, sdpa / covey = {theirs / ours:.2f} ({threads} threads)")


if __name__ == "__main__":
    main()
