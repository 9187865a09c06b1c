"""Checkpoints: whole or not there, refused by name when damaged, the newest kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from covey.errors import UserError
from covey.trainers.checkpoint import Checkpoints, check_complete, find_checkpoint, load_state, steps_saved


def save_model(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"w" * 500)
    (folder / "templates").mkdir()
    (folder / "templates" / "tool.jinja").write_text("x")


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path, save_model, limit=None)


def test_state_comes_back(checkpoints: Checkpoints, tmp_path: Path) -> None:
    path = checkpoints.save(3, {"backend": {"masters": [torch.arange(3.0)], "lr": 0.1}})
    assert path == tmp_path / "checkpoint-3" == find_checkpoint(tmp_path, "latest")
    check_complete(path)
    state = load_state(path)
    assert state["step"] == 3 and state["backend"]["lr"] == 0.1
    assert torch.equal(state["backend"]["masters"][0], torch.tensor([0.0, 1.0, 2.0]))
    assert not list(tmp_path.glob(".*"))  # nothing half-written is left


def test_latest_is_the_highest_step_not_the_last_name(checkpoints: Checkpoints, tmp_path: Path) -> None:
    for step in (9, 10, 2):
        checkpoints.save(step, {})
    (tmp_path / "checkpoint-99.bak").mkdir()
    (tmp_path / ".checkpoint-50.partial").mkdir()
    assert steps_saved(tmp_path) == [2, 9, 10]
    assert find_checkpoint(tmp_path, "latest").name == "checkpoint-10"
    assert find_checkpoint(tmp_path, str(tmp_path / "checkpoint-2")).name == "checkpoint-2"


def test_the_newest_are_kept(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, save_model, limit=2)
    for step in (1, 2, 3, 4):
        kept.save(step, {})
    assert steps_saved(tmp_path) == [3, 4]


def test_a_checkpoint_just_written_is_never_the_one_dropped(tmp_path: Path) -> None:
    """After a resume from step 2 the later ones are still there."""
    everything = Checkpoints(tmp_path, save_model, limit=None)
    for step in (2, 8, 9):
        everything.save(step, {})
    Checkpoints(tmp_path, save_model, limit=1).save(3, {})
    assert steps_saved(tmp_path) == [3, 8, 9]


def test_saving_again_replaces(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.save(1, {"value": 1})
    checkpoints.save(1, {"value": 2})
    assert load_state(tmp_path / "checkpoint-1")["value"] == 2


def test_a_failed_save_leaves_the_old_one(tmp_path: Path) -> None:
    Checkpoints(tmp_path, save_model, limit=1).save(1, {"value": 1})

    def full_disk(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"w")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        Checkpoints(tmp_path, full_disk, limit=1).save(2, {})
    assert steps_saved(tmp_path) == [1]
    check_complete(tmp_path / "checkpoint-1")


@pytest.mark.parametrize("name", ["trainer_state.pt", "model.safetensors", "templates/tool.jinja"])
def test_missing_and_cut_files_are_named(checkpoints: Checkpoints, tmp_path: Path, name: str) -> None:
    checkpoints.save(1, {})
    broken = checkpoints.save(2, {})
    file = broken / name
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    sizes = f"{len(whole) - 1} bytes, expected {len(whole)}"
    with pytest.raises(UserError, match=f"{name} has {sizes}.*checkpoint-1 instead"):
        check_complete(broken)
    file.unlink()
    with pytest.raises(UserError, match=f"{name} is missing"):
        check_complete(broken)
    check_complete(tmp_path / "checkpoint-1")


def test_a_damaged_or_missing_manifest(checkpoints: Checkpoints) -> None:
    path = checkpoints.save(1, {})
    manifest = path / "manifest.json"
    assert set(json.loads(manifest.read_text())) == {"trainer_state.pt", "model.safetensors", "templates/tool.jinja"}
    manifest.write_text(manifest.read_text()[:10])
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        check_complete(path)
    manifest.unlink()
    with pytest.raises(UserError, match="not a Covey checkpoint"):
        check_complete(path)


def test_nothing_to_find(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no checkpoint"):
        find_checkpoint(tmp_path / "nowhere", "latest")
    with pytest.raises(UserError, match="no such folder"):
        find_checkpoint(tmp_path, str(tmp_path / "checkpoint-1"))
    assert steps_saved(tmp_path / "nowhere") == []
