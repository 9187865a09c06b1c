"""fp32 master weights, gradient accumulation and AdamW: what the policy and the critic are trained with alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from covey.backends.base import MetricSum, UpdateStats
from covey.tensors import TokenBatch

Share = Callable[[TokenBatch], tuple[Tensor, Mapping[str, MetricSum]]]
"""A micro-batch -> its share of the loss, with gradient, and metrics."""


@dataclass(frozen=True)
class AdamWParams:
    """AdamW (1711.05101); decay is applied to matrices only, not to norms and biases."""

    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    max_grad_norm: float = 1.0


def convert_parameters(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert the parameters in place; float32 buffers (rotary frequencies) must not be rounded with them."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)


class Masters:
    """The trained weights of a module that comes with float32 ones.

    With another ``compute_dtype`` these are kept apart as masters, and the module itself is converted in place into the
    rounded copy that computes.
    """

    def __init__(
        self, module: nn.Module, weights: list[nn.Parameter], params: AdamWParams, compute_dtype: torch.dtype
    ) -> None:
        self._weights, self._params = weights, params
        self.device = weights[0].device
        self._masters = weights
        if compute_dtype != torch.float32:
            self._masters = [nn.Parameter(p.detach().clone()) for p in weights]
            convert_parameters(module, compute_dtype)
        decay = [m for m in self._masters if m.dim() > 1]
        plain = [m for m in self._masters if m.dim() <= 1]
        self._optimizer = torch.optim.AdamW(
            [
                {"params": decay, "weight_decay": params.weight_decay},
                {"params": plain, "weight_decay": 0.0},
            ],
            betas=(params.beta1, params.beta2),
            eps=params.eps,
            fused=True,
        )

    def update(self, micros: Sequence[TokenBatch], share: Share, lr: float) -> UpdateStats:
        """One optimizer step over the sum of the shares of all micro-batches."""
        for parameter in (*self._weights, *self._masters):
            parameter.grad = None  # an update that was interrupted leaves gradients behind
        sums: dict[str, MetricSum] = {}
        loss_sum = 0.0
        for micro in micros:
            loss, metrics = share(micro.to(self.device))
            loss.backward()  # type: ignore[no-untyped-call]
            self._collect_gradients()
            loss_sum += loss.item()
            for name, (value, count) in metrics.items():
                before = sums.get(name, (0.0, 0.0))
                sums[name] = (before[0] + value, before[1] + count)
        norm = nn.utils.clip_grad_norm_(self._masters, self._params.max_grad_norm, foreach=True).item()
        applied = 0.0 < norm < float("inf")
        if applied:
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step()
            self._publish()
        self._optimizer.zero_grad(set_to_none=True)
        return UpdateStats(loss_sum, norm, applied, sums)

    def _collect_gradients(self) -> None:
        """Add a micro-batch's gradients to the float32 ones of the masters."""
        if self._masters is self._weights:
            return
        for weight, master in zip(self._weights, self._masters, strict=True):
            if weight.grad is None:
                continue
            if master.grad is None:
                master.grad = weight.grad.float()
            else:
                master.grad.add_(weight.grad)
            weight.grad = None

    @torch.no_grad()
    def _publish(self) -> None:
        """Round the masters into the compute copy."""
        if self._masters is not self._weights:
            torch._foreach_copy_([w.data for w in self._weights], [m.data for m in self._masters])

    def state_dict(self) -> dict[str, Any]:
        return {"masters": [m.detach() for m in self._masters], "optimizer": self._optimizer.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``; betas, eps and decay stay those of this run's own params.

        ValueError when the weights are those of another model.
        """
        shapes = [tuple(saved.shape) for saved in state["masters"]]
        if shapes != [tuple(master.shape) for master in self._masters]:
            raise ValueError("the saved weights have other shapes than this model: it was another model's run")
        for master, saved in zip(self._masters, state["masters"], strict=True):
            master.copy_(saved)
        own = [{key: group[key] for key in ("betas", "eps", "weight_decay")} for group in self._optimizer.param_groups]
        self._optimizer.load_state_dict(state["optimizer"])
        for group, settings in zip(self._optimizer.param_groups, own, strict=True):
            group.update(settings)
        self._publish()
