"""Key/value caches of the fast decoder: one per prompt shared by its samples, one per sample for its own tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covey.models.attention import attend_padded
from covey.models.base import group_index
from covey.models.logprob import chosen_logits

if TYPE_CHECKING:
    from covey.models.decoder import Attend, Decoder


class GroupedCache:
    """Decoding state of B samples of K prompts; implements ``DecodeState`` for ``Decoder``.

    Prompt keys/values [K, KV, P, D] are computed once; own keys/values [B, KV, T, D] are preallocated. All rows are at
    the same number of own tokens, so the own part needs no mask. Scores of both parts share one softmax.
    """

    def __init__(self, model: Decoder, prompt_lens: Tensor, group: Tensor, max_new_tokens: int) -> None:
        spec = model.spec
        weight = model.embed.weight
        self._model = model
        self._prompt_lens, self._group, self._used = prompt_lens, group, 0
        self._prompt: list[tuple[Tensor, Tensor]] = []
        shape = (len(group), spec.num_kv_heads, max_new_tokens, spec.head_dim)
        # on a CPU the small products of decoding are faster, and exact, in float32
        self._dtype = torch.float32 if weight.device.type == "cpu" else weight.dtype
        self._own = [
            (weight.new_empty(shape, dtype=self._dtype), weight.new_empty(shape, dtype=self._dtype))
            for _ in range(spec.num_layers)
        ]
        self._regroup()

    def _regroup(self) -> None:
        """Places of the rows in a [K, Gmax] grid, so that all samples of a prompt meet its keys in one product."""
        counts = torch.bincount(self._group, minlength=len(self._prompt_lens))
        widest = int(counts.max())
        starts = torch.cumsum(counts, 0) - counts
        inside = torch.arange(len(self._group), device=counts.device) - starts[self._group]
        self._slot = self._group * widest + inside
        grid = torch.zeros(len(counts) * widest, dtype=torch.int64, device=counts.device)
        self._grid = grid.scatter_(0, self._slot, torch.arange(len(self._group), device=counts.device))
        self._widest = widest
        longest = int(self._prompt_lens.max())
        pad = torch.arange(longest, device=counts.device)[None, :] >= self._prompt_lens[:, None]
        self._prompt_pad = pad[:, None, None, :] if bool(pad.any()) else None

    @torch.no_grad()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Run the prompts and keep their keys/values; float32 logits [B, V] of the first token of every row."""
        count, longest = len(prompts), int(self._prompt_lens.max())
        device = self._prompt_lens.device
        ids = torch.zeros(count, longest, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        ids = ids.to(device)
        positions = torch.arange(longest, device=device).expand(count, -1)
        mask = positions[:1, None, :] <= positions[:1, :, None]

        def attend(_: int) -> Attend:
            def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                q, k, v = (t.view(count, longest, *t.shape[1:]) for t in (q, k, v))
                self._prompt.append(
                    (k.transpose(1, 2).to(self._dtype).contiguous(), v.transpose(1, 2).to(self._dtype).contiguous())
                )
                return attend_padded(q, k, v, mask).flatten(0, 1)

            return run

        states = self._model.hidden(ids.flatten(), positions.flatten(), attend).view(count, longest, -1)
        last = states[torch.arange(count, device=device), self._prompt_lens - 1]
        self._states = last.index_select(0, self._group)
        return (last @ self._model.head_weight.t()).float().index_select(0, self._group)

    def _attend(self, layer: int) -> Attend:
        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            rows, heads, dim = q.shape
            kv_heads, used = k.shape[1], self._used + 1
            rep, groups = heads // kv_heads, len(self._prompt_lens)
            own_k, own_v = (cache[:, :, :used] for cache in self._own[layer])
            own_k[:, :, -1], own_v[:, :, -1] = k, v
            prompt_k, prompt_v = self._prompt[layer]
            compute_dtype = q.dtype
            q = (q.to(self._dtype) * (1.0 / math.sqrt(dim))).view(rows, kv_heads, rep, dim)
            grid_q = q.index_select(0, self._grid).view(groups, self._widest, kv_heads, rep, dim)
            grid_q = grid_q.transpose(1, 2).reshape(groups, kv_heads, self._widest * rep, dim)
            prompt_scores = grid_q @ prompt_k.transpose(-1, -2)
            if self._prompt_pad is not None:
                prompt_scores = prompt_scores.masked_fill(self._prompt_pad, float("-inf"))
            scores = torch.cat([self._from_grid(prompt_scores, rep), q @ own_k.transpose(-1, -2)], dim=-1)
            weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(self._dtype)
            length = prompt_k.shape[2]
            grid_w = weights[..., :length].index_select(0, self._grid).view(groups, self._widest, kv_heads, rep, length)
            grid_w = grid_w.transpose(1, 2).reshape(groups, kv_heads, self._widest * rep, length)
            out = weights[..., length:] @ own_v + self._from_grid(grid_w @ prompt_v, rep)
            return out.view(rows, heads, dim).to(compute_dtype)

        return run

    def _from_grid(self, x: Tensor, rep: int) -> Tensor:
        """[K, KV, Gmax * rep, C] -> [B, KV, rep, C]."""
        groups, kv_heads, _, width = x.shape
        x = x.view(groups, kv_heads, self._widest, rep, width).transpose(1, 2).flatten(0, 1)
        return x.index_select(0, self._slot)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        positions = self._prompt_lens[self._group] + self._used
        self._states = self._model.hidden(tokens, positions, self._attend)
        self._used += 1
        return (self._states @ self._model.head_weight.t()).float()

    def chosen_logits(self, tokens: Tensor) -> Tensor:
        return chosen_logits(self._states, self._model.head_weight, tokens)

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        used = self._used
        compact = [(k[:, :, :used].index_select(0, rows), v[:, :, :used].index_select(0, rows)) for k, v in self._own]
        for (k, v), (kept_k, kept_v) in zip(self._own, compact, strict=True):
            k[: len(rows), :, :used], v[: len(rows), :, :used] = kept_k, kept_v
        self._own = [(k[: len(rows)], v[: len(rows)]) for k, v in self._own]
        groups, self._group = torch.unique(self._group[rows], return_inverse=True)
        if len(groups) < len(self._prompt_lens):
            self._prompt_lens = self._prompt_lens[groups]
            longest = int(self._prompt_lens.max())
            self._prompt = [
                (k.index_select(0, groups)[:, :, :longest], v.index_select(0, groups)[:, :, :longest])
                for k, v in self._prompt
            ]
        self._regroup()


@torch.no_grad()
def start_decoding(
    model: Decoder, prompts: Sequence[Sequence[int]], samples_per_prompt: Sequence[int], max_new_tokens: int
) -> tuple[Tensor, GroupedCache]:
    """Prefill every prompt once; float32 logits [B, V] of the first token of every sample, and the cache."""
    device = model.embed.weight.device
    lens = torch.tensor([len(p) for p in prompts], device=device)
    group = group_index(samples_per_prompt).to(device)
    cache = GroupedCache(model, lens, group, max_new_tokens)
    return cache.prefill(prompts), cache
