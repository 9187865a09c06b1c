"""What every training stage has around its steps: run folder, display, checkpoints, resume, a clean stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from covey.build.objects import say
from covey.config import RunConfig
from covey.errors import UserError
from covey.runlog.display import Display, make_display
from covey.runlog.sinks import make_sinks
from covey.runlog.writer import RunWriter
from covey.trainers.checkpoint import Checkpoints, check_complete, find_checkpoint, load_state
from covey.trainers.loop import Advance, Loop
from covey.trainers.stop import StopSignal
from covey.types import StepResult


class TrainingConfig(Protocol):
    """The config of any training."""

    @property
    def run(self) -> RunConfig: ...

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Outcome:
    """Where a training run ended."""

    output_dir: Path
    model_dir: Path
    steps: int
    seconds: float
    """Wall-clock of this process's part of the run."""


@dataclass(frozen=True)
class Resume:
    """The checkpoint a run continues from."""

    path: Path
    step: int
    state: dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """A training stage ready to run."""

    loop: Loop
    save: Callable[[Path], None]
    stop: StopSignal

    def note(self, text: str) -> None:
        """Show how far a long phase is; also the place where a stop request takes effect."""
        self.stop.check()
        self.loop.display.progress(text)

    def run(self, advance: Advance, start: int) -> Outcome:
        """Run to the last step and save the final model."""
        began = time.perf_counter()
        steps = self.loop.run(advance, start)
        folder = self.loop.writer.folder
        self.save(folder / "final")
        self.loop.display.message(f"{self.loop.name}: {steps} steps done, model in {folder / 'final'}")
        return Outcome(folder, folder / "final", steps, time.perf_counter() - began)


FREE_TO_CHANGE = (
    "output_dir",
    "resume_from_checkpoint",
    "max_steps",
    "num_train_epochs",
    "save_steps",
    "save_total_limit",
    "logging_steps",
    "report_to",
    "reward_workers",
    "reward_timeout",
    "max_reward_failures",
    "dry_run",
    "device",
)
"""Options a resumed run may change without anybody asking why."""


def check_same_run(saved: Mapping[str, Any], config: TrainingConfig) -> None:
    """Compare a checkpoint's options with those of the run that continues it.

    Another model is refused (UserError): the KL reference and the tokenizer are those of the start, so a run continues
    from its own start model and not from one of its checkpoints (known fault 30). Other differences are said.
    """
    mine = config.to_dict()
    if saved.get("model") != mine["model"]:
        raise UserError(
            f"--model {mine['model']}: the run to continue was started from {saved.get('model')}; give that again, the"
            " trained weights come from the checkpoint"
        )
    for key in sorted(saved.keys() & mine.keys()):
        if saved[key] != mine[key] and key not in FREE_TO_CHANGE:
            say(f"note: --{key} is {mine[key]}, the run was started with {saved[key]}")


def open_resume(config: TrainingConfig, kind: str) -> Resume | None:
    """The checkpoint named by ``--resume_from_checkpoint``, checked file by file; None for a fresh run.

    Called before a model loads, so it also refuses (UserError) a run folder that a fresh run can not have, and the
    checkpoint of another ``kind`` of training.
    """
    run = config.run
    if run.resume_from_checkpoint is None:
        if run.output_dir is not None:
            RunWriter(run.output_dir).close()
        return None
    if run.resume_from_checkpoint == "latest" and run.output_dir is None:
        raise UserError("--resume_from_checkpoint latest: add --output_dir, the folder of the run to continue")
    path = find_checkpoint(output_dir_of(run, "run"), run.resume_from_checkpoint)
    check_complete(path)
    state = load_state(path)
    if state.get("kind") != kind:
        raise UserError(f"{path} is a checkpoint of {state.get('kind')}, and this is a run of {kind}")
    check_same_run(state["config"], config)
    say(f"resuming from {path} (step {state['step']})")
    return Resume(path, state["step"], state)


class Stateful(Protocol):
    """Anything whose state belongs into a checkpoint."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def restore(states: Mapping[str, Stateful], resume: Resume | None) -> int:
    """Load the checkpoint's states by name and let go of them; the step to continue after."""
    if resume is None:
        return 0
    try:
        for name, part in states.items():
            part.load_state_dict(resume.state.pop(name))
    except ValueError as error:
        raise UserError(f"{resume.path}: {error}") from error
    except KeyError as error:
        raise UserError(f"{resume.path} has no {error}: it was written by another version of Covey") from error
    return resume.step


def output_dir_of(run: RunConfig, kind: str) -> Path:
    """``--output_dir``, or a new folder under ``runs/`` named after the kind and the time."""
    return Path(run.output_dir or f"runs/{kind}-{time.strftime('%Y%m%d-%H%M%S')}")


@dataclass(frozen=True)
class Job:
    """One training, before its folder is opened."""

    kind: str
    """grpo, ppo, dpo, rm or sft."""
    name: str
    config: TrainingConfig
    save: Callable[[Path], None]
    """Writes the model into a folder."""
    states: Mapping[str, Stateful]
    """By name, what goes into every checkpoint."""
    total_steps: int
    resume: Resume | None
    display: Display | None

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the model."""
        states = {name: part.state_dict() for name, part in self.states.items()}
        return {**states, "kind": self.kind, "config": self.config.to_dict()}


@contextmanager
def training_stage(job: Job) -> Iterator[Stage]:
    """Open run folder, display and sinks, and close them whatever happens."""
    run = job.config.run
    folder = output_dir_of(run, job.name.lower())
    with ExitStack() as stack:
        writer = stack.enter_context(RunWriter(folder, None if job.resume is None else job.resume.step))
        command = {} if job.kind == "sft" else {"rlhf_type": job.kind}
        writer.write_config({**command, **job.config.to_dict()})
        sinks = make_sinks([sink for sink in run.report_to if sink != "none"], folder)
        for sink in sinks:
            stack.callback(sink.close)
        shown = job.display or stack.enter_context(make_display(logging_steps=run.logging_steps))
        stop = stack.enter_context(StopSignal())
        loop = Loop(
            name=job.name,
            total_steps=job.total_steps,
            writer=writer,
            display=shown,
            checkpoints=Checkpoints(folder, job.save, run.save_total_limit),
            state=job.state,
            logging_steps=run.logging_steps,
            save_steps=run.save_steps,
            sinks=sinks,
        )
        yield Stage(loop, job.save, stop)


def run_examples(job: Job, advance: Advance) -> Outcome:
    """Restore, open the stage and run it: a training whose steps need nothing of the stage."""
    start = restore(job.states, job.resume)
    with training_stage(job) as stage:

        def noted(step: int) -> Iterator[StepResult]:
            stage.note(f"update {step + 1}")
            return advance(step)

        return stage.run(noted, start)
