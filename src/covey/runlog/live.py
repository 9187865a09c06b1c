"""LiveDisplay: the run at a glance on a terminal (rich)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Lock
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from covey.runlog.display import EXTRA_FIELDS, FIELDS, StageClock
from covey.runlog.memory import rss_gb
from covey.runlog.text import GAP, Curve, crop, duration, number, rewards_line, visible

_COLUMNS = 3
_KEPT = frozenset(key for _, key, _ in (*FIELDS, *EXTRA_FIELDS))


class LiveDisplay:
    """Keeps the latest values only: its memory does not grow with the run.

    Everything is drawn from plain ``Text``, never from rich markup, and model text is made ``visible`` first, so a
    completion can neither style the screen nor move the cursor.
    """

    _metrics: dict[str, float | None]

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Drawing happens in rich's refresh thread.
        self._lock = Lock()
        self._sample: RenderableType | None = None
        self._begin("", 0)
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=2, vertical_overflow="crop")
        self._live.start()

    def start_stage(self, name: str, total_steps: int) -> None:
        with self._lock:
            self._begin(name, total_steps)

    def step(self, step: int, metrics: Mapping[str, float | None]) -> None:
        with self._lock:
            self._step, self._note = step, ""
            self._metrics = {key: metrics[key] for key in _KEPT if key in metrics}
            self._curve.add(step, metrics.get("reward/accuracy"))
            self._stage_clock.step_done(step)

    def sample(
        self, prompt_text: str, completion_text: str, rewards: Mapping[str, float | None], total: float | None
    ) -> None:
        # Cropped so that the whole display fits 24 lines of 80 columns.
        prompt, completion = crop(visible(prompt_text), 150, 2), crop(visible(completion_text), 400, 6)
        body = Text.assemble((prompt, "dim"), "\n\n", completion)
        with self._lock:
            self._sample = Panel(body, title=Text(rewards_line(rewards, total)), title_align="left")

    def message(self, text: str) -> None:
        self._live.console.print(Text(visible(text)))

    def progress(self, note: str) -> None:
        with self._lock:
            self._note = note

    def close(self) -> None:
        self._live.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def render(self) -> RenderableType:
        """The whole display at this moment."""
        with self._lock:
            parts = [self._header(), self._values(), self._accuracy_curve()]
            return Group(*parts) if self._sample is None else Group(*parts, self._sample)

    def _begin(self, name: str, total_steps: int) -> None:
        self._name, self._total = name, total_steps
        self._step, self._note = 0, ""
        self._metrics = {}
        self._curve = Curve(total_steps)
        self._stage_clock = StageClock(total_steps, self._clock)

    def _header(self) -> RenderableType:
        steps = f"step {self._step}/{self._total}" if self._total > 0 else f"step {self._step}"
        times = f"{duration(self._stage_clock.elapsed())} elapsed, {duration(self._stage_clock.left())} left"
        row = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(self._total, 1), completed=min(self._step, self._total), width=20)
        row.add_row(Text(visible(self._name), style="bold"), Text(steps), bar, Text(times))
        return Group(row, Text(visible(self._note), style="dim", no_wrap=True, overflow="ellipsis"))

    def _values(self) -> RenderableType:
        fields = (*FIELDS, *(field for field in EXTRA_FIELDS if field[1] in self._metrics))
        table = Table.grid(padding=(0, 2))
        for _ in range(_COLUMNS):
            table.add_column(style="dim", no_wrap=True)
            table.add_column(justify="right", min_width=8, no_wrap=True)
        cells = [cell for label, key, spec in fields for cell in (Text(label), Text(self._value(key, spec)))]
        for start in range(0, len(cells), 2 * _COLUMNS):
            table.add_row(*cells[start : start + 2 * _COLUMNS])
        return table

    def _value(self, key: str, spec: str) -> str:
        if key == "memory/rss_gb" and self._metrics.get(key) is None:
            return number(rss_gb(), spec)  # known at any time, also before the first step
        return number(self._metrics.get(key), spec)

    def _accuracy_curve(self) -> RenderableType:
        return Text(f"accuracy over the stage  {str(self._curve) or GAP}", no_wrap=True, overflow="crop")
