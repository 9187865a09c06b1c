"""``covey rlhf --rlhf_type grpo``: assemble the objects of a GRPO run and drive it."""

from __future__ import annotations

from covey.build.data import Rows
from covey.build.objects import advantages_of, objective_of
from covey.build.policy import Rewards, load_learner, open_job, parts_of, prepare, settings_of
from covey.build.stage import Outcome, Stateful, training_stage
from covey.build.steering import steering_of
from covey.config import GRPOConfig
from covey.runlog.display import Display
from covey.trainers.grpo import GRPOSettings, grpo_step


def run_grpo(
    config: GRPOConfig,
    *,
    rows: Rows | None = None,
    val_rows: Rows | None = None,
    rewards: Rewards | None = None,
    display: Display | None = None,
    name: str = "GRPO",
) -> Outcome | None:
    """Train; None after a dry run. ``rows``, ``val_rows`` and ``rewards`` replace what the config names."""
    prepared = prepare(config, "grpo", rows, val_rows, rewards)
    if prepared is None:
        return None
    inputs, resume = prepared
    steering = steering_of(config, inputs.prompts, inputs.plan)
    learner = load_learner(config)
    states: dict[str, Stateful] = {"backend": learner.backend, **steering.states}
    job, start = open_job(config, "grpo", name, inputs, learner, states, resume, display)
    settings = GRPOSettings(settings_of(config, inputs.plan), advantages_of(config, inputs.score.weights))
    objective = objective_of(config, inputs.plan, config.contrast)
    with inputs.score, training_stage(job) as stage:
        parts = parts_of(config, inputs, learner, objective, steering, inputs.plan.total_steps, stage)
        return stage.run(lambda step: grpo_step(parts, settings, step), start)
