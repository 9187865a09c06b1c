"""The run folder, windowed metrics (known fault 38), sinks and memory."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from covey.errors import UserError
from covey.runlog.memory import rss_gb
from covey.runlog.metrics import MetricWindow
from covey.runlog.sinks import make_sinks
from covey.runlog.writer import RunWriter, prompt_text, write_rollouts
from covey.types import Completion, Group, Prompt, Scored


def strict(path: Path) -> list[dict[str, Any]]:
    """The lines of a file through a parser that refuses NaN and Infinity."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{path} holds {constant}, which is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]


def a_group(text: str = "<answer>4*6</answer>", columns: dict[str, Any] | None = None) -> Group:
    prompt = Prompt("countdown:4,6:24", ({"role": "user", "content": "24 from 4, 6"},), columns or {})
    return Group(
        prompt,
        (
            Scored(Completion((7, 8, 2), (-0.1,) * 3, text, "stop"), {"format": 1.0, "accuracy": None}, 0.4),
            Scored(Completion((7,), (-0.1,), "4", "length"), {"format": 0.0, "accuracy": math.nan}, None),
        ),
    )


# --- metrics.jsonl ---


def test_nonfinite_metrics_become_null_and_are_counted(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.log_metrics(1, {"kl": math.nan, "grad_norm": math.inf, "reward/mean": 0.5, "reward/f2": None})
        writer.log_metrics(2, {"kl": 0.25})
    assert strict(tmp_path / "metrics.jsonl") == [
        {"step": 1, "kl": None, "grad_norm": None, "reward/mean": 0.5, "reward/f2": None, "nonfinite_values": 2},
        {"step": 2, "kl": 0.25},
    ]


def test_a_line_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.log_metrics(1, {"kl": 0.5})
    assert strict(tmp_path / "metrics.jsonl") == [{"step": 1, "kl": 0.5}]
    writer.close()
    writer.close()


def test_a_step_is_written_once(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.log_metrics(2, {})
        with pytest.raises(ValueError, match="step 2 after"):
            writer.log_metrics(2, {})
        with pytest.raises(ValueError, match="'step' is taken"):
            writer.log_metrics(3, {"step": 3})
    assert strict(tmp_path / "metrics.jsonl") == [{"step": 2}]


def test_a_metric_that_is_not_a_number_is_named(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer, pytest.raises(TypeError, match=r"'kl' is a ndarray"):
        writer.log_metrics(1, {"kl": np.zeros(1)})  # type: ignore[dict-item]


# --- resuming ---


def run_of_five_steps(folder: Path) -> None:
    with RunWriter(folder) as writer:
        for step in range(1, 6):
            writer.log_rollouts(step, [a_group()])
            writer.log_metrics(step, {"kl": step / 10})


def test_resume_drops_later_steps_and_the_torn_last_line(tmp_path: Path) -> None:
    run_of_five_steps(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "kl": 0.')
    with RunWriter(tmp_path, resume_step=3) as writer:
        assert writer.dropped_lines == 2
        writer.log_metrics(4, {"kl": 9.0})
    assert [(line["step"], line["kl"]) for line in strict(tmp_path / "metrics.jsonl")] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
        (4, 9.0),
    ]
    assert sorted(path.name for path in (tmp_path / "rollouts").iterdir()) == [f"step_{n}.jsonl" for n in (1, 2, 3)]


def test_resume_at_the_end_still_repairs_the_torn_line(tmp_path: Path) -> None:
    run_of_five_steps(tmp_path)
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + b'{"step": \xff\x00')
    with RunWriter(tmp_path, resume_step=5) as writer:
        assert writer.dropped_lines == 0
        with pytest.raises(ValueError, match="step 5 after those of step 5"):
            writer.log_metrics(5, {})
        writer.log_metrics(6, {})
    assert [line["step"] for line in strict(metrics)] == [1, 2, 3, 4, 5, 6]


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2"):
        RunWriter(tmp_path, resume_step=3)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": \n{"step": 3}\n'


def test_a_new_run_does_not_write_into_an_old_one(tmp_path: Path) -> None:
    run_of_five_steps(tmp_path)
    with pytest.raises(UserError, match="--resume_from_checkpoint latest"):
        RunWriter(tmp_path)
    assert len(strict(tmp_path / "metrics.jsonl")) == 5


def test_an_output_dir_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match="--output_dir"):
        RunWriter(tmp_path / "taken")


# --- rollouts ---


def test_rollout_lines(tmp_path: Path) -> None:
    columns = {"step": "mine", "prompt": "mine too", "nums": [4, 6]}
    with RunWriter(tmp_path) as writer:
        path = writer.log_rollouts(3, [a_group(columns=columns)], [[0.7, None]])
    assert path == tmp_path / "rollouts" / "step_3.jsonl"
    first, second = strict(path)
    assert first == {
        "step": 3,
        "prompt_id": "countdown:4,6:24",
        "sample": 0,
        "prompt": "24 from 4, 6",
        "completion": "<answer>4*6</answer>",
        "rewards": {"format": 1.0, "accuracy": None},
        "total": 0.4,
        "advantage": 0.7,
        "finish_reason": "stop",
        "length": 3,
        "weight_version": 0,
        "columns": columns,
    }
    assert second["rewards"] == {"format": 0.0, "accuracy": None}
    assert second["nonfinite_values"] == 1
    assert (second["sample"], second["advantage"], second["finish_reason"]) == (1, None, "length")


def test_any_text_and_any_column_is_one_strict_line(tmp_path: Path) -> None:
    text = 'line\nbreak \u2028 \x85 "quote" \x00 \ud800 é 数'
    columns: dict[Any, Any] = {"day": date(2026, 1, 2), "x": np.float32(math.inf), "k": np.int64(3)}
    columns["f"] = Fraction(1, 3)
    columns[1, 2] = {3}
    path = tmp_path / "eval.jsonl"
    write_rollouts(path, 0, [a_group(text, columns)])
    first, _ = strict(path)
    assert first["completion"] == text
    assert first["columns"] == {"day": "2026-01-02", "x": None, "k": 3, "f": "1/3", "(1, 2)": [3]}
    assert first["nonfinite_values"] == 1


def test_advantages_of_another_shape_are_refused_and_leave_no_file(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer, pytest.raises(ValueError, match="zip"):
        writer.log_rollouts(1, [a_group()], [[1.0]])
    assert list((tmp_path / "rollouts").iterdir()) == []


def test_prompt_text_of_a_conversation() -> None:
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})
    assert prompt_text(Prompt("p", messages)) == "system: Be brief.\n\nuser: Hi"  # type: ignore[arg-type]


