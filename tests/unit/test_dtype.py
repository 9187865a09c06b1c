"""``--torch_dtype auto``: bfloat16 only where the device multiplies it natively; emulating it is five times slower."""

from __future__ import annotations

import pytest
import torch

from covey.build.objects import dtype_of
from covey.config import ModelConfig


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx512_f": True, "avx512_bf16": False}, torch.float32),
        ({"avx512_f": True, "avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
        ({"neon": True, "bf16": True}, torch.bfloat16),
        ({}, torch.float32),
    ],
)
def test_auto_follows_the_instructions_of_the_cpu(
    capabilities: dict[str, bool], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert dtype_of(ModelConfig(device="cpu")) == expected


@pytest.mark.parametrize("name", ["bfloat16", "float32"])
def test_a_named_dtype_is_taken_as_it_is(name: str) -> None:
    assert dtype_of(ModelConfig(torch_dtype=name, device="cpu")) == getattr(torch, name)  # type: ignore[arg-type]


def test_the_capabilities_asked_for_are_ones_torch_knows() -> None:
    """A renamed key would silently mean float32 everywhere."""
    known = torch.cpu.get_capabilities()
    if known["architecture"] == "x86_64":
        assert {"avx512_bf16", "amx_bf16"} <= known.keys()
