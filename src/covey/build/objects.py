"""Small translations from config sections to the objects they describe."""

from __future__ import annotations

import copy
import sys

import torch

from covey.algo.contrastive import Contrast
from covey.algo.losses import LOSSES
from covey.algo.objective import Objective
from covey.backends.masters import AdamWParams, convert_parameters
from covey.config import (
    BatchConfig,
    ContrastConfig,
    GRPOConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimConfig,
    PolicyConfig,
    RunConfig,
    SamplingConfig,
    TrainDataConfig,
)
from covey.errors import UserError
from covey.models.base import PolicyModel
from covey.models.decoder import Decoder
from covey.models.hf import HFModel
from covey.models.load import LoadedModel, context_length
from covey.plan.batch import BatchPlan, SFTPlan, plan_sft
from covey.rollout.base import Sampling
from covey.rollout.torch_engine import TorchEngine
from covey.trainers.credit import AdvantageSettings, Correction, CreditSettings
from covey.trainers.schedule import Schedule, warmup_steps


def say(text: str) -> None:
    """A line for the person in front of the terminal; standard output stays machine-readable."""
    print(text, file=sys.stderr, flush=True)


def device_of(name: str) -> torch.device:
    """``--device``: auto takes a CUDA GPU when there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA GPU here; use --device cpu or auto")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def dtype_of(config: ModelConfig) -> torch.dtype:
    """``--torch_dtype``: auto takes bfloat16 where the device multiplies it natively, else float32.

    A CPU without bf16 instructions emulates them: a matrix product in bf16 took five times as long as in fp32 there
    (benchmarks/README.md).
    """
    if config.torch_dtype != "auto":
        return {"bfloat16": torch.bfloat16, "float32": torch.float32}[config.torch_dtype]
    return torch.bfloat16 if has_bf16(device_of(config.device)) else torch.float32


def has_bf16(device: torch.device) -> bool:
    """Whether the device has bf16 arithmetic of its own: CUDA from Ampere on, AVX512-BF16, AMX, or that of Arm."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    able = torch.cpu.get_capabilities()
    return any(able.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def check_context(model: str, longest_prompt: int, max_new_tokens: int) -> None:
    """Refuse completions that would run past the model's positions; reads the model's config only."""
    limit = context_length(model)
    if limit is not None and longest_prompt + max_new_tokens > limit:
        raise UserError(
            f"the longest prompt has {longest_prompt} tokens; with --max_completion_length {max_new_tokens} that is"
            f" more than the {limit} positions of {model}: at most {limit - longest_prompt} can be asked for"
        )


def sampling_of(config: SamplingConfig) -> Sampling:
    return Sampling(config.temperature, config.top_k, config.top_p, config.min_p, config.max_completion_length)


def adamw(config: OptimConfig) -> AdamWParams:
    return AdamWParams(
        config.weight_decay, config.adam_beta1, config.adam_beta2, config.adam_epsilon, config.max_grad_norm
    )


def schedule_of(config: OptimConfig, total_steps: int) -> Schedule:
    warmup = warmup_steps(total_steps, config.warmup_steps, config.warmup_ratio)
    return Schedule(config.lr_scheduler_type, config.learning_rate, warmup, total_steps)


def objective_of(config: PolicyConfig, plan: BatchPlan, contrast: ContrastConfig | None = None) -> Objective:
    """The policy loss with its options, the KL term of the loss, and what is added to them."""
    algo = config.algo
    term: Contrast | None = None
    if contrast is not None and contrast.contrastive_coef:
        groups = plan.completions_per_step // plan.num_generations
        term = Contrast(
            contrast.contrastive_loss,
            contrast.contrastive_coef,
            contrast.contrastive_scale,
            contrast.contrastive_alpha,
            groups,
        )
    return Objective(
        LOSSES[algo.loss_type].bind(config.loss.params_of(algo.loss_type)),
        "k3" if algo.reward_kl or algo.kl_estimator is None else algo.kl_estimator,
        0.0 if algo.reward_kl else algo.beta,
        plan.on_policy,
        algo.entropy_coef,
        config.mismatch.off_policy_sequence_mask_delta,
        term,
    )


def advantages_of(config: GRPOConfig, weights: tuple[float, ...]) -> AdvantageSettings:
    """How rewards of these weights become advantages."""
    return AdvantageSettings(config.algo.advantage_estimator, config.algo.scale, weights)


def credit_of(config: PolicyConfig) -> CreditSettings:
    """Masks, corrections and chosen tokens."""
    algo, mismatch = config.algo, config.mismatch
    spec, mode = LOSSES[algo.loss_type], mismatch.rollout_importance_sampling_mode
    low, high = mismatch.rollout_importance_sampling_min, mismatch.rollout_importance_sampling_threshold
    params = config.loss.params_of(algo.loss_type)
    marks = spec.marks
    return CreditSettings(
        kl_in_reward=algo.reward_kl,
        overlong_filter=algo.overlong_filter,
        correction=None if mode is None else Correction(mode, low, high),
        top_entropy_quantile=algo.top_entropy_quantile,
        marks=None if marks is None else lambda inputs, seed: marks(inputs, params, seed=seed),
        positive_nll_coef=algo.positive_nll_coef,
    )


def check_objective(config: PolicyConfig, plan: BatchPlan) -> None:
    """Refuse (UserError) an objective that does nothing, or can't, with these batch sizes."""
    algo = config.algo
    if LOSSES[algo.loss_type].on_policy is False and plan.on_policy:
        raise UserError(
            f"--loss_type {algo.loss_type} acts on how far the policy has moved since the rollout, and each rollout"
            " serves one optimizer step here; take several with --steps_per_generation or --num_iterations"
        )
    if isinstance(config, GRPOConfig) and config.algo.scale == "beta" and plan.prompts_per_generation < 2:
        raise UserError(
            f"--advantage_estimator {config.algo.advantage_estimator} fits a distribution over the prompts of a"
            " rollout, which has one prompt here; take more with --steps_per_generation"
        )


def describe_objective(config: PolicyConfig, plan: BatchPlan) -> list[str]:
    """What is optimised, defaults filled in, and what is probably not meant."""
    algo, spec = config.algo, LOSSES[config.algo.loss_type]
    numbers = config.loss.params_of(algo.loss_type).describe()
    lines = [
        f"objective       {algo.loss_type}{f' ({numbers})' if numbers else ''}, {algo.aggregation};"
        f" advantages {config.describe_advantages()}; {_kl_text(algo)}"
    ]
    lines += [f"warning: {line}" for line in config.warnings()]
    if spec.on_policy and not plan.on_policy:
        lines.append(
            f"warning: --loss_type {algo.loss_type} is exact for one optimizer step per rollout only, and takes"
            f" {plan.steps_per_rollout} here: nothing corrects for the policy's move"
        )
    may_carry = isinstance(config, GRPOConfig) and "refill" in config.remedies.all and spec.on_policy is not True
    if plan.on_policy and may_carry:
        lines.append(
            "note: dynamic sampling may carry groups into the next rollout, whose step is then off-policy for them"
        )
    if plan.on_policy and config.loss.given() and not may_carry:
        lines.append(
            f"note: each rollout serves one optimizer step, so the ratio is 1 and {', '.join(config.loss.given())} will"
            " have no effect: the gradient is the plain policy gradient; take several with --steps_per_generation"
        )
    return lines


def _kl_text(algo: ObjectiveConfig) -> str:
    if algo.beta == 0:
        return "no KL term"
    return (
        f"KL {algo.beta:g} x k1 in the reward" if algo.reward_kl else f"KL {algo.beta:g} x {algo.kl_estimator or 'k3'}"
    )


def data_seed(data: TrainDataConfig, run: RunConfig) -> int:
    """The seed of generated data and of the order of the rows."""
    return run.seed if data.data_seed is None else data.data_seed


def examples_plan(batch: BatchConfig, run: RunConfig, num_examples: int) -> SFTPlan:
    """The plan of training on examples or pairs."""
    return plan_sft(
        per_device_train_batch_size=batch.per_device_train_batch_size,
        gradient_accumulation_steps=batch.gradient_accumulation_steps,
        num_examples=num_examples,
        max_steps=run.max_steps,
        num_train_epochs=run.num_train_epochs,
    )


def engine_of(loaded: LoadedModel) -> TorchEngine:
    return TorchEngine(loaded.policy, loaded.tokenizer.decode, loaded.end_ids)


def reference_of(loaded: LoadedModel, dtype: torch.dtype) -> PolicyModel:
    """A frozen copy of the policy as it is now, for the KL term."""
    module = copy.deepcopy(loaded.policy.module).requires_grad_(False)
    convert_parameters(module, dtype)
    return module if isinstance(module, Decoder) else HFModel(module)
