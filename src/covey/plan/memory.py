"""How much memory a method needs, computed from the shape of a model: numbers only, nothing is loaded.

Counted as the local backend holds it: bf16 weights that compute, fp32 masters, gradients and both AdamW moments, the
bf16 gradients of a micro-batch on their way into the fp32 ones, a bf16 reference where there is a KL term, and for PPO
a critic of the policy's size with masters and moments of its own (its gradients and the policy's are not there at
once). Activations with gradient checkpointing: the fp32 residual stream at
every layer, one layer's working set, and a chunk of logits. What an allocator, a framework or fragmentation adds is not
in it.
"""

from __future__ import annotations

from dataclasses import dataclass

BF16, FP32 = 2, 4
LOGIT_CHUNK = 512
"""Tokens whose logits exist at once (LocalBackend's chunk_size)."""


@dataclass(frozen=True)
class ModelShape:
    """A Llama-like decoder; ``experts`` above 1 is a mixture of which ``active_experts`` compute each token."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: int = 1
    active_experts: int = 1

    @property
    def head_parameters(self) -> int:
        """Those of a language-model head of its own; a critic does not train one."""
        return 0 if self.tied else self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All weights, embeddings included."""
        d, q, kv = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = d * (q + 2 * kv) + q * d + (q + 2 * kv if self.qkv_bias else 0)
        router = d * self.experts if self.experts > 1 else 0
        mlp = 3 * d * self.intermediate * self.experts + router
        norms = 2 * d + (2 * self.head_dim if self.qk_norm else 0)
        embeddings = self.vocab * d * (1 if self.tied else 2)
        return self.layers * (attention + mlp + norms) + embeddings + d


SHAPES = (
    ModelShape("SmolLM2-135M", 30, 576, 9, 3, 64, 1536, 49152, tied=True),
    ModelShape("Qwen2.5-3B", 36, 2048, 16, 2, 128, 11008, 151936, tied=True, qkv_bias=True),
    ModelShape("Qwen2.5-7B", 28, 3584, 28, 4, 128, 18944, 152064, tied=False, qkv_bias=True),
    ModelShape(
        "Qwen3-30B-A3B", 48, 2048, 32, 4, 128, 768, 151936, tied=False, qk_norm=True, experts=128, active_experts=8
    ),
)


@dataclass(frozen=True)
class Load:
    """Tokens that are in memory at once."""

    rollout_rows: int
    """Completions sampled together."""
    micro_rows: int
    """Completions in one forward and backward pass."""
    prompt_tokens: int
    completion_tokens: int

    @property
    def row_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


def memory(shape: ModelShape, load: Load, *, reference: bool, critic: bool) -> dict[str, float]:
    """Bytes by what they hold; ``total`` is the larger moment, that of an update or that of a rollout."""
    p = shape.parameters
    parts: dict[str, float] = {
        "weights": BF16 * p,
        "masters": FP32 * p,
        "gradients": FP32 * p,
        "optimizer": 2 * FP32 * p,
        "reference": BF16 * p if reference else 0,
        "critic": BF16 * p + 3 * FP32 * (p - shape.head_parameters) if critic else 0,
        "activations": activations(shape, load.micro_rows * load.row_tokens),
        "kv_cache": 2 * BF16 * shape.layers * shape.kv_heads * shape.head_dim * load.rollout_rows * load.row_tokens,
    }
    held = sum(value for name, value in parts.items() if name not in ("gradients", "activations", "kv_cache"))
    # the activations of a micro-batch are gone when its last bf16 gradient is there
    update = parts["gradients"] + max(parts["activations"], BF16 * p)
    parts["total"] = held + max(update, parts["kv_cache"])
    return parts


def activations(shape: ModelShape, tokens: int) -> float:
    """Bytes of one micro-batch of ``tokens`` with gradient checkpointing."""
    residuals = FP32 * shape.layers * tokens * shape.hidden
    mlp = 3 * shape.intermediate * shape.active_experts
    attention = 2 * shape.heads * shape.head_dim + 2 * shape.kv_heads * shape.head_dim
    layer = BF16 * tokens * (mlp + attention + 2 * shape.hidden)
    logits = 2 * FP32 * min(LOGIT_CHUNK, tokens) * shape.vocab
    return residuals + layer + logits


def table(load: Load, shapes: tuple[ModelShape, ...] = SHAPES) -> list[dict[str, str | float]]:
    """One row per model and method, in GB (1e9 bytes)."""
    methods = {"GRPO": (False, False), "GRPO with KL": (True, False), "PPO with KL": (True, True)}
    rows: list[dict[str, str | float]] = []
    for shape in shapes:
        for method, (reference, critic) in methods.items():
            parts = memory(shape, load, reference=reference, critic=critic)
            row = {name: round(value / 1e9, 2) for name, value in parts.items()}
            rows.append(
                {"model": shape.name, "parameters_b": round(shape.parameters / 1e9, 2), "method": method, **row}
            )
    return rows
