"""Where metrics go besides the run folder: ``--report_to tensorboard|wandb``, each imported only when used."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from covey.errors import UserError


class Sink(Protocol):
    """Takes the metrics of a logged step. A key whose value is None is a gap: nothing is sent for it."""

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Send the metrics of one step."""

    def close(self) -> None:
        """Send what is still buffered; nothing may be logged afterwards."""


class TensorBoardSink:
    """Event files in ``<run folder>/tensorboard``."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.summary import Writer
        except ImportError as error:
            raise _missing("tensorboard") from error
        self._writer = Writer(str(folder / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        for key, value in _present(metrics).items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """A Weights & Biases run named after the run folder; account and mode come from wandb's own settings."""

    def __init__(self, folder: Path) -> None:
        try:
            import wandb
        except ImportError as error:
            raise _missing("wandb") from error
        self._run = wandb.init(project="covey", name=folder.resolve().name, dir=str(folder))

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self._run.log(_present(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


SINKS: Mapping[str, Callable[[Path], Sink]] = {"tensorboard": TensorBoardSink, "wandb": WandbSink}


def make_sinks(names: Sequence[str], folder: str | Path) -> list[Sink]:
    """The sinks of ``--report_to`` for a run folder.

    Raises UserError for an unknown name (all are checked before any is opened) or a package that is not installed.
    """
    unknown = [name for name in names if name not in SINKS]
    if unknown:
        raise UserError(f"--report_to {unknown[0]}: unknown; choose from {', '.join(SINKS)}")
    return [SINKS[name](Path(folder)) for name in names]


def _present(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if value is not None and math.isfinite(value)}


def _missing(name: str) -> UserError:
    return UserError(f"--report_to {name}: the package is not installed; run: pip install 'covey[{name}]'")
