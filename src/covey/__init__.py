"""Covey: group-relative reinforcement learning for language models.

import covey

run = covey.train_grpo(model="smollm2-135m", dataset="countdown", rewards=["format", "accuracy"], max_steps=100)
print(run.model_dir)
"""

from covey.api import train_dpo, train_grpo, train_ppo, train_rm, train_sft

__all__ = ["__version__", "train_dpo", "train_grpo", "train_ppo", "train_rm", "train_sft"]

__version__ = "0.1.0"
