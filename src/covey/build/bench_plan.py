"""Reading and checking a bench file: contenders, what they share, and for how long they train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from covey.build.recipe_plan import KINDS, read_yaml
from covey.config import BenchOptions, EvalRunConfig, GRPOConfig
from covey.config.base import options
from covey.errors import UserError

BENCHES = Path(__file__).with_name("benches")
CONTENDERS = {kind: KINDS[kind] for kind in ("grpo", "ppo", "dpo")}
_SET_HERE = (
    "model",
    "seed",
    "output_dir",
    "max_steps",
    "num_train_epochs",
    "save_steps",
    "logging_steps",
    "eval_num_prompts",
    "resume_from_checkpoint",
    "dry_run",
    "warmup_steps",
    "warmup_ratio",
    "preset",
)
"""Options that the bench or its command line sets, or that mean nothing in a run of unknown length."""


@dataclass(frozen=True)
class Bench:
    """A bench file, checked."""

    name: str
    model: str
    folder: Path
    seconds: float
    """Training time per contender."""
    rounds: int
    eval_num_prompts: int
    contenders: tuple[Contender, ...]
    evaluation: Mapping[str, Any]


@dataclass
class Contender:
    """One side of the comparison, and what it has used so far."""

    name: str
    kind: str
    training: dict[str, Any]
    """The options of its training."""
    folder: Path
    sampling_share: float
    """Share of its time in which it samples the data it then trains on."""
    sampling: dict[str, Any]
    """The options of that sampling."""
    sampling_s: float = 0.0
    pairs: int = 0
    peak_gb: float = 0.0
    steps: list[dict[str, Any]] = field(default_factory=list)

    @property
    def used(self) -> float:
        """Seconds of sampling and training."""
        return self.sampling_s + self.training_s

    @property
    def training_s(self) -> float:
        """Seconds of optimizer steps, their rollouts included."""
        return float(sum(step["time/step_s"] for step in self.steps))

    @property
    def step_s(self) -> float:
        """Mean length of a step so far, in seconds."""
        return self.training_s / len(self.steps)


def turns(contenders: tuple[Contender, ...], number: int) -> tuple[Contender, ...]:
    """Who trains when in round ``number``, from 1: the order turns round, so that nobody always comes first."""
    return contenders if number % 2 else contenders[::-1]


def read_bench(source: str, chosen: BenchOptions) -> Bench:
    """The bench of a name or file with what the command line changes; UserError on anything wrong with it."""
    path = BENCHES / f"{source}.yaml"
    if not path.is_file():
        path = Path(source)
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in BENCHES.glob("*.yaml")))
        raise UserError(f"bench {source}: neither one of {known} nor a file")
    content = read_yaml("bench", path)
    forms: dict[str, Any] = {"seconds": (int, float), "rounds": int, "options": dict, "contenders": dict}
    unknown = content.keys() - forms.keys()
    wrong = [key for key, form in forms.items() if not isinstance(content.get(key), form)]
    if unknown or wrong:
        raise UserError(
            f"bench {path}: needs seconds, rounds, options and contenders, and nothing else;"
            f" wrong here: {', '.join([*sorted(unknown), *wrong])}"
        )
    folder = Path(chosen.output_dir or f"runs/bench-{path.stem}")
    shared: dict[str, Any] = content["options"]
    start = {"model": chosen.model, "seed": chosen.seed}
    contenders = []
    for name, own in content["contenders"].items():
        try:
            contenders.append(_contender(str(name), own, shared, start, folder))
        except UserError as error:
            raise UserError(f"bench {path}, {name}: {error}") from error
    read = {key for contender in contenders for key in (*options(CONTENDERS[contender.kind]), *contender.sampling)}
    if unread := sorted(shared.keys() - read):
        raise UserError(f"bench {path}: no contender reads {', '.join(unread)}")
    evaluation = {key: value for key, value in {**shared, **start}.items() if key in options(EvalRunConfig)}
    seconds, rounds = chosen.seconds or content["seconds"], chosen.rounds or content["rounds"]
    return Bench(
        path.stem, chosen.model, folder, seconds, rounds, chosen.eval_num_prompts, tuple(contenders), evaluation
    )


def _contender(
    name: str, own: Mapping[str, Any], shared: Mapping[str, Any], start: Mapping[str, Any], folder: Path
) -> Contender:
    kind = own.get("rlhf_type")
    if kind not in CONTENDERS:
        raise UserError(f"rlhf_type must be one of {', '.join(CONTENDERS)}")
    mine = {key: value for key, value in own.items() if key not in ("rlhf_type", "sampling_share")}
    if refused := [key for key in (*shared, *mine) if key in _SET_HERE]:
        raise UserError(f"{refused[0]} can not be set in a bench")
    share = float(own.get("sampling_share", 0.0))
    known, to_sample = options(CONTENDERS[kind]), options(GRPOConfig) if share else {}
    if unknown := [key for key in mine if key not in known and key not in to_sample]:
        raise UserError(f"{kind} has no option {unknown[0]}")
    values = {**shared, **mine, **start}
    if values.get("lr_scheduler_type") != "constant":
        raise UserError("lr_scheduler_type must be constant, since a run's length is its time")
    target = folder / name.lower()
    training = {key: value for key, value in values.items() if key in known}
    sampling: dict[str, Any] = {}
    if share:
        # its own loss and KL weight are not those of the sampling, which trains nothing
        sampling = {
            key: value for key, value in values.items() if key in to_sample and key not in ("loss_type", "beta")
        }
        GRPOConfig.from_dict(sampling)
        training = {key: value for key, value in training.items() if not key.startswith("countdown_")}
        training["dataset"] = str(target / "pairs.jsonl")
    CONTENDERS[kind].from_dict(training)
    return Contender(name, kind, training, target, share, sampling)
