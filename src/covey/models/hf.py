"""Any other Hugging Face causal LM, through its own forward: slower than ``Decoder``, the same verbs and results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from covey.models.base import group_index
from covey.models.logprob import gathered_logprobs
from covey.tensors import TokenBatch


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """ids and attention mask [K, P], prompts flush right so that every completion starts in the same column."""
    longest = max(len(p) for p in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return ids.to(device), mask.to(device)


def _positions(mask: Tensor) -> Tensor:
    """Position of every token counted from the first real one; learned positions depend on it (known fault 11)."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def _padded_rows(batch: TokenBatch) -> tuple[dict[str, Tensor], Tensor]:
    """Model inputs with every row's prompt flush right before its completion, and [R, longest] bool: completion."""
    device = batch.completion_ids.device
    prompts = torch.split(batch.prompt_ids, batch.prompt_lens.tolist())
    ids, mask = _left_padded([prompts[g].tolist() for g in batch.group_of_row.tolist()], device)
    longest = int(batch.lens.max())
    column = torch.arange(longest, device=device)
    real = column[None, :] < batch.lens[:, None]
    own = torch.zeros(batch.num_rows, longest, dtype=torch.int64, device=device)
    own[real] = batch.completion_ids
    mask = torch.cat([mask, real.long()], dim=1)
    inputs = {"input_ids": torch.cat([ids, own], dim=1), "attention_mask": mask, "position_ids": _positions(mask)}
    return inputs, real


class HFModel:
    """Implements PolicyModel on a ``PreTrainedModel``."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def module(self) -> nn.Module:
        module: nn.Module = self._model
        return module

    @property
    def hidden_size(self) -> int:
        return int(self._model.config.hidden_size)

    def completion_logprobs(
        self, batch: TokenBatch, *, chunk_size: int, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """``chunk_size`` bounds rows: the model's own head makes the logits of whole rows, completion part only."""
        longest = int(batch.lens.max())
        rows_per_part = max(1, chunk_size // longest)
        parts = [self._part_logprobs(part, with_entropy) for part in batch.split(rows_per_part)]
        entropies = [entropy for _, entropy in parts if entropy is not None]
        return torch.cat([logp for logp, _ in parts]), torch.cat(entropies) if with_entropy else None

    def _part_logprobs(self, batch: TokenBatch, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
        inputs, real = _padded_rows(batch)
        longest = real.shape[1]
        outputs = self._model(**inputs, logits_to_keep=longest + 1, use_cache=False)
        logits = outputs.logits[:, -(longest + 1) : -1][real]
        return gathered_logprobs(logits, batch.completion_ids, batch.temperature_of_token, with_entropy)

    def completion_states(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        inputs, real = _padded_rows(batch)
        longest = real.shape[1]
        states: Tensor = self._model.base_model(**inputs, use_cache=False).last_hidden_state
        rows = torch.arange(batch.num_rows, device=states.device)
        return states[:, -(longest + 1) : -1][real], states[rows, batch.lens - longest - 1]

    @torch.no_grad()
    def prefill(
        self, prompts: Sequence[Sequence[int]], samples_per_prompt: Sequence[int], max_new_tokens: int
    ) -> tuple[Tensor, HFDecodeState]:
        device = next(self.module.parameters()).device
        ids, mask = _left_padded(prompts, device)
        outputs = self._model(
            input_ids=ids, attention_mask=mask, position_ids=_positions(mask), use_cache=True, logits_to_keep=1
        )
        group = group_index(samples_per_prompt).to(device)
        outputs.past_key_values.batch_select_indices(group)
        logits = outputs.logits[:, -1].float()[group]
        return logits, HFDecodeState(self._model, outputs.past_key_values, mask[group], logits)

    def hf_state(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.module.named_parameters()


class HFDecodeState:
    """Implements DecodeState on a ``transformers`` cache."""

    def __init__(self, model: Any, cache: Any, mask: Tensor, logits: Tensor) -> None:
        self._model, self._cache, self._mask, self._logits = model, cache, mask, logits

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        outputs = self._model(
            input_ids=tokens[:, None],
            attention_mask=self._mask,
            position_ids=self._mask.sum(-1, keepdim=True) - 1,
            past_key_values=self._cache,
            use_cache=True,
        )
        self._logits = outputs.logits[:, -1].float()
        return self._logits

    def chosen_logits(self, tokens: Tensor) -> Tensor:
        return self._logits.gather(1, tokens[:, None]).squeeze(1)

    def keep(self, rows: Tensor) -> None:
        self._cache.batch_select_indices(rows)
        self._mask = self._mask[rows]
