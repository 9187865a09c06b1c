"""Collect a finished recipe run into small files that can be committed: table, metrics, completions, and a picture.

    python scripts/collect_recipe.py runs/countdown benchmarks/countdown/seed-42

Writes ``summary.json``, ``metrics.csv`` (one line per GRPO step), ``completions.jsonl.gz`` (every evaluated completion,
so that the table can be scored again) and ``curve.png``.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from pathlib import Path
from typing import Any

import matplotlib

from covey.runlog.jsonl import read_lines

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLUMNS = (
    "step",
    "reward/mean",
    "reward/accuracy",
    "reward/format",
    "accuracy_when_formatted",
    "frac_reward_zero_std",
    "completions/mean_length",
    "completions/clipped_ratio",
    "entropy",
    "grad_norm",
    "lr",
    "rollout/kl",
    "time/rollout_s",
    "time/train_s",
    "time/step_s",
    "tokens_per_s",
    "memory/rss_gb",
)


def write_completions(run: Path, target: Path) -> None:
    """All evaluation completions, each line with the stage folder it came from."""
    with gzip.GzipFile(target, "wb", mtime=0) as file:
        for path in sorted(run.glob("*/completions.jsonl")):
            for row in read_lines(path):
                kept = {key: row[key] for key in ("prompt_id", "completion", "rewards", "finish_reason", "length")}
                line = {"stage": path.parent.name, **kept, **row["columns"]}
                file.write((json.dumps(line) + "\n").encode())


def write_metrics(steps: list[dict[str, Any]], target: Path) -> None:
    with target.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in steps:
            writer.writerow({k: round(v, 5) if isinstance(v := row.get(k), float) else v for k in COLUMNS})


def smoothed(values: list[float], width: int = 8) -> list[float]:
    """Trailing mean over at most ``width`` steps."""
    return [sum(part) / len(part) for i in range(len(values)) if (part := values[max(0, i + 1 - width) : i + 1])]


def plot(steps: list[dict[str, Any]], summary: dict[str, Any], target: Path) -> None:
    """Training accuracy and format per step, with the held-out results before and after as points with intervals."""
    x = [row["step"] for row in steps]
    figure, axis = plt.subplots(figsize=(7.5, 4.2), dpi=130)
    for key, label, colour in (("reward/accuracy", "accuracy", "#1f6feb"), ("reward/format", "format", "#2da44e")):
        values = [row[key] for row in steps]
        axis.plot(x, values, color=colour, alpha=0.25, linewidth=1)
        axis.plot(x, smoothed(values), color=colour, linewidth=2, label=f"{label} in training (mean of 8 steps)")
    for when, position in (("before", 0), ("after", x[-1])):
        result = summary[when]
        low, high = result["accuracy_interval"]
        middle = result["accuracy"]
        label = f"held out, n = {result['n']}, 95% interval" if when == "before" else None
        error = [[middle - low], [high - middle]]
        axis.errorbar([position], [middle], yerr=error, fmt="o", color="black", capsize=4, label=label)
        axis.annotate(f"{middle:.1%}", (position, middle), textcoords="offset points", xytext=(8, -12))
    axis.set(xlabel="GRPO step", ylabel="share of completions", ylim=(0, 1.02))
    axis.grid(alpha=0.25)
    axis.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    arguments.target.mkdir(parents=True, exist_ok=True)
    summary = json.loads((arguments.run / "summary.json").read_text())
    steps = read_lines(sorted(arguments.run.glob("*-grpo/metrics.jsonl"))[-1])
    del summary["model_dir"]  # a path of this machine
    (arguments.target / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    write_metrics(steps, arguments.target / "metrics.csv")
    write_completions(arguments.run, arguments.target / "completions.jsonl.gz")
    plot(steps, summary, arguments.target / "curve.png")


if __name__ == "__main__":
    main()
