"""The objective of a step: per token the policy loss + beta * KL - entropy_coef * entropy, weighted and summed.

A backend calls it once per micro-batch and back-propagates the scalar it returns. Nothing in it depends on which other
rows share the micro-batch, so scalars and gradients add up to those of the whole step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from covey.algo.contrastive import Contrast
from covey.algo.corrections import sequence_keep
from covey.algo.kl import k3, kl_loss_estimator
from covey.algo.losses.base import LossInputs, PolicyLoss
from covey.algo.metrics import Metrics, token_mean
from covey.algo.ratio import log_ratio
from covey.tensors import TokenBatch


@dataclass(frozen=True, slots=True)
class Objective:
    """``loss, metrics = objective(batch, logp, entropy)``.

    Its coefficients belong to it, so a backend need not know of them; where they move, the next step has another one.
    Raises ValueError on a KL estimator that is unknown or useless as a loss, and on a negative beta.
    """

    policy_loss: PolicyLoss
    kl_estimator: str
    beta: float
    on_policy: bool
    """Each rollout is used for exactly one optimizer step, so pi_old is pi and no old log-probs are needed."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; the entropy is averaged like the loss (as verl; TRL takes its mean over tokens)."""
    sequence_mask_delta: float | None = None
    """Off-policy sequence masking, in nats; None: off. See ``corrections.sequence_keep``."""
    contrast: Contrast | None = None
    """A term over whole groups; needs them whole in every micro-batch."""

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

    @property
    def needs_every_row(self) -> bool:
        """A row of advantage 0 has a gradient too."""
        return self.reads_ref or self.entropy_coef != 0 or self.contrast is not None

    def __call__(self, batch: TokenBatch, logp: Tensor, entropy: Tensor | None = None) -> tuple[Tensor, Metrics]:
        """The share of these rows in the loss of the step, and metrics.

        ``logp`` [N] are the policy's log-probs at the sampling temperature, ``entropy`` [N] that of its distributions.
        """
        loss, metrics = self.token_loss(batch, logp, entropy)
        total = (batch.weights * loss).sum()
        if batch.nll_weights is not None:
            total = total - (batch.nll_weights * logp.masked_fill(batch.nll_weights == 0, 0.0)).sum()
        if self.contrast is not None:
            old = None if self.on_policy else batch.old_logprobs
            term, shown = self.contrast(batch, log_ratio(logp, old))
            total, metrics = total + term, metrics | shown
        return total, metrics

    def token_loss(self, batch: TokenBatch, logp: Tensor, entropy: Tensor | None = None) -> tuple[Tensor, Metrics]:
        """Token loss [N], before the weights, and metrics.

        The KL is reported (always the value of k3) also when beta is 0 but reference log-probs are there. Masked tokens
        get loss 0 and gradient 0, whatever stands on them. Raises ValueError when the batch lacks log-probs that the
        objective reads. On-policy the ratio is 1 by definition, whatever old log-probs the batch carries.
        """
        self._check_logprobs(batch, entropy)
        # Masked values go before any arithmetic: a weight of 0 alone would turn an overflow into 0 * inf = NaN.
        masked = batch.mask == 0
        logp = logp.masked_fill(masked, 0.0)
        old, ref = _zero_where(masked, batch.old_logprobs), _zero_where(masked, batch.ref_logprobs)
        sampler = logp.detach() if old is None else old
        inputs = LossInputs(
            logp=logp,
            old_logp=None if self.on_policy else old,
            advantages=batch.advantages.masked_fill(masked, 0.0),
            mask=batch.mask,
            row_of_token=batch.row_of_token,
            num_rows=batch.num_rows,
            marked=batch.marked,
        )
        metrics: Metrics = {}
        if self.sequence_mask_delta is not None:
            inputs, metrics = self._masked_sequences(inputs, batch.rollout_logprobs, self.sequence_mask_delta)
        loss, shown = self.policy_loss(inputs)
        metrics |= shown
        if ref is not None:
            metrics["kl"] = token_mean(k3(logp.detach(), ref, None), batch.mask)
            if self.reads_ref:
                loss = loss + self.beta * kl_loss_estimator(self.kl_estimator)(logp, ref, inputs.old_logp)
        if entropy is not None:
            metrics["entropy"] = token_mean(entropy, batch.mask)
            if self.entropy_coef:
                loss = loss - self.entropy_coef * entropy.masked_fill(masked, 0.0)
        return loss, metrics | _rollout_metrics(batch, sampler)

    def _check_logprobs(self, batch: TokenBatch, entropy: Tensor | None) -> None:
        if self.reads_old and batch.old_logprobs is None:
            raise ValueError(
                "old_logprobs are missing: without them every ratio would be 1 and nothing would be clipped"
            )
        if self.reads_ref and batch.ref_logprobs is None:
            raise ValueError(f"ref_logprobs are missing, but beta is {self.beta}")
        if self.entropy_coef and entropy is None:
            raise ValueError(f"the entropy is missing, but entropy_coef is {self.entropy_coef}")

    @staticmethod
    def _masked_sequences(inputs: LossInputs, rollout_logp: Tensor, delta: float) -> tuple[LossInputs, Metrics]:
        """The inputs with the advantages of dropped sequences 0: the denominator stays (as TRL)."""
        keep = sequence_keep(
            inputs.advantages,
            rollout_logp,
            inputs.logp.detach(),
            inputs.mask,
            inputs.row_of_token,
            inputs.num_rows,
            delta,
        )
        metrics: Metrics = {"mismatch/sequences_kept": token_mean(keep, inputs.mask)}
        return replace(inputs, advantages=inputs.advantages * keep), metrics


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
