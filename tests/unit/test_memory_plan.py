"""The memory table: parameter counts as published, and totals by hand."""

from __future__ import annotations

import pytest

from covey.plan.memory import SHAPES, Load, activations, memory, table

LOAD = Load(rollout_rows=64, micro_rows=8, prompt_tokens=256, completion_tokens=768)


@pytest.mark.parametrize(
    ("index", "published"),
    [(0, 134_515_008), (1, 3_085_938_688), (2, 7_615_616_512), (3, 30_532_122_624)],
    ids=[shape.name for shape in SHAPES],
)
def test_parameters_are_those_of_the_published_checkpoints(index: int, published: int) -> None:
    assert SHAPES[index].parameters == published


def test_a_critic_has_all_that_is_trained_but_gradients_at_the_same_time() -> None:
    shape = SHAPES[1]
    plain, ppo = (memory(shape, LOAD, reference=True, critic=critic) for critic in (False, True))
    trained = sum(plain[name] for name in ("weights", "masters", "gradients", "optimizer"))
    assert trained == 18 * shape.parameters and ppo["critic"] == 14 * shape.parameters
    assert plain["reference"] == 2 * shape.parameters and plain["critic"] == 0
    assert ppo["total"] - plain["total"] == pytest.approx(ppo["critic"])


def test_parts_by_hand() -> None:
    shape = SHAPES[1]
    parts = memory(shape, LOAD, reference=False, critic=False)
    # 2 (k, v) x 2 bytes x 36 layers x 2 heads x 128 x 64 rows x 1,024 tokens
    assert parts["kv_cache"] == 2 * 2 * 36 * 2 * 128 * 64 * 1024
    # 8,192 tokens: residuals of 36 layers in fp32, one layer in bf16, 512 tokens of logits with their gradient
    layer = 2 * 8192 * (3 * 11008 + 2 * 2048 + 2 * 256 + 2 * 2048)
    assert activations(shape, 8192) == 4 * 36 * 8192 * 2048 + layer + 2 * 4 * 512 * 151936
    held = sum(parts[name] for name in ("weights", "masters", "optimizer"))
    update = parts["gradients"] + max(parts["activations"], 2 * shape.parameters)
    assert parts["total"] == held + max(update, parts["kv_cache"])


def test_the_table_has_every_model_and_method() -> None:
    rows = table(LOAD)
    assert len(rows) == 3 * len(SHAPES)
    totals = {(row["model"], row["method"]): row["total"] for row in rows}
    assert totals["Qwen2.5-7B", "GRPO"] < totals["Qwen2.5-7B", "GRPO with KL"] < totals["Qwen2.5-7B", "PPO with KL"]