# --- config.json, summary.json ---


def test_config_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.write_config({"beta": 0.001})
        with pytest.raises(ValueError, match="JSON"):
            writer.write_config({"beta": math.nan})
        writer.write_summary({"after": {"accuracy": math.nan, "n": 500}})
    assert json.loads((tmp_path / "config.json").read_text()) == {"beta": 0.001}
    assert json.loads((tmp_path / "summary.json").read_text()) == {
        "after": {"accuracy": None, "n": 500},
        "nonfinite_values": 1,
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "rollouts", "summary.json"]


# --- windowed means ---


def test_a_reward_that_abstains_in_one_step_is_averaged_over_the_others(tmp_path: Path) -> None:
    window = MetricWindow()
    for f2 in (0.2, None, 0.6):
        window.add({"reward/f1": 1.0, "reward/f2": f2})
    result = window.flush()
    assert result.means == {"reward/f1": 1.0, "reward/f2": pytest.approx(0.4)}  # (0.2 + 0.6) / 2
    assert result.counts == {"reward/f1": 3, "reward/f2": 2}
    assert result.as_metrics() == {"reward/f1": 1.0, "reward/f2": pytest.approx(0.4), "n/reward/f2": 2}


def test_the_step_alone_has_no_value(tmp_path: Path) -> None:
    window = MetricWindow()
    window.add({"reward/f1": 1.0, "reward/f2": None})
    with RunWriter(tmp_path) as writer:
        writer.log_metrics(2, window.flush().as_metrics())
    assert strict(tmp_path / "metrics.jsonl") == [{"step": 2, "reward/f1": 1.0, "reward/f2": None, "n/reward/f2": 0}]


def test_a_nan_does_not_poison_the_window_and_is_counted() -> None:
    window = MetricWindow()
    for kl in (0.1, math.nan, 0.3):
        window.add({"kl": kl})
    assert window.flush().as_metrics() == {"kl": pytest.approx(0.2), "n/kl": 2, "nonfinite_values": 1}


def test_a_flush_starts_a_new_window() -> None:
    window = MetricWindow()
    window.add({"kl": 8.0, "eval": 1.0})
    window.flush()
    window.add({"kl": 2.0})
    assert window.flush().as_metrics() == {"kl": 2.0}


# --- sinks ---


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "tensorboard.summary"), ("wandb", "wandb")])
def test_a_missing_package_says_what_to_install(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"pip install 'covey\[{name}\]'"):
        make_sinks([name], tmp_path)


def test_an_unknown_sink_lists_the_known_ones_before_any_is_opened(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tensorbord: unknown; choose from tensorboard, wandb"):
        make_sinks(["tensorboard", "tensorbord"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_gets_the_values_and_skips_gaps(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (sink,) = make_sinks(["tensorboard"], tmp_path)
    sink.log(1, {"kl": 0.25, "reward/f2": None, "grad_norm": math.nan})
    sink.log(2, {"kl": 0.5, "reward/f2": 1.0})
    sink.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    tensors = {tag: events.Tensors(tag) for tag in events.Tags()["tensors"]}
    read = {tag: [(e.step, e.tensor_proto.float_val[0]) for e in values] for tag, values in tensors.items()}
    assert read == {"kl": [(1, 0.25), (2, 0.5)], "reward/f2": [(2, 1.0)]}


# --- memory (known fault 34) ---


def test_rss_is_in_gb_and_below_its_peak() -> None:
    """In a process of its own: what other tests have freed would be reused or given back meanwhile."""
    code = (
        "from covey.runlog.memory import peak_rss_gb, rss_gb\n"
        "now = rss_gb(); block = b'x' * 80_000_000; print(now, rss_gb(), peak_rss_gb())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=child_env())
    now, grown, peak = map(float, run.stdout.split())
    assert 0.005 < now < 1  # a Python process holds megabytes: a wrong unit is off by 1000
    assert grown - now == pytest.approx(0.08, abs=0.02)
    assert peak >= grown - 0.005  # the kernel's two counters may differ by some pages


def child_env() -> dict[str, str]:
    """The environment of this process with this checkout's sources first."""
    sources = str(Path(__file__).parents[2] / "src")
    return {**os.environ, "PYTHONPATH": sources}


def test_three_hundred_steps_keep_nothing(tmp_path: Path) -> None:
    window = MetricWindow()
    group = a_group("x" * 2000)
    with RunWriter(tmp_path) as writer:
        for step in range(1, 301):
            writer.log_rollouts(step, [group])
            window.add({"kl": 0.1})
            writer.log_metrics(step, window.flush().as_metrics())
            if step == 100:
                before = rss_gb()
    assert rss_gb() - before < 0.010  # the bound of the fault's test: 10 MB between steps 100 and 300
