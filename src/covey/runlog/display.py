"""What a person sees while Covey works: a live display on a terminal, plain lines everywhere else.

Trainers know only the ``Display`` protocol. No call of it fails because a metric is missing or a text is odd.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol, Self, TextIO

from covey.runlog.text import crop, duration, number, rewards_line, visible

FIELDS: tuple[tuple[str, str, str], ...] = (
    ("reward", "reward/mean", ".3f"),
    ("accuracy", "reward/accuracy", ".3f"),
    ("acc. if formatted", "accuracy_when_formatted", ".3f"),
    ("format", "reward/format", ".3f"),
    ("length", "completions/mean_length", ".1f"),
    ("clipped", "completions/clipped_ratio", ".3f"),
    ("KL", "kl", ".4f"),
    ("beta", "beta", ".4g"),
    ("zero variance", "frac_reward_zero_std", ".2f"),
    ("entropy", "entropy", ".3f"),
    ("tokens/s", "tokens_per_s", ".0f"),
    ("memory GB", "memory/rss_gb", ".2f"),
)
"""Label, metric key and format of what is always shown; ``-`` stands for a metric without a value."""

EXTRA_FIELDS: tuple[tuple[str, str, str], ...] = (("loss", "loss", ".4f"), ("lr", "lr", ".2e"))
"""Shown once a stage has reported them."""


class Display(Protocol):
    """Shows a run. A context manager: leaving it gives the terminal back, also after Ctrl-C."""

    def start_stage(self, name: str, total_steps: int) -> None:
        """A new stage begins; metrics and clock start anew. ``total_steps`` 0: their number is not known."""

    def step(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Step ``step`` (counted from 1) is done. After a resume the first one may be larger than 1."""

    def sample(
        self, prompt_text: str, completion_text: str, rewards: Mapping[str, float | None], total: float | None
    ) -> None:
        """One sampled completion with its rewards."""

    def message(self, text: str) -> None:
        """A line that stays on the screen."""

    def progress(self, note: str) -> None:
        """How far a long phase inside a step is, such as ``rollout 340/512``; replaced by the next."""

    def close(self) -> None:
        """Give the terminal back; safe to call twice."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class StageClock:
    """Elapsed and remaining seconds of a stage; a stage resumed at step 80 is timed by the steps done since."""

    def __init__(self, total_steps: int, clock: Callable[[], float]) -> None:
        self._total = total_steps
        self._clock = clock
        self._start = clock()
        self._first: int | None = None
        self._step = 0
        self._step_time = self._start

    def step_done(self, step: int) -> None:
        """Note that ``step`` has just ended."""
        if self._first is None:
            self._first = step
        self._step, self._step_time = step, self._clock()

    def elapsed(self) -> float:
        """Seconds since the stage began."""
        return self._clock() - self._start

    def left(self) -> float | None:
        """Estimated seconds to go; None before the first step or when the number of steps is not known."""
        if self._first is None or self._total <= 0:
            return None
        per_step = (self._step_time - self._start) / (self._step - self._first + 1)
        since = self._clock() - self._step_time
        return max(per_step * (self._total - self._step) - since, 0.0)


class PlainDisplay:
    """One line per ``logging_steps``, for logs and CI.

    The first sample of a stage is printed and then every ``sample_every``-th; a progress note only when nothing else
    was printed for ``quiet_seconds``, so that a long phase shows life without flooding the log.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        logging_steps: int = 1,
        sample_every: int = 10,
        quiet_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._logging_steps = logging_steps
        self._sample_every = sample_every
        self._quiet_seconds = quiet_seconds
        self._clock = clock
        self._last_print = clock()
        self._begin("", 0)

    def start_stage(self, name: str, total_steps: int) -> None:
        self._begin(name, total_steps)
        self._print(f"== {visible(name)}" + (f": {total_steps} steps" if total_steps > 0 else ""))

    def step(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self._stage_clock.step_done(step)
        if step % self._logging_steps and step != self._total:
            return
        extra = [field for field in EXTRA_FIELDS if field[1] in metrics]
        values = " | ".join(f"{label} {number(metrics.get(key), spec)}" for label, key, spec in (*FIELDS, *extra))
        elapsed, left = duration(self._stage_clock.elapsed()), duration(self._stage_clock.left())
        self._print(f"{visible(self._name)} {_of(step, self._total)} | {elapsed} elapsed, {left} left | {values}")

    def sample(
        self, prompt_text: str, completion_text: str, rewards: Mapping[str, float | None], total: float | None
    ) -> None:
        self._samples += 1
        if (self._samples - 1) % self._sample_every:
            return
        prompt, completion = (crop(visible(text), 1500, 20) for text in (prompt_text, completion_text))
        body = f"prompt:\n{prompt}\ncompletion:\n{completion}".replace("\n", "\n    ")
        self._print(f"sample: {rewards_line(rewards, total)}\n    {body}")

    def message(self, text: str) -> None:
        self._print(visible(text))

    def progress(self, note: str) -> None:
        if self._clock() - self._last_print >= self._quiet_seconds:
            self._print(f"{visible(self._name)}: {visible(note)}")

    def close(self) -> None:
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, name: str, total_steps: int) -> None:
        self._name, self._total, self._samples = name, total_steps, 0
        self._stage_clock = StageClock(total_steps, self._clock)

    def _print(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        # A log in a narrow encoding shows \u2581 instead of stopping the run.
        self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        self._stream.flush()
        self._last_print = self._clock()


def make_display(plain: bool | None = None, logging_steps: int = 1, sample_every: int = 10) -> Display:
    """The live display if ``plain`` is False, plain lines if True.

    None decides: live when standard output is a UTF-8 terminal that can move its cursor and this is not a CI job
    (environment variable ``CI``).
    """
    if plain is None:
        encoding = (sys.stdout.encoding or "").lower().replace("-", "")
        capable = sys.stdout.isatty() and encoding == "utf8" and os.environ.get("TERM") != "dumb"
        plain = not capable or bool(os.environ.get("CI"))
    if plain:
        return PlainDisplay(logging_steps=logging_steps, sample_every=sample_every)
    from covey.runlog.live import LiveDisplay  # rich is not needed for plain lines

    return LiveDisplay()


def _of(step: int, total: int) -> str:
    return f"step {step}/{total}" if total > 0 else f"step {step}"
