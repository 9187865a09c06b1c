"""``covey bench NAME``: contenders that start from one model, on one machine, in turns, for the same time.

A bench file names shared ``options`` and the ``contenders`` with what they change; ``grpo-vs-ppo`` and ``grpo-vs-dpo``
come with Covey. Each contender trains in a process of its own, some seconds of training time per round, and continues
from its checkpoint in the next round, so that whatever disturbs the machine meets all of them. Loading is not counted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from covey.build.bench_plan import Bench, Contender, read_bench, turns
from covey.build.bench_report import machine, markdown, memory_rows
from covey.build.objects import say
from covey.config import BenchConfig, BenchOptions
from covey.errors import UserError
from covey.evals.stats import paired_difference
from covey.runlog.jsonl import write_atomic

PROBE_STEPS = 2
"""Steps after which the length of a step is known."""


def run_bench(source: str, chosen: BenchOptions) -> dict[str, Any]:
    """Run a bench by name or file; the result is printed and written to ``result.json`` and ``result.md``."""
    bench = read_bench(source, chosen)
    if bench.folder.exists() and any(bench.folder.iterdir()):
        raise UserError(f"--output_dir {bench.folder}: the folder is not empty; a bench measures a whole run")
    bench.folder.mkdir(parents=True, exist_ok=True)
    start = evaluate_model(bench, "start", bench.model)
    for number in range(1, bench.rounds + 1):
        for contender in turns(bench.contenders, number):
            advance(bench, contender, bench.seconds * number / bench.rounds)
            say(f"round {number}/{bench.rounds}: {contender.name} {len(contender.steps)} steps, {contender.used:.0f} s")
    results = [summary(bench, contender, start) for contender in bench.contenders]
    against(bench, results)
    changed = {
        key: value for key, value in BenchConfig(chosen).to_dict().items() if value != BenchConfig().to_dict()[key]
    }
    command = f"covey bench {source} " + " ".join(f"--{key} {value}" for key, value in changed.items())
    report = {
        "bench": bench.name,
        "command": command,
        "machine": machine(),
        "start": start,
        "contenders": results,
        "computed_memory_gb": memory_rows(),
    }
    write_atomic(bench.folder / "result.json", json.dumps(report, indent=1) + "\n")
    text = markdown(report)
    write_atomic(bench.folder / "result.md", text)
    print(text)
    return report


def advance(bench: Bench, contender: Contender, target: float) -> None:
    """Train until about ``target`` seconds of its time are used."""
    if contender.sampling_share and not contender.sampling_s:
        sample_pairs(bench, contender)
    while not contender.steps or contender.used < target - 0.5 * contender.step_s:
        done = len(contender.steps)
        more = PROBE_STEPS if done == 0 else max(1, round((target - contender.used) / contender.step_s))
        train(contender, done + more)


def train(contender: Contender, max_steps: int) -> None:
    """Run or continue the contender up to a step, in a process of its own."""
    run = contender.folder / "run"
    values = {**contender.training, "rlhf_type": contender.kind, "output_dir": str(run), "max_steps": max_steps}
    values["save_steps"] = 0  # only at the end
    if contender.steps:
        values["resume_from_checkpoint"] = "latest"
    contender.folder.mkdir(parents=True, exist_ok=True)
    config = contender.folder / "config.yaml"
    config.write_text(yaml.safe_dump(values))
    words = [sys.executable, "-m", "covey.cli.main", "rlhf", "--config", str(config)]
    contender.peak_gb = max(contender.peak_gb, run_process(words, contender.folder / "log.txt"))
    lines = (run / "metrics.jsonl").read_text().splitlines()
    contender.steps = [json.loads(line) for line in lines]
    for old in sorted(run.glob("checkpoint-*")):
        if old.name != f"checkpoint-{max_steps}":
            shutil.rmtree(old)


def sample_pairs(bench: Bench, contender: Contender) -> None:
    """Let the start model answer training prompts, and pair right with wrong answers of the same prompt."""
    contender.folder.mkdir(parents=True, exist_ok=True)
    spec = {
        "options": contender.sampling,
        "seconds": bench.seconds * contender.sampling_share,
        "target": str(contender.folder / "pairs.jsonl"),
        "report": str(contender.folder / "sampling.json"),
    }
    path = contender.folder / "sampling-spec.json"
    path.write_text(json.dumps(spec))
    words = [sys.executable, "-m", "covey.build.bench_pairs", str(path)]
    contender.peak_gb = max(contender.peak_gb, run_process(words, contender.folder / "log.txt"))
    found = json.loads((contender.folder / "sampling.json").read_text())
    contender.sampling_s, contender.pairs = found["seconds"], found["pairs"]
    if not contender.pairs:
        raise UserError(
            f"{contender.name}: none of the prompts of {found['completions']} completions got both a right and a wrong"
            " answer, so there are no pairs to train on; give it more --seconds, or a start model between 0 and 100%"
        )


def run_process(words: Sequence[str], log: Path) -> float:
    """Run a command, its output appended to ``log``; its peak resident memory in GB. UserError when it fails."""
    with log.open("ab") as output:
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
        raise UserError(f"{' '.join(words[2:])} ended with exit code {process.returncode}; see {log}:\n{tail}")
    unit = 1 if sys.platform == "darwin" else 1024
    return usage.ru_maxrss * unit / 1e9


def evaluate_model(bench: Bench, name: str, model: str) -> dict[str, Any]:
    """Held-out result of a model; its completions stay in the bench's folder."""
    folder = bench.folder / f"eval-{name.lower()}"
    folder.mkdir(parents=True, exist_ok=True)
    values = {**bench.evaluation, "model": model, "eval_num_prompts": bench.eval_num_prompts}
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump({**values, "output_dir": str(folder)}))
    words = [sys.executable, "-m", "covey.cli.main", "eval", "--config", str(config), "--json", "true"]
    run_process(words, folder / "log.txt")
    line = next(text for text in (folder / "log.txt").read_text().splitlines() if text.startswith("{"))
    result: dict[str, Any] = json.loads(line)
    return result


