"""A backbone with a scalar head: the critic of PPO (a value per token), the reward model (a score per completion)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from covey.models.base import PolicyModel
from covey.models.decoder import Decoder
from covey.tensors import TokenBatch


class ValueModel(nn.Module):
    """A policy's backbone, all of it trained, and a linear head without a bias that starts at zero.

    A zero head makes the first values 0 for every state, instead of noise that PPO would have to unlearn.
    """

    def __init__(self, backbone: PolicyModel) -> None:
        super().__init__()
        self.backbone = backbone
        self.body = backbone.module  # registers the weights
        self.head = nn.Linear(backbone.hidden_size, 1, bias=False, device=next(self.body.parameters()).device)
        nn.init.zeros_(self.head.weight)

    def values(self, batch: TokenBatch) -> Tensor:
        """[N] float32: the value of the state in which each completion token is chosen."""
        return self._read(self.backbone.completion_states(batch)[0])

    def scores(self, batch: TokenBatch) -> Tensor:
        """[R] float32: the score of each whole completion, read at its last token."""
        return self._read(self.backbone.completion_states(batch)[1])

    def _read(self, states: Tensor) -> Tensor:
        return (states.float() @ self.head.weight.float().t()).squeeze(1)

    def trained_parameters(self) -> list[nn.Parameter]:
        """Backbone and head; a decoder's own language-model head, which nothing reads, is left out."""
        unused = self.body.head if isinstance(self.body, Decoder) else None
        skipped = set() if unused is None else {id(p) for p in unused.parameters()}
        return [p for p in self.parameters() if id(p) not in skipped]

    def hf_state(self) -> Iterator[tuple[str, Tensor]]:
        """The weights under the names of transformers' sequence classification models."""
        for name, tensor in self.backbone.hf_state():
            if not name.startswith("lm_head."):
                yield name, tensor
        yield "score.weight", self.head.weight
