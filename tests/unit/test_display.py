"""The live display, plain log lines, and that neither can be broken by what it is given."""

from __future__ import annotations

import io
import math
import sys
from pathlib import Path

import pytest
from rich.console import Console

from covey.runlog.display import FIELDS, Display, PlainDisplay, StageClock, make_display
from covey.runlog.live import LiveDisplay
from covey.runlog.table import EvalRow, before_after_table
from covey.runlog.text import Curve, crop, duration, number, visible

HOSTILE = "\x1b[2J\x1b]0;title\x07[bold red]x[/bold] [/] \r\x00\ttab \u202egnp \ud800 \u2028end :smile:"


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def terminal(width: int = 100, height: int = 40) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)


def screen(display: LiveDisplay, width: int = 100) -> str:
    """What the display shows now, as text."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(display.render())
    return capture.get()


# --- text ---


def test_nothing_a_terminal_obeys_survives() -> None:
    shown = visible(HOSTILE)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)
    assert r"\x1b[2J" in shown and r"\u202e" in shown and r"\ud800" in shown and r"\u2028" in shown
    assert "[bold red]x[/bold]" in shown  # ordinary characters stay
    assert visible("é 数 😀\nb") == "é 数 😀\nb"


def test_cropping_keeps_both_ends() -> None:
    assert crop("short", 10, 3) == "short"
    cropped = crop("a" * 500 + "<answer>", 40, 3)
    assert len(cropped) == 40 and cropped.startswith("aaa") and cropped.endswith("<answer>")
    # 10 lines into 5: 2 at the head, 2 at the tail, 6 left out
    assert crop("\n".join("0123456789"), 100, 5) == "0\n1\n... (6 lines)\n8\n9"


def test_numbers_and_durations() -> None:
    assert [number(None), number(0.5, ".3f")] == ["-", "0.500"]
    assert [number(math.nan, ".3f"), number(-math.inf)] == ["nan", "-inf"]
    assert [duration(None), duration(5), duration(65), duration(3665)] == ["-", "0:05", "1:05", "1:01:05"]


def test_the_curve_has_a_fixed_width_and_marks_gaps() -> None:
    curve = Curve(total_steps=1000, width=4)
    for step in range(1, 1001):
        curve.add(step, None if 250 < step <= 500 else (step - 1) // 250 / 3)
    assert str(curve) == "▁ ▆█"  # 0, a gap, 2/3 of 7 = 4.67 -> 5, 1
    curve.add(5000, 1.0)
    curve.add(1, math.nan)
    assert len(str(curve)) == 4


# --- time left ---


def test_time_left_counts_the_steps_done_since_a_resume() -> None:
    clock = Clock()
    stage = StageClock(100, clock)
    assert stage.left() is None
    clock.now = 10.0
    stage.step_done(81)
    assert stage.left() == pytest.approx(190.0)  # one step took 10 s, 19 are left
    clock.now = 20.0
    stage.step_done(82)
    clock.now = 24.0
    assert stage.left() == pytest.approx(176.0)  # 18 steps of 10 s, 4 s of the next have passed
    assert stage.elapsed() == pytest.approx(24.0)


def test_time_left_of_an_unknown_number_of_steps_is_a_gap() -> None:
    stage = StageClock(0, Clock())
    stage.step_done(1)
    assert stage.left() is None


# --- both displays ---


@pytest.mark.parametrize("kind", ["plain", "live"])
def test_nothing_that_is_shown_can_raise(kind: str) -> None:
    stream = io.StringIO()
    display: Display = PlainDisplay(stream) if kind == "plain" else LiveDisplay(terminal())
    with display:
        display.progress("before any stage")
        display.step(1, {})
        display.start_stage(HOSTILE, 0)
        display.step(7, {"kl": math.nan, "reward/mean": None, "of my own": 3.0})
        display.start_stage("grpo", 3)
        display.sample(HOSTILE, HOSTILE * 500, {HOSTILE: None, "format": 0.4}, None)
        display.sample("", "", {}, math.inf)
        display.message(HOSTILE)
        display.progress(HOSTILE)
        display.step(9, {"reward/accuracy": 7.0})
    display.close()


# --- plain lines ---


def test_plain_line_per_logging_steps_and_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    with PlainDisplay(stream, logging_steps=2, clock=clock) as display:
        display.start_stage("grpo", 5)
        for step in range(1, 6):
            clock.now += 10
            display.step(step, {"reward/mean": 0.5, "kl": None})
    lines = stream.getvalue().splitlines()
    assert lines[0] == "== grpo: 5 steps"
    assert [line.split(" | ")[0] for line in lines[1:]] == ["grpo step 2/5", "grpo step 4/5", "grpo step 5/5"]
    assert "0:20 elapsed, 0:30 left" in lines[1]
    assert "reward 0.500" in lines[1] and "KL -" in lines[1] and "accuracy -" in lines[1] and "loss" not in lines[1]


def test_plain_prints_the_first_sample_and_then_every_nth() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream, sample_every=3)
    display.start_stage("grpo", 9)
    for index in range(7):
        display.sample("24 from 4, 6", f"answer {index}\x1b[2J", {"format": 1.0, "accuracy": None}, 0.4)
    text = stream.getvalue()
    assert [index for index in range(7) if f"answer {index}" in text] == [0, 3, 6]
    assert "reward 0.4 (format 1, accuracy -)" in text
    assert "\x1b" not in text


def test_plain_progress_speaks_only_after_silence() -> None:
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, quiet_seconds=30, clock=clock)
    display.start_stage("grpo", 9)
    for done in range(100):
        clock.now += 1
        display.progress(f"rollout {done}/100")
    assert stream.getvalue().splitlines()[1:] == [f"grpo: rollout {done}/100" for done in (29, 59, 89)]


def test_plain_survives_a_narrow_encoding() -> None:
    raw = io.BytesIO()
    with PlainDisplay(io.TextIOWrapper(raw, encoding="ascii")) as display:
        display.message("数 é")
        assert raw.getvalue() == b"\\u6570 \\xe9\n"


# --- the live display ---


def test_live_shows_every_field_and_a_gap_for_what_is_missing() -> None:
    clock = Clock()
    with LiveDisplay(terminal(), clock) as display:
        display.start_stage("grpo", 40)
        empty = screen(display)
        clock.now = 30.0
        display.step(1, {"reward/mean": 0.625, "kl": None, "tokens_per_s": 904.2, "loss": 0.0125})
        display.sample("24 from 4, 6", "<answer>4*6</answer>", {"accuracy": 1.0}, 0.6)
        display.progress("rollout 340/512")
        shown = screen(display)
    for label, _, _ in FIELDS:
        assert label in empty and label in shown
    assert "step 0/40" in empty and "loss" not in empty
    assert "0.625" in shown and "904" in shown and "step 1/40" in shown and "0:30 elapsed, 19:30 left" in shown
    assert "loss" in shown and "0.0125" in shown and "rollout 340/512" in shown
    assert "reward 0.6 (accuracy 1)" in shown and "<answer>4*6</answer>" in shown
    kl_cell = shown[shown.index("KL") :].split()[1]
    assert kl_cell == "-"


def test_live_shows_memory_before_anyone_reports_it() -> None:
    with LiveDisplay(terminal()) as display:
        display.start_stage("sft", 4)
        cell = screen(display).split("memory GB")[1].split()[0]
    assert float(cell) > 0.0


def test_live_escapes_model_text_and_fits_a_small_terminal() -> None:
    console = terminal(80, 24)
    with LiveDisplay(console) as display:
        display.start_stage("grpo", 4)
        display.sample(HOSTILE, f"{HOSTILE}\n" * 400, {"format": 0.4}, 0.4)
        shown = screen(display, 80)
        display.sample("p" * 5000, "one long line " * 500, {"format": 0.4}, 0.4)
        heights = len(shown.splitlines()), len(screen(display, 80).splitlines())
    assert max(heights) <= 24
    assert r"\x1b[2J" in shown and "[bold red]x[/bold]" in shown and ":smile:" in shown
    assert "\x1b" not in shown and "\x07" not in shown and "\x00" not in shown
    assert isinstance(console.file, io.StringIO)
    assert "\x1b[2J" not in console.file.getvalue() and "\x1b]0;" not in console.file.getvalue()


def test_a_new_stage_forgets_the_metrics_of_the_last() -> None:
    with LiveDisplay(terminal()) as display:
        display.start_stage("sft", 4)
        display.step(4, {"loss": 0.75, "reward/accuracy": 1.0})
        display.start_stage("grpo", 4)
        shown = screen(display)
    assert "loss" not in shown and "█" not in shown and "1.000" not in shown


def test_live_gives_the_cursor_back_after_an_interrupt() -> None:
    console = terminal()
    with pytest.raises(KeyboardInterrupt), LiveDisplay(console):
        raise KeyboardInterrupt
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().rindex("\x1b[?25h") > console.file.getvalue().rindex("\x1b[?25l")


def test_live_keeps_a_bounded_state() -> None:
    with LiveDisplay(terminal()) as display:
        display.start_stage("grpo", 100_000)
        for step in range(1, 3001):
            display.step(step, {f"user/{step}": 1.0, "kl": 0.1})
        assert set(display._metrics) == {"kl"}
        assert len(display._curve._sums) == 40


# --- which one ---


def test_output_that_is_not_a_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert isinstance(make_display(), PlainDisplay)
    assert isinstance(make_display(plain=True), PlainDisplay)
    live = make_display(plain=False)
    live.close()
    assert isinstance(live, LiveDisplay)


@pytest.mark.parametrize(
    ("encoding", "environment", "plain"),
    [("utf-8", {}, False), ("ascii", {}, True), ("utf-8", {"TERM": "dumb"}, True), ("utf-8", {"CI": "true"}, True)],
)
def test_a_terminal_gets_the_live_display_unless_it_cannot_show_it(
    encoding: str, environment: dict[str, str], plain: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Tty(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", Tty(io.BytesIO(), encoding=encoding))
    display = make_display()
    display.close()
    assert isinstance(display, PlainDisplay) is plain


# --- the table ---


def test_before_after_table_fits_eighty_columns_and_shows_gaps() -> None:
    rows = [
        EvalRow("warm start", 0.702, (0.66, 0.741), 0.981, 0.7157, 61.44, 500),
        EvalRow("[red]GRPO", 0.94, (0.915, 0.958), 1.0, 0.94, 58.0, 500),
        EvalRow("raw model", 0.0, None, 0.0, None, None, 500),
    ]
    console = Console(file=io.StringIO(), width=80, color_system=None)
    with console.capture() as capture:
        console.print(before_after_table(rows))
    lines = [line.split() for line in capture.get().splitlines()]
    assert ["warm", "start", "70.2%", "66.0%", "-", "74.1%", "98.1%", "71.6%", "61.4", "500"] in lines
    assert ["[red]GRPO", "94.0%", "91.5%", "-", "95.8%", "100.0%", "94.0%", "58.0", "500"] in lines
    assert ["raw", "model", "0.0%", "-", "0.0%", "-", "-", "500"] in lines
