"""The loop around a step function: log, show, evaluate, save, stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from covey.errors import UserError
from covey.runlog.display import Display
from covey.runlog.memory import rss_gb
from covey.runlog.metrics import MetricWindow
from covey.runlog.sinks import Sink
from covey.runlog.writer import RunWriter, prompt_text
from covey.trainers.checkpoint import Checkpoints
from covey.trainers.stop import StopRequested
from covey.types import StepResult

MAX_NONFINITE = 5
"""Updates in a row without a finite gradient (each is skipped) after which a run stops."""

Advance = Callable[[int], Iterator[StepResult]]
"""Given the last finished step, do the next piece of work (a rollout and its updates) and yield each step's result."""


@dataclass
class Loop:
    """Everything around the steps of one training stage."""

    name: str
    total_steps: int
    writer: RunWriter
    display: Display
    checkpoints: Checkpoints
    state: Callable[[], Mapping[str, Any]]
    logging_steps: int = 1
    save_steps: int = 0
    eval_steps: int = 0
    evaluate: Callable[[int], Mapping[str, float | None]] | None = None
    sinks: Sequence[Sink] = ()
    _window: MetricWindow = field(default_factory=MetricWindow)
    _nonfinite: int = 0

    def run(self, advance: Advance, start: int) -> int:
        """Run from step ``start`` to the end; returns the last step.

        On a stop request, or a UserError such as a reward that raises, the weights of the last finished step are saved
        before the exception goes on. UserError after MAX_NONFINITE updates in a row without a finite gradient.
        """
        self.display.start_stage(self.name, self.total_steps)
        step = saved = start
        try:
            while step < self.total_steps:
                before = step
                for result in advance(step):
                    step = result.step
                    self._record(result)
                    self._stop_if_broken(step)
                    if step == self.total_steps:
                        break  # the last rollout may serve fewer steps than the others
                if self.save_steps and before // self.save_steps != step // self.save_steps:
                    self._save(step)
                    saved = step
        except (StopRequested, UserError):
            if step > saved:
                self._save(step)
            kept = f"{self._path(step)} holds it" if step > start else "nothing new to save"
            self.display.message(f"stopped after step {step}; {kept}")
            raise
        if step > saved or step == start:
            self._save(step)
        return step

    def _record(self, result: StepResult) -> None:
        metrics = {**result.metrics, "memory/rss_gb": rss_gb()}
        try:
            if self.evaluate is not None and self.eval_steps and result.step % self.eval_steps == 0:
                metrics |= self.evaluate(result.step)
        finally:
            self._log(result, metrics)  # the step itself is done, also when its evaluation is interrupted

    def _stop_if_broken(self, step: int) -> None:
        if self._nonfinite >= MAX_NONFINITE:
            raise UserError(
                f"{MAX_NONFINITE} updates in a row had a gradient that is not finite, the last at step {step}: try"
                " --torch_dtype float32, a lower --learning_rate, or look at the rollouts of that step"
            )

    def _log(self, result: StepResult, metrics: Mapping[str, float | None]) -> None:
        if result.groups:
            self.writer.log_rollouts(result.step, result.groups, result.advantages)
            group = result.groups[result.step % len(result.groups)]
            shown = group.members[0]
            self.display.sample(prompt_text(group.prompt), shown.completion.text, shown.rewards, shown.total)
        self._window.add(metrics)
        self.display.step(result.step, metrics)
        for event in result.events:
            self.writer.log_event(result.step, event)
            self.display.message(f"step {result.step}: {event}")
        norm = metrics.get("grad_norm")
        self._nonfinite = self._nonfinite + 1 if norm is not None and not math.isfinite(norm) else 0
        if result.step % self.logging_steps == 0 or result.step == self.total_steps:
            means = self._window.flush().as_metrics()
            self.writer.log_metrics(result.step, means)
            for sink in self.sinks:
                sink.log(result.step, means)

    def _save(self, step: int) -> None:
        self.display.progress(f"saving checkpoint-{step}")
        self.checkpoints.save(step, self.state())

    def _path(self, step: int) -> Path:
        return self.writer.folder / f"checkpoint-{step}"
