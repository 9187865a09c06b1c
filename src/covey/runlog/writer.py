"""RunWriter: the run folder. Plain files, written as the run goes, that anything can read later.

- ``config.json``: the resolved configuration
- ``metrics.jsonl``: one line per logged step, ``{"step": 3, "reward/mean": 0.5, ...}``; null: no value
- ``rollouts/step_N.jsonl``: one line per completion of step N
- ``events.jsonl``: what controllers did and why, ``{"step": 3, "event": "ladder: refill on ..."}``
- ``summary.json``: the end of the run

All of it is strict JSON. A NaN or infinite value is written as null, and its line gets ``nonfinite_values``: how many.
One folder belongs to one stage: a recipe gives each training stage a folder of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from covey.errors import UserError
from covey.runlog.jsonl import NONFINITE_KEY, read_lines, to_json, to_line, write_atomic
from covey.types import Group, Prompt

_ROLLOUT_NAME = re.compile(r"step_(\d+)\.jsonl")


class RunWriter:
    """Writes one run folder; holds no history, so its memory does not grow with the run.

    ``resume_step`` None starts a new run and refuses a folder that already holds metrics (UserError). ``resume_step``
    k continues after step k: metrics lines and rollout files of later steps are dropped first, because the
    steps will be done again; ``dropped_lines`` says how many metrics lines that were.
    """

    def __init__(self, output_dir: str | Path, resume_step: int | None = None) -> None:
        self.folder = Path(output_dir)
        self.metrics_path = self.folder / "metrics.jsonl"
        self.events_path = self.folder / "events.jsonl"
        self.rollouts_folder = self.folder / "rollouts"
        self.dropped_lines = 0
        self._last_step: int | None = None
        self._metrics_file: TextIO | None = None
        try:
            self.rollouts_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--output_dir {self.folder}: cannot be used as a run folder ({error})") from error
        if resume_step is not None:
            self._drop_after(resume_step)
        elif self.metrics_path.exists() and self.metrics_path.stat().st_size > 0:
            raise UserError(
                f"--output_dir {self.folder} already holds a run; continue it with --resume_from_checkpoint latest, "
                "or give another --output_dir"
            )

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Replace ``config.json``. Raises ValueError on a NaN or infinite value: a config must parse back to itself."""
        write_atomic(self.folder / "config.json", json.dumps(config, indent=2, allow_nan=False) + "\n")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace ``summary.json``; non-finite values become null and are counted."""
        cleaned, bad = to_json(summary)
        if bad:
            cleaned[NONFINITE_KEY] = bad
        write_atomic(self.folder / "summary.json", json.dumps(cleaned, indent=2, allow_nan=False) + "\n")

    def log_metrics(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Append one line, on disk when this returns.

        Raises ValueError if ``step`` is not beyond the last one written, TypeError for a value that is not a number
        (a tensor would keep its graph alive).
        """
        if self._last_step is not None and step <= self._last_step:
            raise ValueError(f"metrics of step {step} after those of step {self._last_step}: a step is written once")
        if "step" in metrics:
            raise ValueError("the metric name 'step' is taken: pass the step as the argument")
        for name, value in metrics.items():
            if value is not None and not isinstance(value, int | float):
                raise TypeError(f"metric {name!r} is a {type(value).__name__}; pass a float or None")
        if self._metrics_file is None:
            self._metrics_file = self.metrics_path.open("a", encoding="utf-8")
        self._metrics_file.write(to_line({"step": step, **metrics}))
        self._metrics_file.flush()
        self._last_step = step

    def log_rollouts(
        self, step: int, groups: Sequence[Group], advantages: Sequence[Sequence[float | None]] | None = None
    ) -> Path:
        """Write ``rollouts/step_N.jsonl``, replacing it if it is there, and return its path; see write_rollouts."""
        path = self.rollouts_folder / f"step_{step}.jsonl"
        write_rollouts(path, step, groups, advantages)
        return path

    def log_event(self, step: int, event: str) -> None:
        """Append one line to ``events.jsonl``."""
        with self.events_path.open("a", encoding="utf-8") as file:
            file.write(to_line({"step": step, "event": event}))

    def close(self) -> None:
        """Close the metrics file; safe to call twice."""
        if self._metrics_file is not None:
            self._metrics_file.close()
            self._metrics_file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _drop_after(self, step: int) -> None:
        kept, self.dropped_lines = _drop_lines(self.metrics_path, step)
        self._last_step = max(kept, default=None)
        _drop_lines(self.events_path, step)
        for path in self.rollouts_folder.iterdir():
            if (match := _ROLLOUT_NAME.fullmatch(path.name)) and int(match[1]) > step:
                path.unlink()


def _drop_lines(path: Path, step: int) -> tuple[list[int], int]:
    """Drop the lines of later steps from a file that may not be there; the steps kept, and how many lines went."""
    if not path.exists():
        return [], 0
    records = read_lines(path)
    kept = [record for record in records if record.get("step", 0) <= step]
    # Rewritten even when nothing is dropped: this also removes a torn last line.
    write_atomic(path, "".join(map(to_line, kept)))
    return [record.get("step", 0) for record in kept], len(records) - len(kept)


def prompt_text(prompt: Prompt) -> str:
    """The messages as text for logs: the bare content of a lone user message, else ``role: content`` paragraphs."""
    if len(prompt.messages) == 1 and prompt.messages[0]["role"] == "user":
        return prompt.messages[0]["content"]
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in prompt.messages)


def write_rollouts(
    path: Path, step: int, groups: Sequence[Group], advantages: Sequence[Sequence[float | None]] | None = None
) -> None:
    """Write one line per completion to ``path``; for the completions of an evaluation there are no advantages.

    ``advantages[k][i]`` belongs to member i of group k. Raises ValueError if their shape is not that of the groups.
    """
    write_atomic(path, "".join(map(to_line, _rollout_records(step, groups, advantages))))


def _rollout_records(
    step: int, groups: Sequence[Group], advantages: Sequence[Sequence[float | None]] | None
) -> Iterator[dict[str, Any]]:
    rows: Iterable[Sequence[float | None]] = (
        [[None] * len(group.members) for group in groups] if advantages is None else advantages
    )
    for group, group_advantages in zip(groups, rows, strict=True):
        text = prompt_text(group.prompt)
        for index, (member, advantage) in enumerate(zip(group.members, group_advantages, strict=True)):
            yield {
                "step": step,
                "prompt_id": group.prompt.id,
                "sample": index,
                "prompt": text,
                "completion": member.completion.text,
                "rewards": member.rewards,
                "total": member.total,
                "advantage": advantage,
                "finish_reason": member.completion.finish_reason,
                "length": len(member.completion.token_ids),
                "weight_version": member.completion.weight_version,
                # Nested: a user's column may be called "step" or "prompt" too.
                "columns": group.prompt.columns,
            }
