"""Attention over the shared-prompt layout: the prompts of the groups once, each completion attends to its own prompt.

Linear layers run on flat tokens without padding; only inside attention are rows padded to a rectangle. On a CPU a plain
batched product with the query heads of one key/value head folded into the query length is about three times faster,
forward and backward, than scaled_dot_product_attention with a mask (benchmarks/README.md).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from covey.tensors import TokenBatch


def attend_padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Masked grouped-query attention.

    q [B, L, H, D]; k, v [B, S, KV, D]; mask bool [B or 1, L, S], True where the query may look; returns [B, L, H, D].
    """
    rows, length, heads, dim = q.shape
    kv_heads, keys = k.shape[2], k.shape[1]
    if q.device.type != "cpu":
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask.unsqueeze(1), enable_gqa=True
        )
        return out.transpose(1, 2)
    rep = heads // kv_heads
    folded_q = (
        q.view(rows, length, kv_heads, rep, dim).permute(0, 2, 3, 1, 4).reshape(rows * kv_heads, rep * length, dim)
    )
    folded_k = k.permute(0, 2, 3, 1).reshape(rows * kv_heads, dim, keys)
    folded_v = v.permute(0, 2, 1, 3).reshape(rows * kv_heads, keys, dim)
    scores = torch.bmm(folded_q * (1.0 / math.sqrt(dim)), folded_k)
    bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, float("-inf"))
    scores = scores.view(rows, kv_heads * rep, length, keys) + bias.unsqueeze(1)
    weights = torch.softmax(scores, dim=-1).view(rows * kv_heads, rep * length, keys)
    out = torch.bmm(weights, folded_v)
    return out.view(rows, kv_heads, rep, length, dim).permute(0, 3, 1, 2, 4).reshape(rows, length, heads, dim)


def _pad_index(lens: Tensor) -> tuple[Tensor, Tensor]:
    """For flat segments of ``lens``: index [R, Lmax] of padded from flat (pads repeat a real token), and [T] back."""
    longest = int(lens.max())
    starts = torch.cumsum(lens, 0) - lens
    column = torch.arange(longest, device=lens.device)
    into = starts[:, None] + torch.minimum(column[None, :], lens[:, None] - 1)
    rows = torch.repeat_interleave(torch.arange(len(lens), device=lens.device), lens)
    back = rows * longest + torch.arange(int(lens.sum()), device=lens.device) - starts[rows]
    return into, back


def _take(x: Tensor, index: Tensor) -> Tensor:
    """x[index] through index_select, whose backward is far faster on a CPU than that of advanced indexing."""
    return x.index_select(0, index.flatten()).view(*index.shape, *x.shape[1:])


class PackedLayout:
    """Indices of one TokenBatch for flat tokens ordered [all prompts | all completions], P + N in all."""

    def __init__(self, batch: TokenBatch) -> None:
        prompt_lens, lens, group = batch.prompt_lens, batch.lens, batch.group_of_row
        device = lens.device
        self.input_ids = torch.cat([batch.prompt_ids, batch.completion_ids])
        self.num_prompt_tokens = int(prompt_lens.sum())
        self._group = group
        self._prompt_into, self._prompt_back = _pad_index(prompt_lens)
        self._own_into, self._own_back = _pad_index(lens)
        longest_prompt, longest = self._prompt_into.shape[1], self._own_into.shape[1]
        prompt_col = torch.arange(longest_prompt, device=device)
        own_col = torch.arange(longest, device=device)
        self._prompt_mask = (prompt_col[None, :] <= prompt_col[:, None])[None]
        causal = own_col[None, :] <= own_col[:, None]
        if bool((prompt_lens == longest_prompt).all()):
            see_prompt = torch.ones(1, longest, longest_prompt, dtype=torch.bool, device=device)
            self._own_mask = torch.cat([see_prompt, causal[None]], dim=2)
        else:
            see = (prompt_col[None, :] < prompt_lens[group][:, None])[:, None, :].expand(-1, longest, -1)
            self._own_mask = torch.cat([see, causal[None].expand(len(lens), -1, -1)], dim=2)
        prompt_starts = torch.cumsum(prompt_lens, 0) - prompt_lens
        group_of_prompt_token = torch.repeat_interleave(torch.arange(len(prompt_lens), device=device), prompt_lens)
        row = batch.row_of_token
        starts = torch.cumsum(lens, 0) - lens
        offset = torch.arange(batch.num_tokens, device=device) - starts[row]
        self.positions = torch.cat(
            [
                torch.arange(self.num_prompt_tokens, device=device) - prompt_starts[group_of_prompt_token],
                prompt_lens[group[row]] + offset,
            ]
        )
        last_prompt = (prompt_starts + prompt_lens - 1)[group[row]]
        previous = self.num_prompt_tokens + torch.arange(batch.num_tokens, device=device) - 1
        # the state that predicts completion token j: the prompt's last token for j = 0, else token j - 1
        self.predictor = torch.where(offset == 0, last_prompt, previous)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [P+N, H, D], k and v [P+N, KV, D] flat -> [P+N, H, D] flat."""
        cut = self.num_prompt_tokens
        into, back = self._prompt_into, self._prompt_back
        prompt_k, prompt_v = _take(k[:cut], into), _take(v[:cut], into)
        prompt_out = attend_padded(_take(q[:cut], into), prompt_k, prompt_v, self._prompt_mask)
        own_into, own_back = self._own_into, self._own_back
        keys = torch.cat([prompt_k.index_select(0, self._group), _take(k[cut:], own_into)], dim=1)
        values = torch.cat([prompt_v.index_select(0, self._group), _take(v[cut:], own_into)], dim=1)
        own_out = attend_padded(_take(q[cut:], own_into), keys, values, self._own_mask)
        return torch.cat([_take(prompt_out.flatten(0, 1), back), _take(own_out.flatten(0, 1), own_back)])
