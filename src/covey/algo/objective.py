"""The objective of a step: policy loss + beta * KL per token, with its metrics.

A backend calls it once per micro-batch and back-propagates ``(batch.weights * token_loss).sum()``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from covey.algo.kl import k3, kl_loss_estimator
from covey.algo.losses.base import LossInputs, PolicyLoss
from covey.algo.metrics import Metrics, token_mean
from covey.tensors import TokenBatch


@dataclass(frozen=True, slots=True)
class Objective:
    """``token_loss, metrics = objective(batch, logp, entropy)``.

    ``beta`` belongs to the objective, so a backend need not know of it; a controller that changes it makes the next
    step use ``objective.with_beta(new)``.
    Raises ValueError on a KL estimator that is unknown or useless as a loss, and on a negative beta.
    """

    policy_loss: PolicyLoss
    kl_estimator: str
    beta: float
    on_policy: bool
    """Each rollout is used for exactly one optimizer step, so pi_old is pi and no old log-probs are needed."""

    def __post_init__(self) -> None:
        kl_loss_estimator(self.kl_estimator)
        if not (math.isfinite(self.beta) and self.beta >= 0):
            raise ValueError(f"beta must be a finite number >= 0, got {self.beta}")

    @property
    def reads_old(self) -> bool:
        """The batch must carry ``old_logprobs``, frozen before the first update on it."""
        return not self.on_policy

    @property
    def reads_ref(self) -> bool:
        """The batch must carry ``ref_logprobs``; without it no reference model is needed."""
        return self.beta > 0

    def with_beta(self, beta: float) -> Objective:
        """The same objective with another KL coefficient."""
        return replace(self, beta=beta)

    def __call__(self, batch: TokenBatch, logp: Tensor, entropy: Tensor | None = None) -> tuple[Tensor, Metrics]:
        """Token loss [N] and metrics from the policy's log-probs ``logp`` [N] at the sampling temperature.

        ``entropy`` [N] is only reported, and so is the KL (always the value of k3, also when beta is 0 but reference
        log-probs are there). Masked tokens get loss 0 and gradient 0, whatever stands on them. Raises
        ValueError when the batch lacks log-probs that the objective reads, or carries old ones although on-policy.
        """
        self._check_logprobs(batch)
        # Masked values go before any arithmetic: a weight of 0 alone would turn an overflow into 0 * inf = NaN.
        masked = batch.mask == 0
        logp = logp.masked_fill(masked, 0.0)
        old, ref = _zero_where(masked, batch.old_logprobs), _zero_where(masked, batch.ref_logprobs)
        inputs = LossInputs(
            logp=logp,
            old_logp=old,
            advantages=batch.advantages.masked_fill(masked, 0.0),
            mask=batch.mask,
            row_of_token=batch.row_of_token,
            num_rows=batch.num_rows,
        )
        loss, metrics = self.policy_loss(inputs)
        if ref is not None:
            metrics["kl"] = token_mean(k3(logp.detach(), ref, None), batch.mask)
            if self.reads_ref:
                loss = loss + self.beta * kl_loss_estimator(self.kl_estimator)(logp, ref, old)
        if entropy is not None:
            metrics["entropy"] = token_mean(entropy, batch.mask)
        return loss, metrics | _rollout_metrics(batch, logp if old is None else old)

    def _check_logprobs(self, batch: TokenBatch) -> None:
        if self.reads_old and batch.old_logprobs is None:
            raise ValueError(
                "old_logprobs are missing: without them every ratio would be 1 and nothing would be clipped"
            )
        if self.on_policy and batch.old_logprobs is not None:
            raise ValueError("old_logprobs are given, but on_policy says that the ratio is 1 by definition")
        if self.reads_ref and batch.ref_logprobs is None:
            raise ValueError(f"ref_logprobs are missing, but beta is {self.beta}")


def _rollout_metrics(batch: TokenBatch, sampling_logp: Tensor) -> Metrics:
    """How far the trainer's log-probs of the sampling policy are from those the engine reported; 0 when they agree.

    ``rollout/kl`` estimates KL(engine || trainer) with k3, ``rollout/logp_gap`` is the mean absolute difference
    in nats.
    """
    trainer = sampling_logp.detach()
    return {
        "rollout/kl": token_mean(k3(batch.rollout_logprobs, trainer, None), batch.mask),
        "rollout/logp_gap": token_mean((batch.rollout_logprobs - trainer).abs(), batch.mask),
    }


def _zero_where(masked: Tensor, values: Tensor | None) -> Tensor | None:
    return None if values is None else values.masked_fill(masked, 0.0)
