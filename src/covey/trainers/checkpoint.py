"""Checkpoints: ``checkpoint-N/`` with the model in HF layout, ``trainer_state.pt`` and a manifest written last.

A checkpoint is written aside and renamed, so a crash never leaves half of one under its name; the manifest holds the
size of every file, so a truncated one is refused by name and an older one can be used.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from covey.errors import UserError

_NAME = re.compile(r"checkpoint-(\d+)")
_MANIFEST = "manifest.json"
_STATE = "trainer_state.pt"


class Checkpoints:
    """The checkpoints of one run folder; keeps the newest ``limit`` (None: all)."""

    def __init__(self, folder: Path, save_model: Callable[[Path], None], limit: int | None) -> None:
        self._folder, self._save_model, self._limit = folder, save_model, limit

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write ``checkpoint-<step>`` and drop the oldest beyond the limit."""
        target = self._folder / f"checkpoint-{step}"
        scratch = self._folder / f".checkpoint-{step}.partial"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        self._save_model(scratch)
        torch.save({"step": step, **state}, scratch / _STATE)
        files = sorted(path for path in scratch.rglob("*") if path.is_file())
        sizes = {path.relative_to(scratch).as_posix(): path.stat().st_size for path in files}
        (scratch / _MANIFEST).write_text(json.dumps(sizes, indent=1) + "\n")
        shutil.rmtree(target, ignore_errors=True)
        scratch.rename(target)
        if self._limit is not None:
            # later ones are there after a resume from an earlier step; they must not push out the one just written
            for old in [saved for saved in steps_saved(self._folder) if saved <= step][: -self._limit]:
                shutil.rmtree(self._folder / f"checkpoint-{old}")
        return target


def steps_saved(folder: Path) -> list[int]:
    """Steps with a checkpoint folder, ascending."""
    if not folder.is_dir():
        return []
    return sorted(int(match[1]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name)))


def find_checkpoint(output_dir: Path, wanted: str) -> Path:
    """The folder that ``--resume_from_checkpoint`` means: a path, or ``latest`` of ``output_dir``."""
    if wanted != "latest":
        if not Path(wanted).is_dir():
            raise UserError(f"--resume_from_checkpoint {wanted}: there is no such folder")
        return Path(wanted)
    saved = steps_saved(output_dir)
    if not saved:
        raise UserError(f"--resume_from_checkpoint latest: {output_dir} holds no checkpoint-N folder")
    return output_dir / f"checkpoint-{saved[-1]}"


def check_complete(checkpoint: Path) -> None:
    """Refuse (UserError naming the file) a checkpoint with a missing or cut file; cheap, before any model is loaded."""
    manifest = checkpoint / _MANIFEST
    others = [s for s in steps_saved(checkpoint.parent) if f"checkpoint-{s}" != checkpoint.name]
    hint = f"; resume from {checkpoint.parent / f'checkpoint-{others[-1]}'} instead" if others else ""
    if not manifest.is_file():
        raise UserError(f"{checkpoint} is not a Covey checkpoint: {_MANIFEST} is missing{hint}")
    try:
        sizes: dict[str, int] = json.loads(manifest.read_text())
    except ValueError as error:
        raise UserError(f"{checkpoint}: {_MANIFEST} is damaged ({error}){hint}") from error
    for name, size in sizes.items():
        path = checkpoint / name
        if not path.is_file():
            raise UserError(f"{checkpoint}: {name} is missing{hint}")
        if path.stat().st_size != size:
            raise UserError(f"{checkpoint}: {name} has {path.stat().st_size} bytes, expected {size}{hint}")


def load_state(checkpoint: Path) -> dict[str, Any]:
    """The trainer state; only tensors and plain values are unpickled."""
    state: dict[str, Any] = torch.load(checkpoint / _STATE, map_location="cpu", weights_only=True)
    return state
