"""The Python interface: the same options as the command line, plus your own functions and rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from covey.errors import UserError

if TYPE_CHECKING:
    from covey.build.stage import Outcome

Reward = Callable[..., Any]
Rows = str | Sequence[Mapping[str, Any]]


def train_grpo(
    *,
    model: str,
    dataset: Rows,
    rewards: Sequence[str | Reward],
    val_dataset: Rows | None = None,
    **options: Any,
) -> Outcome:
    """Train ``model`` with GRPO and return where the result is (``.model_dir``, ``.output_dir``, ``.steps``).

    ``dataset`` is ``"countdown"``, a jsonl file, a hub id, or rows as dicts with a ``prompt`` (or ``messages``);
    other columns reach the rewards. ``rewards`` are names or functions: ``f(prompt, completion) -> float | None``, or
    ``f(prompts, completions, **columns) -> list``. ``options`` are the command line's flags by name, checked the same
    way: ``num_generations=8, learning_rate=1e-6, beta=0.0, output_dir="runs/mine"``; UserError on a wrong one.
    """
    return _train_on_rewards("grpo", model, dataset, rewards, val_dataset, options)


def train_ppo(
    *,
    model: str,
    dataset: Rows,
    rewards: Sequence[str | Reward],
    val_dataset: Rows | None = None,
    **options: Any,
) -> Outcome:
    """Train ``model`` with PPO, a critic beside the policy. Arguments as ``train_grpo``."""
    return _train_on_rewards("ppo", model, dataset, rewards, val_dataset, options)


def _train_on_rewards(
    kind: str,
    model: str,
    dataset: Rows,
    rewards: Sequence[str | Reward],
    val_dataset: Rows | None,
    options: dict[str, Any],
) -> Outcome:
    from covey.build.data import reward_names
    from covey.build.trainings import TRAINERS
    from covey.config import GRPOConfig, PPOConfig

    if "reward_funcs" in options:
        raise UserError(
            f"train_{kind} takes its rewards as rewards=[...], names and functions alike, not as reward_funcs"
        )
    values = {
        "model": model,
        "reward_funcs": reward_names(rewards),
        **_named(dataset, "dataset"),
        **_named(val_dataset, "val_dataset"),
        **options,
    }
    config = (GRPOConfig if kind == "grpo" else PPOConfig).from_dict(values)
    return _finished(
        TRAINERS[type(config)](config, rows=_given(dataset), val_rows=_given(val_dataset), rewards=list(rewards))
    )


def train_dpo(*, model: str, dataset: Rows, **options: Any) -> Outcome:
    """Train ``model`` on pairs: rows with ``prompt``, ``chosen`` and ``rejected``, or another form of the README."""
    from covey.build.preference import run_dpo
    from covey.config import DPOConfig

    values = {"model": model, **_named(dataset, "dataset"), **options}
    return _finished(run_dpo(DPOConfig.from_dict(values), rows=_given(dataset)))


def train_rm(*, model: str, dataset: Rows, **options: Any) -> Outcome:
    """Train a reward model from ``model`` on pairs as ``train_dpo``; saved as a sequence classification model."""
    from covey.build.preference import run_rm
    from covey.config import RMConfig

    values = {"model": model, **_named(dataset, "dataset"), **options}
    return _finished(run_rm(RMConfig.from_dict(values), rows=_given(dataset)))


def train_sft(*, model: str, dataset: Rows, **options: Any) -> Outcome:
    """Fine-tune ``model`` on rows whose messages end with the answer, or with a ``prompt`` and a ``completion``."""
    from covey.build.sft import run_sft
    from covey.config import SFTConfig

    values = {"model": model, **_named(dataset, "dataset"), **options}
    return _finished(run_sft(SFTConfig.from_dict(values), rows=_given(dataset)))


def _named(rows: Rows | None, option: str) -> dict[str, str]:
    """The option as config.json shows it; rows given as objects are shown as such."""
    if rows is None:
        return {}
    return {option: rows if isinstance(rows, str) else f"<{len(rows)} rows>"}


def _given(rows: Rows | None) -> Sequence[Mapping[str, Any]] | None:
    return None if rows is None or isinstance(rows, str) else rows


def _finished(outcome: Outcome | None) -> Outcome:
    if outcome is None:
        raise UserError("dry_run is for the command line: it trains nothing, so there is nothing to return")
    return outcome
