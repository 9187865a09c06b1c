"""Which function runs which training config."""

from __future__ import annotations

from collections.abc import Callable

from covey.build.grpo import run_grpo
from covey.build.ppo import run_ppo
from covey.build.preference import run_dpo, run_rm
from covey.build.sft import run_sft
from covey.build.stage import Outcome
from covey.config import DPOConfig, GRPOConfig, PPOConfig, RMConfig, SFTConfig
from covey.config.base import Composition

TRAINERS: dict[type[Composition], Callable[..., Outcome | None]] = {
    GRPOConfig: run_grpo,
    PPOConfig: run_ppo,
    DPOConfig: run_dpo,
    RMConfig: run_rm,
    SFTConfig: run_sft,
}
"""``run(config, display=..., name=...)``; None after a dry run."""
