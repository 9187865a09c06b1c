"""What the trainer and the rollout engine need of a policy model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from covey.tensors import TokenBatch


class DecodeState(Protocol):
    """The running key/value caches of a set of sequences being sampled."""

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token per row [B]; returns float32 logits [B, V] of the next one."""
        ...

    def chosen_logits(self, tokens: Tensor) -> Tensor:
        """float32 logits [B] of one token per row at the position sampled last, as exact as the model gives them."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Drop every row but these (ascending indices [B'])."""
        ...


class PolicyModel(Protocol):
    """A causal language model behind which the fast decoder and any other HF model look the same."""

    @property
    def module(self) -> nn.Module: ...

    @property
    def hidden_size(self) -> int: ...

    def completion_logprobs(
        self, batch: TokenBatch, *, chunk_size: int, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """log pi(token | prefix) at the batch's temperatures, [N] float32, and the entropy [N] if asked.

        Both with gradient.
        """
        ...

    def completion_states(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Final states that predict each completion token [N, d], and those after the last token of each row [R, d]."""
        ...

    def prefill(
        self, prompts: Sequence[Sequence[int]], samples_per_prompt: Sequence[int], max_new_tokens: int
    ) -> tuple[Tensor, DecodeState]:
        """Run each prompt once; float32 logits [B, V] of every sample's first new token, rows ordered by prompt."""
        ...

    def hf_state(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face parameter name, tensor view) of every weight; tied copies once."""
        ...


def group_index(samples_per_prompt: Sequence[int]) -> Tensor:
    """[B] int64: the prompt of every row when prompt k has ``samples_per_prompt[k]`` rows."""
    return torch.repeat_interleave(torch.arange(len(samples_per_prompt)), torch.tensor(samples_per_prompt))
