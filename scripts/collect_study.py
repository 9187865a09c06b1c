"""Collect a study (a recipe with several training runs from one start, each followed by an evaluation of its name) into
small files that can be committed.

    python scripts/collect_study.py runs/study-algorithms [MORE_SEEDS ...] benchmarks/algorithms

Several folders are runs of one recipe with other seeds; their held-out completions are pooled. Writes ``results.csv``
(one line per run), ``results.md`` (the table), ``metrics.csv`` (one line per run, seed and step),
``completions.jsonl.gz`` (every held-out completion, so that the differences can be computed again) and ``curves.png``.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
from collect_recipe import smoothed

from covey.evals.stats import paired_difference, wilson_interval
from covey.runlog.jsonl import read_lines

matplotlib.use("Agg")
import matplotlib.pyplot as plt

TRAINS = ("sft", "grpo", "ppo", "dpo")
COLUMNS = (
    "reward/mean",
    "reward/accuracy",
    "reward/format",
    "frac_reward_zero_std",
    "completions/mean_length",
    "clip_ratio",
    "entropy",
    "kl",
    "beta",
    "grad_norm",
    "rollout/logp_gap",
    "time/step_s",
    "tokens_per_s",
)


@dataclass
class Run:
    """A training run of the study, over all seeds."""

    name: str
    steps: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """(seed, metrics of a step)."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Held-out completions, in the order of the prompts, seed after seed."""
    seconds: float = 0.0

    @property
    def hits(self) -> list[bool]:
        return [row["rewards"].get("accuracy") == 1 for row in self.rows]

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens trained on by the time of all steps, rollouts included."""
        seconds = sum(step["time/step_s"] for _, step in self.steps)
        return sum(step["tokens_per_s"] * step["time/step_s"] for _, step in self.steps) / seconds


def read_study(folders: Sequence[Path]) -> list[Run]:
    """The runs of the recipe in its order; the first one is the start of the others."""
    runs: dict[str, Run] = {}
    for folder in folders:
        recipe = json.loads((folder / "recipe.json").read_text())
        for number, entry in enumerate(recipe["stages"], start=1):
            stage = folder / f"{number}-{entry['stage']}"
            run = runs.setdefault(entry["name"], Run(entry["name"]))
            if entry["stage"] in TRAINS:
                run.steps += [(recipe["seed"], step) for step in read_lines(stage / "metrics.jsonl")]
                run.seconds += json.loads((stage / "done.json").read_text())["seconds"]
            elif entry["stage"] == "eval":
                run.rows += read_lines(stage / "completions.jsonl")
    return [run for run in runs.values() if run.steps or run.rows]


def shown(difference: tuple[float, float, float] | None) -> str:
    return "" if difference is None else f"{difference[0]:+.3f} ({difference[1]:+.3f} to {difference[2]:+.3f})"


def results(runs: list[Run]) -> list[dict[str, Any]]:
    """One row per run: held-out accuracy, its differences to the start and to the first run, and what it took."""
    start, first = runs[0], runs[1]
    rows = []
    for run in runs:
        n, right = len(run.hits), sum(run.hits)
        low, high = wilson_interval(right, n)
        trained = run is not start
        rows.append(
            {
                "run": run.name,
                "n": n,
                "accuracy": round(right / n, 3),
                "95% interval": f"{low:.3f} to {high:.3f}",
                f"against {start.name}": shown(paired_difference(run.hits, start.hits) if trained else None),
                f"against {first.name}": shown(
                    paired_difference(run.hits, first.hits) if trained and run is not first else None
                ),
                "mean length": round(sum(row["length"] for row in run.rows) / n, 1),
                "seconds": round(run.seconds),
                "steps": len(run.steps),
                "tokens/s": round(run.tokens_per_s, 1),
            }
        )
    return rows


def write_csv(target: Path, rows: list[dict[str, Any]]) -> None:
    with target.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [f"| {' | '.join(rows[0])} |", f"|{'---|' * len(rows[0])}"]
    return "\n".join(lines + [f"| {' | '.join(str(value) for value in row.values())} |" for row in rows]) + "\n"


def metric_rows(runs: list[Run]) -> list[dict[str, Any]]:
    return [
        {"run": run.name, "seed": seed, "step": step["step"]}
        | {key: round(v, 5) if isinstance(v := step.get(key), float) else v for key in COLUMNS}
        for run in runs[1:]
        for seed, step in run.steps
    ]


def write_verdicts(runs: list[Run], target: Path) -> None:
    with gzip.GzipFile(target, "wb", mtime=0) as file:
        for run in runs:
            for row in run.rows:
                kept = {key: row[key] for key in ("prompt_id", "completion", "rewards", "finish_reason", "length")}
                file.write((json.dumps({"run": run.name, **kept}) + "\n").encode())


def plot(runs: list[Run], target: Path) -> None:
    """Accuracy while training (trailing mean of three rollouts, mean over seeds), and held out with intervals."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), dpi=130, gridspec_kw={"width_ratios": [3, 2]})
    for number, run in enumerate(runs[1:]):
        by_step: dict[int, list[float]] = {}
        for _, step in run.steps:
            if step.get("reward/accuracy") is not None:
                by_step.setdefault(step["step"], []).append(step["reward/accuracy"])
        x = sorted(by_step)
        y = [sum(by_step[i]) / len(by_step[i]) for i in x]
        left.plot(x, smoothed(y, 3), color=f"C{number}", label=run.name)
    for number, run in enumerate(runs):
        n, hits = len(run.hits), sum(run.hits)
        low, high = wilson_interval(hits, n)
        error = [[hits / n - low], [high - hits / n]]
        colour = "black" if number == 0 else f"C{number - 1}"
        right.errorbar([hits / n], [number], xerr=error, fmt="o", color=colour, capsize=4)
    left.set(xlabel="optimizer step", ylabel="accuracy of the rollout (mean of 3)")
    right.set(xlabel="held-out accuracy, 95% interval", yticks=range(len(runs)), yticklabels=[r.name for r in runs])
    right.invert_yaxis()
    left.legend(fontsize=8)
    for axis in (left, right):
        axis.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    arguments.target.mkdir(parents=True, exist_ok=True)
    runs = read_study(arguments.runs)
    rows = results(runs)
    write_csv(arguments.target / "results.csv", rows)
    (arguments.target / "results.md").write_text(markdown(rows))
    write_csv(arguments.target / "metrics.csv", metric_rows(runs))
    write_verdicts(runs, arguments.target / "completions.jsonl.gz")
    plot(runs, arguments.target / "curves.png")
    print(markdown(rows))


if __name__ == "__main__":
    main()
