"""Ctrl-C without losing work: the first signal asks for a stop at the next safe point, the second ends at once."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class StopRequested(KeyboardInterrupt):
    """Raised by ``StopSignal.check`` between two pieces of work, never inside an update of the weights.

    A KeyboardInterrupt, so that whoever does not know of it ends as after any Ctrl-C (exit code 130 on the command
    line) and no ``except Exception`` on the way takes it for a fault.
    """


class StopSignal:
    """Context manager that turns SIGINT and SIGTERM into a request; ``check`` is called wherever stopping is safe.

    A request that no check has met is raised on leaving, so that none is lost between two stages of a recipe.
    """

    def __init__(self) -> None:
        self._requested = False
        self._previous: dict[int, object] = {}

    def check(self) -> None:
        """Raise StopRequested if a signal has come."""
        if self._requested:
            raise StopRequested

    def __enter__(self) -> StopSignal:
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        except ValueError:  # not the main thread: signals then stay with whoever owns it
            pass
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if kind is None:
            self.check()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
