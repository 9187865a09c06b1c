"""TokenBatch: the only batch type between a rollout and a backward pass.

Layout: rows are completions, stored flat without padding (N completion tokens in all); prompts are stored once per
group, also flat. So there is nothing to mask that is not a real token, and a padding bug cannot be written down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

_PER_TOKEN = (
    "completion_ids",
    "mask",
    "advantages",
    "weights",
    "rollout_logprobs",
    "old_logprobs",
    "ref_logprobs",
    "marked",
    "nll_weights",
    "old_values",
    "returns",
)


@dataclass(frozen=True)
class TokenBatch:
    """Completions of one or more groups. P prompt tokens, N completion tokens, R rows, K groups.

    Example: one group, prompt ``[5, 6]``, completions ``[7, 2]`` and ``[8, 9, 2]``: ``prompt_ids [5, 6]``,
    ``prompt_lens [2]``, ``completion_ids [7, 2, 8, 9, 2]``, ``lens [2, 3]``, ``group_of_row [0, 0]``.
    """

    prompt_ids: Tensor  # [P] int64, prompts of the groups one after the other
    prompt_lens: Tensor  # [K] int64
    completion_ids: Tensor  # [N] int64
    lens: Tensor  # [R] int64, every row has at least one token
    group_of_row: Tensor  # [R] int64, non-decreasing
    mask: Tensor  # [N] float32, 1 where the token is trained (truncation masking etc. sets 0)
    advantages: Tensor  # [N] float32
    weights: Tensor  # [N] float32, the aggregation weight: applied loss = sum(weights * token_loss)
    rollout_logprobs: Tensor  # [N] float32, the engine's log-probs at the sampling temperature
    temperatures: Tensor  # [R] float32, at which each row was sampled; every log-prob of it is taken there
    old_logprobs: Tensor | None = None  # [N]; None: on-policy, the ratio is 1 by definition
    ref_logprobs: Tensor | None = None  # [N]; None: no KL term
    marked: Tensor | None = None  # [N] bool, tokens that the loss treats apart
    nll_weights: Tensor | None = None  # [N], weight of -logp as a term of its own
    rewards: Tensor | None = None  # [R], NaN where nobody scored; only terms over whole groups read it
    old_values: Tensor | None = None  # [N], the critic's values before the first update on the batch
    returns: Tensor | None = None  # [N], what the critic is trained towards

    @property
    def num_rows(self) -> int:
        return int(self.lens.numel())

    @property
    def num_groups(self) -> int:
        return int(self.prompt_lens.numel())

    @property
    def num_tokens(self) -> int:
        return int(self.completion_ids.numel())

    @property
    def row_of_token(self) -> Tensor:
        """[N] int64: the row each completion token belongs to."""
        return torch.repeat_interleave(torch.arange(self.num_rows, device=self.lens.device), self.lens)

    @property
    def temperature_of_token(self) -> Tensor:
        """[N] float32."""
        return self.temperatures.repeat_interleave(self.lens)

    def with_fields(self, **tensors: Tensor | None) -> TokenBatch:
        """A copy with some tensors replaced."""
        return replace(self, **tensors)  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> TokenBatch:
        moved = {f.name: value.to(device) for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}
        return replace(self, **moved)

    def select_rows(self, rows: Sequence[int]) -> TokenBatch:
        """The given rows (ascending) as a batch of their own; groups without a row are left out."""
        if len(rows) == 0:
            return self._empty()
        picked = torch.as_tensor(rows, dtype=torch.int64)
        starts = torch.cumsum(self.lens, 0) - self.lens
        token_index = _ranges(starts[picked], self.lens[picked])
        groups, new_group = torch.unique(self.group_of_row[picked], return_inverse=True)
        prompt_starts = torch.cumsum(self.prompt_lens, 0) - self.prompt_lens
        prompt_index = _ranges(prompt_starts[groups], self.prompt_lens[groups])
        per_token = {name: value[token_index] for name in _PER_TOKEN if (value := getattr(self, name)) is not None}
        return replace(
            self,
            prompt_ids=self.prompt_ids[prompt_index],
            prompt_lens=self.prompt_lens[groups],
            lens=self.lens[picked],
            temperatures=self.temperatures[picked],
            rewards=None if self.rewards is None else self.rewards[picked],
            group_of_row=new_group,
            **per_token,
        )

    def _empty(self) -> TokenBatch:
        return replace(
            self, **{f.name: value[:0] for f in fields(self) if (value := getattr(self, f.name)) is not None}
        )

    def split(self, rows_per_part: int) -> list[TokenBatch]:
        """Consecutive parts of at most ``rows_per_part`` rows; weights are already global, so sums stay the same."""
        return [
            self.select_rows(range(start, min(start + rows_per_part, self.num_rows)))
            for start in range(0, self.num_rows, rows_per_part)
        ]

    def unshared(self) -> TokenBatch:
        """The same rows with each prompt repeated per row (packing off)."""
        starts = torch.cumsum(self.prompt_lens, 0) - self.prompt_lens
        index = _ranges(starts[self.group_of_row], self.prompt_lens[self.group_of_row])
        return replace(
            self,
            prompt_ids=self.prompt_ids[index],
            prompt_lens=self.prompt_lens[self.group_of_row],
            group_of_row=torch.arange(self.num_rows, device=self.lens.device),
        )


def _ranges(starts: Tensor, lens: Tensor) -> Tensor:
    """[s, s+1, ... s+n-1] for every (s, n), one after the other."""
    ends = torch.cumsum(lens, 0)
    return torch.arange(int(ends[-1]), device=lens.device) + torch.repeat_interleave(starts - ends + lens, lens)


def make_batch(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[Sequence[int]]]) -> TokenBatch:
    """Pack ``completions[k]`` (the rows of group k) under ``prompts[k]``; weights and advantages start at zero,
    temperatures at one.

    Raises ValueError on an empty prompt, an empty completion, or another number of prompts than of groups.
    """
    if len(prompts) != len(completions):
        raise ValueError(f"{len(prompts)} prompts for {len(completions)} groups of completions")
    if any(len(p) == 0 for p in prompts) or any(len(c) == 0 for rows in completions for c in rows):
        raise ValueError("a prompt or a completion has no tokens")
    rows = [(k, c) for k, group in enumerate(completions) for c in group]
    flat = torch.tensor([t for _, c in rows for t in c], dtype=torch.int64)
    return TokenBatch(
        prompt_ids=torch.tensor([t for p in prompts for t in p], dtype=torch.int64),
        prompt_lens=torch.tensor([len(p) for p in prompts], dtype=torch.int64),
        completion_ids=flat,
        lens=torch.tensor([len(c) for _, c in rows], dtype=torch.int64),
        group_of_row=torch.tensor([k for k, _ in rows], dtype=torch.int64),
        mask=torch.ones(len(flat)),
        advantages=torch.zeros(len(flat)),
        weights=torch.zeros(len(flat)),
        rollout_logprobs=torch.zeros(len(flat)),
        temperatures=torch.ones(len(rows)),
    )
