"""The importance ratio between the policy and the policy that made the rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def log_ratio(logp: Tensor, old_logp: Tensor | None) -> Tensor:
    """log(pi / pi_old) per token [N], differentiable in ``logp``.

    ``None`` for ``old_logp`` means on-policy: pi_old *is* pi, so the value is exactly 0 and the gradient still is that
    of ``logp``. The ratio is then 1 while its gradient is the plain policy gradient.
    """
    return logp - (logp.detach() if old_logp is None else old_logp)
