"""From what a user calls a model to something that can be loaded: a folder, a hub name, or an embedded model."""

from __future__ import annotations

from pathlib import Path

from covey.config.values import near_match
from covey.errors import UserError

EMBEDDED_MODELS = ("smollm2-135m",)

HUB_OWNERS = {
    "qwen": "Qwen",
    "qwq": "Qwen",
    "llama": "meta-llama",
    "meta-llama": "meta-llama",
    "smollm": "HuggingFaceTB",
    "gemma": "google",
    "mistral": "mistralai",
    "ministral": "mistralai",
    "mixtral": "mistralai",
    "phi": "microsoft",
    "deepseek": "deepseek-ai",
    "olmo": "allenai",
    "gpt2": "openai-community",
    "gpt-oss": "openai",
}
"""Start of a bare model name (lower case) -> its owner on the Hugging Face hub."""


def resolve_model(name: str) -> tuple[str, str | None]:
    """The loadable name of a model, and a note when it is not what was written.

    An existing folder wins, then the embedded models, then ``owner/name`` as it is, then a bare name whose owner is
    known. Raises UserError when nothing fits or a path does not exist.
    """
    if Path(name).expanduser().is_dir():
        shadowed = name in EMBEDDED_MODELS or _owner(name) is not None
        note = f"--model {name}: the local folder of this name is used" if shadowed else None
        return str(Path(name).expanduser()), note
    if name in EMBEDDED_MODELS:
        return name, None
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"--model {name}: there is no such folder")
    if "/" in name:
        return name, None
    owner = _owner(name)
    if owner is None:
        raise UserError(
            f"--model {name}: neither a local folder nor a name whose hub owner is known; write owner/name as on the"
            f" Hugging Face hub, the path of a folder, or {', '.join(EMBEDDED_MODELS)} (embedded)"
        )
    if near := near_match(name.lower(), EMBEDDED_MODELS, cutoff=0.9):
        raise UserError(f"--model {name}: write {near} for the embedded model or {owner}/{name} for one on the hub")
    return f"{owner}/{name}", f"--model {name}: taken as {owner}/{name} on the Hugging Face hub"


def _owner(name: str) -> str | None:
    lower = name.lower()
    starts = [start for start in HUB_OWNERS if lower.startswith(start)]
    return HUB_OWNERS[max(starts, key=len)] if starts else None
