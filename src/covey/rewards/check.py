"""``covey check-reward``: is a reward fit to be trained on?

It is given completions whose verdict is known, a few that attack a checker, and real puzzles; each alone, all in one
batch, the same again, and in the opposite order. What it may pay for form or length is its own affair: judged are the
right and wrong answers in the same form, the crashes, the time, and whether a score depends on anything but its row.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from covey.rewards import RewardContext, build_reward_set
from covey.rewards.functions import GroupReward, RewardFunction
from covey.rewards.plugin import load_plugin, unknown_reward
from covey.rewards.workers import Call, Failure, WorkerPool
from covey.tasks import get_task
from covey.tasks.base import Probe
from covey.tasks.countdown import DEFAULT_TEMPLATE
from covey.tasks.countdown_generator import CountdownSpec, Problem, sample_problems
from covey.tasks.countdown_probes import countdown_probes, countdown_samples
from covey.tasks.dataset import check_rows, read_table
from covey.types import Completion, Prompt

SLOW_S = 1.0
"""Seconds for one completion that are worth a finding."""
MAX_SAMPLES = 50

Score = float | Failure | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a reward."""

    kind: str
    probe: str
    """Name of the completion that shows it."""
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was tried, and what was found."""

    reward: str
    probes: int
    judged: bool
    """Whether it tells right from wrong at all, so that its verdicts were checked."""
    findings: tuple[Finding, ...]

    def lines(self) -> list[str]:
        """For a terminal: at most three completions per kind, the others counted."""
        lines = [f"check-reward {self.reward}: {self.probes} completions, each alone and in three batches"]
        if not self.judged:
            lines.append("plain right and plain wrong answers get the same, or no score: its verdicts were not checked")
        for kind in dict.fromkeys(finding.kind for finding in self.findings):
            found = [finding for finding in self.findings if finding.kind == kind]
            lines += [f"{kind:22} {finding.probe}: {finding.detail}" for finding in found[:3]]
            if len(found) > 3:
                lines.append(f"{'':22} and {len(found) - 3} more: {', '.join(f.probe for f in found[3:])}")
        lines.append("clean" if not self.findings else f"{len(self.findings)} findings")
        return lines


def check_reward(target: str, task: str, *, dataset: str, timeout_s: float = 5.0, seed: int = 42) -> Report:
    """Check a reward: a built-in name, ``file.py:name`` or a dotted path; on puzzles of ``dataset``.

    UserError when there is no such reward or the data can not be read.
    """
    function = _function_of(target, task)
    with tempfile.TemporaryDirectory() as folder:
        marker = Path(folder) / "executed"
        probes = [*countdown_probes(marker), *countdown_samples(_problems(dataset, seed), seed)]
        trial = _Trial(function, probes, timeout_s)
        try:
            trial.warm_up()
            findings, judged = _findings(trial, probes)
        finally:
            trial.pool.close()
        if marker.exists():
            findings.insert(0, Finding("executes model text", "injection", "a file named in a completion was created"))
    return Report(target, len(probes), judged, tuple(findings))


def _function_of(target: str, task: str) -> RewardFunction:
    """The one reward that is meant; of a file only what that file defines."""
    file, colon, name = target.rpartition(":")
    context = RewardContext(task=get_task(task), max_completion_length=256, options={"soft_cache_length": 64})
    item: str | Callable[..., Any] = target
    if colon:
        plugins = load_plugin(file)
        if name not in plugins:
            raise unknown_reward(name, plugins, where=f" in {file}")
        item = plugins[name]
    (function,) = build_reward_set([item], context=context).functions
    return function


def _problems(dataset: str, seed: int) -> list[Problem]:
    if dataset == "countdown":
        return sample_problems(CountdownSpec(), "train", MAX_SAMPLES, seed)
    task = get_task("countdown")
    rows, _ = check_rows(read_table(dataset, seed=seed), task.validate_row)
    normal = [task.normalize_row(row.values) for row in rows[:MAX_SAMPLES]]
    return [Problem(tuple(row["nums"]), row["target"]) for row in normal]


class _Trial:
    """Asks the reward, in a process of its own."""

    def __init__(self, function: RewardFunction, probes: Sequence[Probe], timeout_s: float) -> None:
        self.function = function
        self._prompts = [
            Prompt(f"probe:{k}", DEFAULT_TEMPLATE.render(probe.columns), probe.columns)
            for k, probe in enumerate(probes)
        ]
        self._completions = [_completion(probe.text) for probe in probes]
        self._timeout_s = timeout_s
        self.pool = WorkerPool([self.function.scores], 1)

    def warm_up(self) -> None:
        """Let the process start and import what it needs, outside the clock."""
        self._ask([0])

    def alone(self) -> tuple[list[Score], list[float]]:
        """Every completion in a call of its own; scores and seconds."""
        scores: list[Score] = []
        seconds = []
        for row in range(len(self._prompts)):
            began = time.monotonic()
            (score,) = self._ask([row])
            spent = time.monotonic() - began
            if SLOW_S < spent < self._timeout_s:  # once more: it may have been a new process
                began = time.monotonic()
                (score,) = self._ask([row])
                spent = min(spent, time.monotonic() - began)
            scores.append(score)
            seconds.append(spent)
        return scores, seconds

    def together(self, order: Sequence[int]) -> list[Score]:
        """The rows of ``order`` in one call, if the reward takes batches; in their own order again."""
        found = dict(zip(order, self._ask(list(order)), strict=True))
        return [found[row] for row in sorted(order)]

    def _ask(self, rows: list[int]) -> list[Score]:
        prompts, completions = [self._prompts[row] for row in rows], [self._completions[row] for row in rows]
        state = SimpleNamespace(global_step=0, max_steps=1)
        (result,) = self.pool.run([Call(0, (prompts, completions, state), self._timeout_s * len(rows))])
        return [result] * len(rows) if isinstance(result, Failure) else list(result)


def _completion(text: str) -> Completion:
    return Completion(tuple(range(len(text) // 4 + 1)), (), text, "stop")


def _findings(trial: _Trial, probes: Sequence[Probe]) -> tuple[list[Finding], bool]:
    alone, seconds = trial.alone()
    findings: list[Finding] = []
    for probe, score, spent in zip(probes, alone, seconds, strict=True):
        if isinstance(score, Failure):
            findings.append(Finding(_KINDS.get(score.kind, score.kind), probe.name, score.last_line))
        elif score is not None and not math.isfinite(score):
            findings.append(Finding("not a number", probe.name, f"returned {score}"))
        elif spent > SLOW_S:
            findings.append(Finding("slow", probe.name, f"took {spent:.1f} s"))
    wrong, judged = _wrong_verdicts(probes, alone)
    findings += wrong
    if not isinstance(trial.function, GroupReward):
        findings += _unsteady(trial, probes, alone)
    return findings, judged


_KINDS = {"error": "exception", "timeout": "hangs", "died": "crash", "invalid": "invalid result"}


def _wrong_verdicts(probes: Sequence[Probe], scores: Sequence[Score]) -> tuple[list[Finding], bool]:
    """False accepts and rejects, against what a plain right and a plain wrong answer get; and payment for nothing."""
    named = dict(zip([probe.name for probe in reversed(probes)], reversed(scores), strict=True))
    right, wrong = _number(named["plain"]), _number(named["another value"])
    if right is None or wrong is None or right == wrong:
        return [], False
    if right < wrong:
        detail = f"a plain right answer gets {right:g}, a plain wrong one {wrong:g}"
        return [Finding("the wrong way round", "plain", detail)], True
    middle = (right + wrong) / 2
    findings: list[Finding] = []
    for probe, score in zip(probes, scores, strict=True):
        value = _number(score)
        if score is None and probe.right:
            findings.append(Finding("abstains", probe.name, f"no score for a right answer: {probe.why}"))
        elif value is not None and value > 0 and probe.name in ("empty", "white space", "orders"):
            findings.append(Finding("pays for nothing", probe.name, f"score {value:g}: {probe.why}"))
        elif value is not None and (value > middle) != probe.right:
            kind = "false reject" if probe.right else "false accept"
            detail = f"score {value:g} (plain right {right:g}, plain wrong {wrong:g}): {probe.why}"
            findings.append(Finding(kind, probe.name, detail))
    return findings, True


def _unsteady(trial: _Trial, probes: Sequence[Probe], alone: Sequence[Score]) -> list[Finding]:
    """Scores that are others when the rows come in a batch, again, or in the opposite order."""
    rows = [row for row, score in enumerate(alone) if not isinstance(score, Failure)]
    if not rows:
        return []
    before = [alone[row] for row in rows]
    first = trial.together(rows)
    trials = {
        "depends on the batch": (before, first),
        "not deterministic": (first, trial.together(rows)),
        "depends on the order": (first, trial.together(rows[::-1])),
    }
    for kind, (one, other) in trials.items():
        failed = next((score for score in other if isinstance(score, Failure)), None)
        if failed is not None:
            return [Finding(f"{_KINDS.get(failed.kind, failed.kind)} in a batch", "all", failed.last_line)]
        changed = [k for k, (a, b) in enumerate(zip(one, other, strict=True)) if not _same(a, b)]
        if changed:  # a reward that rolls dice depends on everything: the first kind says it
            return [Finding(kind, probes[rows[k]].name, f"{one[k]}, then {other[k]}") for k in changed]
    return []


def _number(score: Score) -> float | None:
    """The score if it is a finite number."""
    return score if isinstance(score, float) and math.isfinite(score) else None


def _same(a: Score, b: Score) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6) or (math.isnan(a) and math.isnan(b))
    return a is b
