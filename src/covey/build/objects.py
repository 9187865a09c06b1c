"""Small translations from config sections to the objects they describe."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace

import torch

from covey.algo.losses import LOSSES, ClipParams
from covey.algo.objective import Objective
from covey.backends.local import AdamWParams, convert_parameters
from covey.config import AlgoConfig, ModelConfig, OptimConfig, SamplingConfig
from covey.errors import UserError
from covey.models.base import PolicyModel
from covey.models.decoder import Decoder
from covey.models.hf import HFModel
from covey.models.load import LoadedModel, context_length
from covey.rollout.base import Sampling
from covey.rollout.torch_engine import TorchEngine
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


def objective_of(config: AlgoConfig, on_policy: bool) -> Objective:
    """The policy loss with its clip range, and the KL term."""
    spec = LOSSES[config.loss_type]
    assert isinstance(spec.params, ClipParams)
    high = spec.params.epsilon_high if config.epsilon_high is None else config.epsilon_high
    params = replace(spec.params, epsilon=config.epsilon, epsilon_high=high, delta=config.delta)
    return Objective(spec.bind(params), config.kl_estimator, config.beta, on_policy)


def engine_of(loaded: LoadedModel) -> TorchEngine:
    return TorchEngine(loaded.policy, loaded.tokenizer.decode, loaded.end_ids)


def reference_of(loaded: LoadedModel, dtype: torch.dtype) -> PolicyModel:
    """A frozen copy of the policy as it is now, for the KL term."""
    module = copy.deepcopy(loaded.policy.module).requires_grad_(False)
    convert_parameters(module, dtype)
    return module if isinstance(module, Decoder) else HFModel(module)
