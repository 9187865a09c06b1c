"""What ``covey bench`` writes: the machine, the measured table, the computed memory table."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from typing import Any

import torch

from covey.plan.memory import Load, table


def machine() -> dict[str, Any]:
    """Where it was measured."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {"device": device, "cpus": os.cpu_count(), "torch": torch.__version__, "threads": torch.get_num_threads()}


def memory_rows() -> list[dict[str, str | float]]:
    """The computed table for models a user may have in mind: 64 completions of 768 tokens, 8 in a micro-batch."""
    return table(Load(rollout_rows=64, micro_rows=8, prompt_tokens=256, completion_tokens=768))


def markdown(report: Mapping[str, Any]) -> str:
    """The tables, as they go into a README."""
    start = report["start"]
    lines = [
        f"`{report['command']}`, on {json.dumps(report['machine'])}",
        "",
        f"Start: accuracy {start['accuracy']:.3f} (n = {start['n']})",
        "",
        "| | steps | seconds | tokens/s | peak GB | accuracy after | 95% interval | against the first |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report["contenders"]:
        low, high = row["accuracy_interval"]
        gap = row.get("difference_to_first")
        shown = "" if gap is None else f"{gap['mean']:+.3f} ({gap['low']:+.3f} to {gap['high']:+.3f})"
        lines.append(
            f"| {row['name']} | {row['steps']} | {row['seconds']:.0f} | {row['tokens_per_s']:.0f} |"
            f" {row['peak_memory_gb']:.2f} | {row['accuracy']:.3f} | {low:.3f} to {high:.3f} | {shown} |"
        )
    lines += ["", "Computed memory in GB (64 completions of 768 tokens sampled, 8 in a micro-batch):", ""]
    rows = report["computed_memory_gb"]
    lines += [f"| {' | '.join(rows[0])} |", f"|{'---|' * len(rows[0])}"]
    lines += [f"| {' | '.join(str(value) for value in row.values())} |" for row in rows]
    return "\n".join(lines) + "\n"
