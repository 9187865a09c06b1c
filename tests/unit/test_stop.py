"""Stop requests, and what the loop around the steps does with them."""

from __future__ import annotations

import io
import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from covey.runlog.display import PlainDisplay
from covey.runlog.writer import RunWriter
from covey.trainers.checkpoint import Checkpoints, load_state, steps_saved
from covey.trainers.loop import Loop
from covey.trainers.stop import StopRequested, StopSignal
from covey.types import StepResult


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_waits_for_a_check_and_the_second_does_not(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(StopRequested), StopSignal() as stop:
        stop.check()
        signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt) as second:
            signal.raise_signal(number)
        assert second.type is KeyboardInterrupt
        stop.check()
    assert signal.getsignal(number) is before


def test_a_request_that_no_check_has_met_is_raised_on_leaving() -> None:
    """Else a Ctrl-C while a stage saves its model would be lost, and the next stage of the recipe would begin."""
    with pytest.raises(StopRequested), StopSignal():
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), StopSignal():
        signal.raise_signal(signal.SIGINT)
        raise ZeroDivisionError


def test_nothing_on_the_way_takes_a_stop_for_a_fault() -> None:
    assert issubclass(StopRequested, KeyboardInterrupt) and not issubclass(StopRequested, Exception)


def test_other_threads_have_no_signals() -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            with StopSignal() as stop:
                stop.check()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed


Evaluate = Callable[[int], Mapping[str, float | None]]


class Bench:
    """A Loop over a counter: every step adds 1 to ``value``, which is what a checkpoint holds."""

    def __init__(
        self, folder: Path, total: int, *, save_steps: int = 0, per_draw: int = 1, logging_steps: int = 1,
        evaluate: Evaluate | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.value, self.per_draw = folder, 0, per_draw
        self.stop_before: int | None = None
        self.out = io.StringIO()
        self.loop = Loop(
            name="test", total_steps=total, writer=RunWriter(folder), display=PlainDisplay(self.out),
            checkpoints=Checkpoints(folder, lambda path: None, None), state=lambda: {"value": self.value},
            logging_steps=logging_steps, save_steps=save_steps, eval_steps=1 if evaluate else 0, evaluate=evaluate,
        )  # fmt: skip

    def advance(self, step: int) -> Iterator[StepResult]:
        for _ in range(self.per_draw):
            if step + 1 == self.stop_before:
                raise StopRequested
            step += 1
            self.value += 1
            yield StepResult(step, {"value": float(self.value)})

    def lines(self) -> list[dict[str, float]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]


def test_a_stop_saves_the_last_finished_step(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 10, save_steps=2)
    bench.stop_before = 6
    with pytest.raises(StopRequested):
        bench.loop.run(bench.advance, 0)
    assert steps_saved(tmp_path) == [2, 4, 5] and load_state(tmp_path / "checkpoint-5")["value"] == 5
    assert "stopped after step 5" in bench.out.getvalue() and "checkpoint-5" in bench.out.getvalue()


def test_a_stop_right_after_a_checkpoint_does_not_save_twice(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 10, save_steps=2)
    bench.stop_before = 5
    with pytest.raises(StopRequested):
        bench.loop.run(bench.advance, 0)
    assert steps_saved(tmp_path) == [2, 4] and "checkpoint-4 holds it" in bench.out.getvalue()


def test_a_stop_before_the_first_step_claims_no_checkpoint(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 10)
    bench.stop_before = 1
    with pytest.raises(StopRequested):
        bench.loop.run(bench.advance, 0)
    assert steps_saved(tmp_path) == [] and "checkpoint-" not in bench.out.getvalue()


def test_a_draw_does_not_run_past_the_last_step(tmp_path: Path) -> None:
    """4 steps per rollout, 6 in all."""
    bench = Bench(tmp_path, 6, per_draw=4, save_steps=2)
    assert bench.loop.run(bench.advance, 0) == 6 and bench.value == 6
    assert [line["step"] for line in bench.lines()] == [1, 2, 3, 4, 5, 6]
    assert steps_saved(tmp_path) == [4, 6]  # periodic ones at the end of a rollout


def test_the_line_of_a_step_is_written_though_its_evaluation_is_stopped(tmp_path: Path) -> None:
    def evaluate(step: int) -> Mapping[str, float | None]:
        if step == 2:
            raise StopRequested
        return {"eval/accuracy": 0.5}

    bench = Bench(tmp_path, 5, evaluate=evaluate)
    with pytest.raises(StopRequested):
        bench.loop.run(bench.advance, 0)
    assert [line["step"] for line in bench.lines()] == [1, 2]
    assert bench.lines()[0]["eval/accuracy"] == 0.5 and "eval/accuracy" not in bench.lines()[1]
    assert steps_saved(tmp_path) == [2]


def test_means_over_the_logging_interval_and_the_rest_at_the_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 5, logging_steps=2)
    bench.loop.run(bench.advance, 0)
    # values 1..5: means of (1, 2), (3, 4) and (5)
    assert [(line["step"], line["value"]) for line in bench.lines()] == [(2, 1.5), (4, 3.5), (5, 5.0)]


def test_another_error_goes_on_unchanged_and_keeps_the_checkpoints(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 5, save_steps=1)

    def broken(step: int) -> Iterator[StepResult]:
        if step == 2:
            raise ZeroDivisionError
        yield from bench.advance(step)

    with pytest.raises(ZeroDivisionError):
        bench.loop.run(broken, 0)
    assert steps_saved(tmp_path) == [1, 2]
