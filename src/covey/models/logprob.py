"""log-probabilities of given tokens from final states, the vocabulary projection done in chunks.

Neither the logits nor their gradient ever exist for more than ``chunk_size`` tokens; the weight gradient is summed in
float32. The backward pass recomputes the logits of a chunk (one extra product, about 7% of a training step).
The entropy has a gradient too, for an entropy bonus.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Temperature = float | Tensor
"""The sampling temperature: one for all tokens, or one each, [N]."""


def _chunk_logits(states: Tensor, weight: Tensor, temperature: Tensor) -> Tensor:
    return (states @ weight.t()).float().div_(temperature[:, None])


def chosen_logits(states: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """states[i] . weight[ids[i]] in float32, [n].

    A bfloat16 product rounds a logit of 16 by up to 0.03, which the log-prob of that token inherits. Taking this one
    logit in float32 removes a third of the gap between engine and trainer at the cost of a dot product per token.
    """
    return (states.float() * weight.index_select(0, ids).float()).sum(-1)


def with_chosen_logit(logp: Tensor, rounded: Tensor, exact: Tensor) -> Tensor:
    """The log-prob with the chosen logit replaced by its exact value; all [n], logits already over the temperature."""
    change = exact - rounded
    return logp + change - torch.log1p(logp.exp() * torch.expm1(change))


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, ids: Tensor, temperature: Tensor, chunk_size: int, with_entropy: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        count = len(ids)
        logp = torch.empty(count, dtype=torch.float32, device=states.device)
        normaliser = torch.empty_like(logp)
        entropy = torch.zeros_like(logp)
        for start in range(0, count, chunk_size):
            part = slice(start, start + chunk_size)
            logits = _chunk_logits(states[part], weight, temperature[part])
            chosen = chosen_logits(states[part], weight, ids[part]) / temperature[part]
            logits.scatter_(1, ids[part, None], chosen[:, None])
            highest = logits.amax(dim=-1)
            exps = torch.sub(logits, highest[:, None], out=None if with_entropy else logits).exp_()
            total = exps.sum(dim=-1)
            normaliser[part] = highest + total.log()
            logp[part] = chosen - normaliser[part]
            if with_entropy:
                # H = log Z - E[logit]; the dot product needs no [n, V] temporary
                entropy[part] = normaliser[part] - torch.linalg.vecdot(exps, logits) / total
        ctx.save_for_backward(states, weight, ids, temperature, normaliser, logp, entropy)
        ctx.chunk_size = chunk_size
        ctx.set_materialize_grads(False)  # an entropy that is only reported must cost nothing in the backward pass
        ctx.mark_non_differentiable(normaliser)
        return logp, entropy, normaliser

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, ids, temperature, normaliser, logp, entropy = ctx.saved_tensors
        grad_logp, grad_entropy = grads[0], grads[1]
        grad_states = torch.empty_like(states)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        for start in range(0, len(ids), ctx.chunk_size):
            part = slice(start, start + ctx.chunk_size)
            log_probs = _chunk_logits(states[part], weight, temperature[part]).sub_(normaliser[part, None])
            log_probs.scatter_(1, ids[part, None], logp[part, None])
            grad_logits = _grad_logits(
                log_probs,
                ids[part, None],
                None if grad_logp is None else (grad_logp[part] / temperature[part])[:, None],
                None if grad_entropy is None else (grad_entropy[part] / temperature[part])[:, None],
                entropy[part, None],
            ).to(weight.dtype)
            grad_states[part] = grad_logits @ weight
            grad_weight += grad_logits.t() @ states[part]
        return grad_states, grad_weight.to(weight.dtype), None, None, None, None


def _grad_logits(
    log_probs: Tensor, ids: Tensor, grad_logp: Tensor | None, grad_entropy: Tensor | None, entropy: Tensor
) -> Tensor:
    """[n, V]; ``log_probs`` [n, V] is overwritten, everything else is [n, 1].

    d logp / d logits = onehot - p, and d H / d logits = -p * (log p + H).
    """
    if grad_entropy is None:
        grad = log_probs.exp_()
        grad.mul_(0.0 if grad_logp is None else -grad_logp)
    else:
        probs = log_probs.exp()
        grad = log_probs.add_(entropy).mul_(-grad_entropy)
        grad = grad.mul_(probs) if grad_logp is None else grad.sub_(grad_logp).mul_(probs)
    return grad if grad_logp is None else grad.scatter_add_(1, ids, grad_logp)


def linear_logprobs(
    states: Tensor, weight: Tensor, ids: Tensor, temperature: Temperature, chunk_size: int, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """log softmax(states @ weight.T / temperature)[ids], float32 [N], and the entropy [N] if asked.

    states [N, d], weight [V, d], ids [N] int64. Both differentiable in states and weight.
    """
    of_token = torch.as_tensor(temperature, dtype=torch.float32, device=states.device).expand(len(ids))
    logp, entropy, _ = _LinearLogprobs.apply(  # type: ignore[no-untyped-call]
        states, weight, ids, of_token, chunk_size, with_entropy
    )
    return logp, entropy if with_entropy else None


def gathered_logprobs(
    logits: Tensor, ids: Tensor, temperature: Temperature, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """The same from ready logits [N, V], for models that come with a forward of their own."""
    of_token = torch.as_tensor(temperature, dtype=torch.float32, device=logits.device).expand(len(ids))
    log_probs = torch.log_softmax(logits.float() / of_token[:, None], dim=-1)
    logp = log_probs.gather(1, ids[:, None]).squeeze(1)
    if not with_entropy:
        return logp, None
    # recomputed in the backward pass, if there is one: nothing is kept for an entropy that is only reported
    entropy: Tensor = checkpoint(_entropy, log_probs, use_reentrant=False)
    return logp, entropy


def _entropy(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs).sum(-1)