def hits(bench: Bench, name: str) -> list[bool]:
    """Right or wrong for every held-out prompt."""
    path = bench.folder / f"eval-{name.lower()}" / "completions.jsonl"
    return [json.loads(line)["rewards"].get("accuracy") == 1 for line in path.read_text().splitlines()]


def summary(bench: Bench, contender: Contender, start: Mapping[str, Any]) -> dict[str, Any]:
    """What a contender did with its time, and its held-out result."""
    result = evaluate_model(bench, contender.name, str(contender.folder / "run" / "final"))
    tokens = sum(step["tokens_per_s"] * step["time/step_s"] for step in contender.steps)
    return {
        "name": contender.name,
        "kind": contender.kind,
        "steps": len(contender.steps),
        "seconds": round(contender.used, 1),
        "sampling_seconds": round(contender.sampling_s, 1),
        "pairs": contender.pairs,
        "trained_tokens": round(tokens),
        "tokens_per_s": round(tokens / contender.training_s, 1),
        "peak_memory_gb": round(contender.peak_gb, 2),
        "gain": result["accuracy"] - start["accuracy"],
        **{key: result[key] for key in ("accuracy", "accuracy_interval", "format", "mean_length", "n")},
        "options": contender.training,
    }


def against(bench: Bench, results: list[dict[str, Any]]) -> None:
    """Add each contender's difference to the first one, prompt by prompt, with its 95% interval."""
    first = hits(bench, bench.contenders[0].name)
    for result in results[1:]:
        difference = paired_difference(hits(bench, result["name"]), first)
        result["difference_to_first"] = dict(zip(("mean", "low", "high"), difference, strict=True))
