"""The fast forward for Llama-, Qwen2- and Qwen3-type models, used by the rollout engine and the trainer alike.

Query/key/value and gate/up projections are fused into one matrix each; ``hf_state`` shows them as views under their
Hugging Face names. Everything else follows the published architectures (Llama 2302.13971, Qwen2 2407.10671,
Qwen3 2505.09388).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from covey.models.attention import PackedLayout
from covey.models.kv_cache import GroupedCache, start_decoding
from covey.models.logprob import linear_logprobs
from covey.tensors import TokenBatch

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class DecoderSpec:
    """The shape of a Llama-like decoder, read from a Hugging Face config."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    qkv_bias: bool
    qk_norm: bool


def spec_from_hf(config: Any) -> DecoderSpec | None:
    """The spec of an HF config, or None if the fast path does not cover it (the generic path then takes over)."""
    if config.model_type not in ("llama", "qwen2", "qwen3") or config.hidden_act != "silu":
        return None
    rope = dict(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {})
    sliding = getattr(config, "use_sliding_window", False)
    biased = getattr(config, "mlp_bias", False) or (config.model_type != "qwen2" and config.attention_bias)
    if rope.get("rope_type", "default") != "default" or sliding or biased:
        return None
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=float(rope.get("rope_theta") or config.rope_theta),  # transformers 5 and 4
        tie_word_embeddings=config.tie_word_embeddings,
        qkv_bias=config.model_type == "qwen2",
        qk_norm=config.model_type == "qwen3",
    )


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (2104.09864) in the half-split form; x [T, heads, D], cos and sin [T, 1, D/2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def normalized(x: Tensor, norm: nn.RMSNorm) -> Tensor:
    """Root-mean-square norm of the float32 residual stream, in the dtype of the weights."""
    return F.rms_norm(x, norm.normalized_shape, norm.weight.float(), norm.eps).to(norm.weight.dtype)


class Block(nn.Module):
    """One pre-norm transformer layer over flat tokens."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        d, h, kv, hd = spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim
        self.qkv = nn.Linear(d, (h + 2 * kv) * hd, bias=spec.qkv_bias)
        self.out = nn.Linear(h * hd, d, bias=False)
        self.gate_up = nn.Linear(d, 2 * spec.intermediate_size, bias=False)
        self.down = nn.Linear(spec.intermediate_size, d, bias=False)
        self.norm1 = nn.RMSNorm(d, eps=spec.rms_norm_eps)
        self.norm2 = nn.RMSNorm(d, eps=spec.rms_norm_eps)
        if spec.qk_norm:
            self.q_norm = nn.RMSNorm(hd, eps=spec.rms_norm_eps)
            self.k_norm = nn.RMSNorm(hd, eps=spec.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        h, kv, hd = self.spec.num_heads, self.spec.num_kv_heads, self.spec.head_dim
        heads = self.qkv(normalized(x, self.norm1)).view(x.shape[0], h + 2 * kv, hd)
        if self.spec.qk_norm:
            q = rotate(self.q_norm(heads[:, :h]), cos, sin)
            k = rotate(self.k_norm(heads[:, h : h + kv]), cos, sin)
        else:
            q, k = torch.split(rotate(heads[:, : h + kv], cos, sin), [h, kv], dim=1)
        x = x + self.out(attend(q, k, heads[:, h + kv :]).reshape(x.shape[0], h * hd))
        gate, up = self.gate_up(normalized(x, self.norm2)).chunk(2, dim=-1)
        down: Tensor = self.down(F.silu(gate) * up)
        return x + down


class Decoder(nn.Module):
    """Llama-like causal decoder; see PolicyModel for the verbs the trainer and the engine use."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embed = nn.Embedding(spec.vocab_size, spec.hidden_size)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.num_layers))
        self.norm = nn.RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps)
        self.head = None if spec.tie_word_embeddings else nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        self.gradient_checkpointing = False

    @property
    def head_weight(self) -> Tensor:
        """[V, d], the embedding itself when tied."""
        return self.embed.weight if self.head is None else self.head.weight

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [T, 1, D/2] in the compute dtype, angles in float32."""
        dim = self.spec.head_dim
        inv = 1.0 / self.spec.rope_theta ** (torch.arange(0, dim, 2, device=positions.device).float() / dim)
        angle = positions.float()[:, None, None] * inv
        dtype = self.embed.weight.dtype
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def hidden(self, ids: Tensor, positions: Tensor, attend: Callable[[int], Attend]) -> Tensor:
        """Final-norm states [T, d] of flat tokens; ``attend(layer)`` gives the attention of that layer."""
        x = self.embed(ids).float()
        cos, sin = self.rope(positions)
        for index, block in enumerate(self.blocks):
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, cos, sin, attend(index), use_reentrant=False)
            else:
                x = block(x, cos, sin, attend(index))
        return normalized(x, self.norm)

    def completion_logprobs(
        self, batch: TokenBatch, *, chunk_size: int, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        states, _ = self.completion_states(batch)
        ids, temperature = batch.completion_ids, batch.temperature_of_token
        return linear_logprobs(states, self.head_weight, ids, temperature, chunk_size, with_entropy)

    def completion_states(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        layout = PackedLayout(batch)
        states = self.hidden(layout.input_ids, layout.positions, lambda _: layout.attend)
        ends = layout.num_prompt_tokens + batch.lens.cumsum(0) - 1
        return states.index_select(0, layout.predictor), states.index_select(0, ends)

    def prefill(
        self, prompts: Sequence[Sequence[int]], samples_per_prompt: Sequence[int], max_new_tokens: int
    ) -> tuple[Tensor, GroupedCache]:
        return start_decoding(self, prompts, samples_per_prompt, max_new_tokens)

    @property
    def module(self) -> nn.Module:
        return self

    @property
    def hidden_size(self) -> int:
        return self.spec.hidden_size

    def hf_state(self) -> Iterator[tuple[str, Tensor]]:
        yield "model.embed_tokens.weight", self.embed.weight
        for index, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            yield from _hf_block(block, f"model.layers.{index}.")
        yield "model.norm.weight", self.norm.weight
        if self.head is not None:
            yield "lm_head.weight", self.head.weight

    @torch.no_grad()
    def load_hf_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy weights given under HF names; raises KeyError-like ValueError on a missing or unknown name."""
        mine = dict(self.hf_state())
        ignorable = {"lm_head.weight"} if self.head is None else set()
        unknown = {n for n in state if n not in mine and "rotary_emb" not in n} - ignorable
        if missing := mine.keys() - state.keys():
            raise ValueError(f"the checkpoint lacks {len(missing)} weights, e.g. {sorted(missing)[:3]}")
        if unknown:
            raise ValueError(
                f"the checkpoint has {len(unknown)} weights this model does not know, e.g. {sorted(unknown)[:3]}"
            )
        for name, tensor in mine.items():
            if tensor.shape != state[name].shape:
                raise ValueError(f"{name}: expected shape {tuple(tensor.shape)}, found {tuple(state[name].shape)}")
            tensor.copy_(state[name])


def _hf_block(block: Block, prefix: str) -> Iterator[tuple[str, Tensor]]:
    spec = block.spec
    sizes = [spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim]
    for kind in ("weight", "bias") if spec.qkv_bias else ("weight",):
        fused = getattr(block.qkv, kind)
        for name, view in zip("qkv", torch.split(fused, sizes), strict=True):
            yield f"{prefix}self_attn.{name}_proj.{kind}", view
    if spec.qk_norm:
        yield f"{prefix}self_attn.q_norm.weight", block.q_norm.weight
        yield f"{prefix}self_attn.k_norm.weight", block.k_norm.weight
    yield f"{prefix}self_attn.o_proj.weight", block.out.weight
    gate, up = torch.split(block.gate_up.weight, spec.intermediate_size)
    yield f"{prefix}mlp.gate_proj.weight", gate
    yield f"{prefix}mlp.up_proj.weight", up
    yield f"{prefix}mlp.down_proj.weight", block.down.weight
    yield f"{prefix}input_layernorm.weight", block.norm1.weight
    yield f"{prefix}post_attention_layernorm.weight", block.norm2.weight
