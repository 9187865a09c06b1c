"""``covey rlhf --rlhf_type ppo``: assemble the objects of a PPO run and drive it."""

from __future__ import annotations

from covey.backends.local import LocalValueBackend
from covey.build.data import Rows
from covey.build.objects import adamw, objective_of
from covey.build.policy import Rewards, load_learner, open_job, parts_of, prepare, settings_of
from covey.build.stage import Outcome, Stateful, training_stage
from covey.build.steering import steering_of
from covey.config import CriticConfig, PPOConfig
from covey.errors import UserError
from covey.models.load import load_model
from covey.models.value import ValueModel
from covey.runlog.display import Display
from covey.trainers.ppo import CriticSettings, PPOParts, PPOSettings, ppo_step
from covey.trainers.schedule import Schedule


def run_ppo(
    config: PPOConfig,
    *,
    rows: Rows | None = None,
    val_rows: Rows | None = None,
    rewards: Rewards | None = None,
    display: Display | None = None,
    name: str = "PPO",
) -> Outcome | None:
    """Train; None after a dry run. Arguments as ``run_grpo``."""
    prepared = prepare(config, "ppo", rows, val_rows, rewards)
    if prepared is None:
        return None
    inputs, resume = prepared
    policy_steps = inputs.plan.total_steps - config.critic.critic_warmup
    if policy_steps < 1:
        raise UserError(
            f"--critic_warmup {config.critic.critic_warmup}: the run has {inputs.plan.total_steps} steps, so the policy"
            " would never be trained"
        )
    steering = steering_of(config, inputs.prompts, inputs.plan)
    learner = load_learner(config)
    # a second backbone in float32, before the first is rounded to the computing precision
    backbone = load_model(config.model.model, learner.device, checkpointing=config.batch.gradient_checkpointing)
    critic = LocalValueBackend(
        ValueModel(backbone.policy), adamw(config.optim), of_rows=False, compute_dtype=learner.dtype
    )
    states: dict[str, Stateful] = {"backend": learner.backend, "critic": critic, **steering.states}
    job, start = open_job(config, "ppo", name, inputs, learner, states, resume, display)
    settings = PPOSettings(settings_of(config, inputs.plan), critic_settings(config.critic))
    with inputs.score, training_stage(job) as stage:
        parts = PPOParts(
            policy=parts_of(
                config, inputs, learner, objective_of(config, inputs.plan), steering, policy_steps, stage
            ),
            critic=critic,
            schedule=Schedule("constant", config.critic.critic_lr, 0, inputs.plan.total_steps),
        )
        return stage.run(lambda step: ppo_step(parts, settings, step), start)


def critic_settings(config: CriticConfig) -> CriticSettings:
    return CriticSettings(
        gamma=config.gamma,
        lam=config.lam,
        lam_value=config.lam if config.lam_value is None else config.lam_value,
        length_adaptive_alpha=config.length_adaptive_alpha,
        whiten=config.whiten_advantages,
        clip=config.cliprange_value,
        warmup_steps=config.critic_warmup,
    )
