"""One process, one device (CPU or one GPU): fp32 master weights, compute in the model's dtype, AdamW."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from covey.backends.base import MetricSum, Objective, UpdateStats, ValueObjective
from covey.backends.masters import AdamWParams, Masters
from covey.models.base import PolicyModel
from covey.models.value import ValueModel
from covey.tensors import TokenBatch


class LocalBackend:
    """Implements TrainBackend. ``model`` comes with float32 weights; see ``Masters`` for another ``compute_dtype``."""

    def __init__(
        self,
        model: PolicyModel,
        reference: PolicyModel | None,
        params: AdamWParams,
        *,
        compute_dtype: torch.dtype = torch.float32,
        chunk_size: int = 512,
        with_entropy: bool = True,
    ) -> None:
        self._model, self._reference = model, reference
        self._chunk_size, self._with_entropy = chunk_size, with_entropy
        self._masters = Masters(model.module, list(model.module.parameters()), params, compute_dtype)

    def update(self, micros: Sequence[TokenBatch], objective: Objective, lr: float) -> UpdateStats:
        def share(micro: TokenBatch) -> tuple[Tensor, Mapping[str, MetricSum]]:
            logp, entropy = self._model.completion_logprobs(
                micro, chunk_size=self._chunk_size, with_entropy=self._with_entropy
            )
            return objective(micro, logp, entropy)

        return self._masters.update(micros, share, lr)

    @torch.no_grad()
    def logprobs(
        self, micros: Sequence[TokenBatch], *, reference: bool = False, with_entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        model = self._reference if reference else self._model
        if model is None:
            raise RuntimeError("reference log-probs asked for, but no reference model was loaded (beta is 0)")
        parts = [
            model.completion_logprobs(
                micro.to(self._masters.device),
                chunk_size=self._chunk_size,
                with_entropy=with_entropy,
            )
            for micro in micros
        ]
        entropies = [entropy for _, entropy in parts if entropy is not None]
        return torch.cat([logp for logp, _ in parts]).cpu(), torch.cat(entropies).cpu() if with_entropy else None

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._model.hf_state()

    def state_dict(self) -> dict[str, Any]:
        return self._masters.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._masters.load_state_dict(state)


class LocalValueBackend:
    """Implements ValueBackend: a critic (a value per token), or ``of_rows`` a reward model (a score per completion)."""

    def __init__(
        self, model: ValueModel, params: AdamWParams, *, of_rows: bool, compute_dtype: torch.dtype = torch.float32
    ) -> None:
        self._forward = model.scores if of_rows else model.values
        self._masters = Masters(model, model.trained_parameters(), params, compute_dtype)

    def update(self, micros: Sequence[TokenBatch], objective: ValueObjective, lr: float) -> UpdateStats:
        return self._masters.update(micros, lambda micro: objective(micro, self._forward(micro)), lr)

    @torch.no_grad()
    def values(self, micros: Sequence[TokenBatch]) -> Tensor:
        return torch.cat([self._forward(micro.to(self._masters.device)) for micro in micros]).cpu()

    def state_dict(self) -> dict[str, Any]:
        return self._masters.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._masters.load_state_dict(state)
