"""Load a policy from a folder, a hub id or an embedded name; save it so that transformers loads it as it is."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from covey.errors import UserError
from covey.models.base import PolicyModel
from covey.models.decoder import Decoder, spec_from_hf
from covey.models.embedded import EMBEDDED, fetch
from covey.models.hf import HFModel
from covey.models.tokenizer import ChatTokenizer
from covey.models.value import ValueModel


@dataclass(frozen=True)
class LoadedModel:
    """A policy with everything needed to sample from it and to save it."""

    policy: PolicyModel
    tokenizer: ChatTokenizer
    config: Any
    generation_config: Any
    end_ids: tuple[int, ...]
    """All ids that end a completion: the tokenizer's and those of the generation config."""


def context_length(name: str) -> int | None:
    """The most positions the model was made for, prompt and completion together; None when its config has no limit."""
    from transformers import AutoConfig

    config = _from_pretrained(AutoConfig, resolve(name))
    limit: int | None = getattr(config, "max_position_embeddings", None)
    return limit


def resolve(name: str) -> str:
    """A local folder as it is, an embedded name as its converted folder, anything else as a hub id."""
    if Path(name).is_dir():
        if not (Path(name) / "config.json").exists():
            raise UserError(f"--model {name}: the folder has no config.json, so it is not a Hugging Face model folder")
        return name
    return str(fetch(name)) if name in EMBEDDED else name


def load_tokenizer(name: str) -> ChatTokenizer:
    """The tokenizer alone, for checks before any weights are read."""
    from transformers import AutoTokenizer

    return ChatTokenizer(_from_pretrained(AutoTokenizer, resolve(name)))


def load_model(
    name: str, device: torch.device, dtype: torch.dtype = torch.float32, *, checkpointing: bool = False
) -> LoadedModel:
    """Load ``name`` with weights in ``dtype``: Llama, Qwen2 and Qwen3 into the fast decoder, the rest as they are.

    ``checkpointing`` recomputes each layer in the backward pass instead of keeping its activations.
    """
    from transformers import AutoConfig, AutoTokenizer

    source = resolve(name)
    config = _from_pretrained(AutoConfig, source)
    tokenizer = ChatTokenizer(_from_pretrained(AutoTokenizer, source))
    model = _load_weights(source, dtype)
    generation_config = model.generation_config
    policy: PolicyModel
    if (spec := spec_from_hf(config)) is not None:
        decoder = Decoder(spec).to(dtype)
        decoder.load_hf_state(model.state_dict())
        decoder.gradient_checkpointing = checkpointing
        policy = decoder
    else:
        if checkpointing:
            # transformers checkpoints in training mode only, where dropout would make log-probs random
            raise UserError(f"--gradient_checkpointing: not available for model type {config.model_type!r}")
        policy = HFModel(model)
    policy.module.eval()  # no dropout: sampled, old and new log-probs must come from one function
    policy.module.to(device)
    return LoadedModel(policy, tokenizer, config, generation_config, _end_ids(tokenizer, generation_config))


def save_model(loaded: LoadedModel, folder: Path) -> None:
    """Write weights, config, generation config and tokenizer in the Hugging Face layout."""
    from huggingface_hub import save_torch_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(loaded.policy, HFModel):
        loaded.policy.module.save_pretrained(folder)  # type: ignore[operator]
    else:
        # clones: parts of a fused matrix share its memory, which safetensors refuses to write
        state = {name: tensor.detach().clone() for name, tensor in loaded.policy.hf_state()}
        save_torch_state_dict(state, folder)
        loaded.config.dtype = str(next(iter(state.values())).dtype).removeprefix("torch.")
        loaded.config.save_pretrained(folder)
    loaded.generation_config.save_pretrained(folder)
    loaded.tokenizer.hf.save_pretrained(folder)


def check_can_classify(name: str) -> None:
    """UserError when transformers has no sequence classification model of this architecture to save a score head as."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = _from_pretrained(AutoConfig, resolve(name))
    if type(config) not in AutoModelForSequenceClassification._model_mapping:
        raise UserError(
            f"--model {name}: transformers has no sequence classification model for {config.model_type!r}, so a reward"
            " model of it could not be saved"
        )


def save_value_model(model: ValueModel, loaded: LoadedModel, folder: Path) -> None:
    """Write a reward model as transformers' sequence classification model with one label.

    transformers reads the score at the rightmost token that is not the pad token. Where the pad token is the end token
    that would be the token before the end, so another special token becomes the pad token of this folder.
    """
    from huggingface_hub import save_torch_state_dict
    from transformers import AutoModelForSequenceClassification

    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().clone() for name, tensor in model.hf_state()}
    save_torch_state_dict(state, folder)
    config = copy.deepcopy(loaded.config)
    config.architectures = [AutoModelForSequenceClassification._model_mapping[type(config)].__name__]
    config.num_labels = 1
    tokenizer = copy.deepcopy(loaded.tokenizer.hf)
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
        others = [token for token in tokenizer.all_special_tokens if token != tokenizer.eos_token]
        tokenizer.pad_token = others[0] if others else None  # without one, one text at a time
    config.pad_token_id = tokenizer.pad_token_id
    config.dtype = str(next(iter(state.values())).dtype).removeprefix("torch.")
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _end_ids(tokenizer: ChatTokenizer, generation_config: Any) -> tuple[int, ...]:
    configured = generation_config.eos_token_id
    ids = set(configured) if isinstance(configured, (list, tuple)) else {configured}
    ids = (ids | {tokenizer.hf.eos_token_id}) - {None}
    if not ids:
        raise UserError(
            "the model names no end token (eos_token_id), neither in its tokenizer nor its generation config"
        )
    return tuple(sorted(ids))


def _load_weights(source: str, dtype: torch.dtype) -> Any:
    """The transformers model; UserError where it would fill a missing or misshapen weight with random numbers."""
    from transformers import AutoModelForCausalLM

    model, found = _from_pretrained(
        AutoModelForCausalLM, source, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
    )
    lacking = sorted({*found["missing_keys"], *(entry[0] for entry in found["mismatched_keys"])})
    if lacking:
        raise UserError(
            f"--model {source}: {len(lacking)} weights are missing or have another shape than config.json says, e.g."
            f" {', '.join(lacking[:3])}; the folder is incomplete or belongs to another model"
        )
    return model


def _from_pretrained(auto_class: Any, source: str, **options: Any) -> Any:
    from safetensors import SafetensorError
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would break through the live display
    try:
        return auto_class.from_pretrained(source, **options)
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"--model {source}: cannot be loaded ({reason}). Give a local folder, a Hugging Face id such as"
            f" Qwen/Qwen2.5-0.5B-Instruct, or an embedded model: {', '.join(EMBEDDED)}"
        ) from error
