"""The loop around a step: it stops on gradients that stay non-finite, and keeps the last weights when a step fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.errors import UserError
from covey.runlog.display import PlainDisplay
from covey.runlog.writer import RunWriter
from covey.trainers.checkpoint import Checkpoints, steps_saved
from covey.trainers.loop import MAX_NONFINITE, Loop
from covey.types import StepResult


def loop_in(folder: Path, total: int) -> Loop:
    return Loop(
        name="test",
        total_steps=total,
        writer=RunWriter(folder),
        display=PlainDisplay(),
        checkpoints=Checkpoints(folder, lambda path: None, None),
        state=dict,
    )


def test_non_finite_gradients_in_a_row_stop_the_run(tmp_path: Path) -> None:
    def advance(step: int) -> Iterator[StepResult]:
        yield StepResult(step + 1, {"grad_norm": 1.0 if step == 2 else float("nan")})

    with pytest.raises(UserError, match=f"{MAX_NONFINITE} updates in a row.*the last at step 8"):
        loop_in(tmp_path, 100).run(advance, 0)  # steps 1, 2 bad, 3 good, 4 to 8 bad
    assert steps_saved(tmp_path) == [8]


def test_a_failing_step_leaves_the_weights_of_the_one_before(tmp_path: Path) -> None:
    def advance(step: int) -> Iterator[StepResult]:
        if step == 3:
            raise UserError("reward mine raised")
        yield StepResult(step + 1, {"grad_norm": 1.0})

    with pytest.raises(UserError, match="reward mine raised"):
        loop_in(tmp_path, 10).run(advance, 0)
    assert steps_saved(tmp_path) == [3]
