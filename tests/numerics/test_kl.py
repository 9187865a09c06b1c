"""The KL term pulls toward the reference, and only real tokens feel it (known fault 4)."""

from __future__ import annotations

import math

import pytest
import torch

from covey.algo.kl import KL_ESTIMATORS, kl_loss_estimator
from covey.algo.losses import LOSSES
from covey.algo.objective import Objective
from covey.tensors import make_batch


def k3_loss_and_gradient(ref_logp: float, masked_tokens: int = 0) -> tuple[float, list[float]]:
    """The whole objective at advantage 0 and beta 1, for one trained token of log-prob -2."""
    batch = make_batch([[1]], [[[7] * (1 + masked_tokens)]])
    trained = torch.tensor([1.0] + [0.0] * masked_tokens)
    batch = batch.with_fields(mask=trained, weights=trained, ref_logprobs=torch.full((1 + masked_tokens,), ref_logp))
    logp = torch.full((1 + masked_tokens,), -2.0, requires_grad=True)
    token_loss, _ = Objective(LOSSES["grpo"].bind(), "k3", beta=1.0, on_policy=True)(batch, logp)
    loss = (batch.weights * token_loss).sum()
    loss.backward()
    assert logp.grad is not None
    return loss.item(), logp.grad.tolist()


@pytest.mark.parametrize("masked_tokens", [0, 10])
@pytest.mark.parametrize(
    ("ref_logp", "value", "derivative"),
    [
        (-1.0, 0.71828, -1.71828),  # e - 2 and 1 - e: raise the policy's log-prob
        (-3.0, 0.36788, 0.63212),  # 1/e and 1 - 1/e: lower it
    ],
)
def test_k3_pulls_toward_the_reference(ref_logp: float, value: float, derivative: float, masked_tokens: int) -> None:
    loss, gradient = k3_loss_and_gradient(ref_logp, masked_tokens)
    assert loss == pytest.approx(value, abs=1e-5)
    assert gradient[0] == pytest.approx(derivative, abs=1e-5)
    assert gradient[1:] == [0.0] * masked_tokens


def test_k3_keeps_its_digits_next_to_the_reference() -> None:
    # Values near 5e-7: exp(-x) + x - 1 in float32 is only good to 6e-8, one part in eight.
    x = torch.linspace(0.9e-3, 1.1e-3, 50)
    exact = torch.special.expm1(-x.double()) + x.double()
    torch.testing.assert_close(KL_ESTIMATORS["k3"](x, torch.zeros(50), None).double(), exact, atol=1e-9, rtol=0)


def test_the_ratio_of_the_unbiased_estimator_is_off_policy_and_differentiable() -> None:
    logp = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    kl = KL_ESTIMATORS["k3_unbiased"](logp, torch.tensor([-2.0]), torch.tensor([-1.5]))
    kl.sum().backward()
    # x = 1, r = exp(0.5): value r * k3, derivative r * k3 + r * (1 - exp(-x))
    ratio, k3 = math.exp(0.5), math.exp(-1)
    assert kl.item() == pytest.approx(ratio * k3, abs=1e-12)
    assert logp.grad is not None
    assert logp.grad.item() == pytest.approx(ratio * k3 + ratio * (1 - math.exp(-1)), abs=1e-12)


def test_k1_is_refused_as_a_loss() -> None:
    with pytest.raises(ValueError, match=r"expected gradient of zero.*k2, k3, k3_unbiased, k3\+"):
        Objective(LOSSES["grpo"].bind(), "k1", beta=0.1, on_policy=True)
    with pytest.raises(ValueError, match="unknown KL estimator 'low_var_kl'"):
        kl_loss_estimator("low_var_kl")
