"""Two optimizer steps of every loss, and of PPO, DPO, RM and SFT, on a real model; what each did goes into one table.

    python scripts/every_loss.py runs/countdown-full/3-sft/final benchmarks/algorithms/every_loss.md

A rollout serves two steps, so the second is off-policy, and there is a KL term, so that every metric has a value. Ends
with exit code 1 if a value is not finite, a metric is missing, a step was skipped or the weights did not change.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from covey import train_dpo, train_grpo, train_ppo, train_rm, train_sft
from covey.algo.losses import LOSSES

COMMON: dict[str, Any] = {
    "dataset": "countdown",
    "system": "You solve number puzzles.",
    "countdown_number_range": [1, 12],
    "countdown_target_range": [13, 99],
    "max_steps": 2,
    "lr_scheduler_type": "constant",
    "report_to": ["none"],
}
ON_REWARDS: dict[str, Any] = COMMON | {
    "rewards": ["format", "accuracy"],
    "reward_weights": [0.1, 0.9],
    "max_completion_length": 128,
    "per_device_train_batch_size": 8,
    "steps_per_generation": 2,
    "learning_rate": 4e-5,
    "beta": 0.01,
}
ON_EXAMPLES: dict[str, Any] = COMMON | {"per_device_train_batch_size": 8, "learning_rate": 2e-5}
NEEDED: dict[str, dict[str, Any]] = {
    "cispo": {"epsilon_high": 5.0},
    "gspo": {"epsilon": 3e-4, "epsilon_high": 4e-4},
    "luspo": {"epsilon": 3e-4, "epsilon_high": 4e-4},
}
"""What a loss insists on, or what its paper sets."""
SHOWN = ("loss", "grad_norm", "kl", "clip_ratio", "entropy", "ratio/deviation", "rollout/logp_gap")
EXPECTED = {"kl", "loss", "grad_norm", "entropy", "rollout/kl", "rollout/logp_gap", "reward/mean", "lr", "beta"}


def largest_change(before: Path, after: Path) -> float:
    """Largest absolute change of a weight that both have."""
    largest = 0.0
    with safe_open(before / "model.safetensors", "pt") as old, safe_open(after / "model.safetensors", "pt") as new:
        for name in set(old.keys()) & set(new.keys()):
            change = (new.get_tensor(name).float() - old.get_tensor(name).float()).abs().max()
            largest = max(largest, float(torch.nan_to_num(change, nan=math.inf)))
    return largest


def contenders() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    runs: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        f"grpo, loss {name}": (train_grpo, {**ON_REWARDS, "loss_type": name, **NEEDED.get(name, {})}) for name in LOSSES
    }
    runs["ppo"] = train_ppo, {**ON_REWARDS, "critic_lr": 4e-5}
    return runs | {"dpo": (train_dpo, ON_EXAMPLES), "rm": (train_rm, ON_EXAMPLES), "sft": (train_sft, ON_EXAMPLES)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    columns = ("run", "metrics", *SHOWN, "largest change of a weight", "verdict")
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    failed = 0
    for name, (train, options) in contenders().items():
        with tempfile.TemporaryDirectory() as folder:
            outcome = train(model=str(arguments.model), output_dir=folder, **options)
            steps = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
            change = largest_change(arguments.model, outcome.model_dir)
        values = [value for step in steps for value in step.values() if value is not None]
        given = {key for step in steps for key, value in step.items() if value is not None}
        missing = EXPECTED - given if "rewards" in options else set()
        well = len(steps) == 2 and all(math.isfinite(value) for value in values) and 0 < change < math.inf
        well = well and not missing and not any(step["update_skipped"] for step in steps)
        failed += not well
        last = [steps[-1].get(key) for key in SHOWN]
        cells = [name, len(values) // len(steps), *("" if v is None else f"{v:.3g}" for v in last), f"{change:.1e}"]
        lines.append(f"| {' | '.join(map(str, [*cells, 'fine' if well else f'WRONG {sorted(missing)}']))} |")
        print(lines[-1], flush=True)
    arguments.target.parent.mkdir(parents=True, exist_ok=True)
    arguments.target.write_text("\n".join(lines) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
