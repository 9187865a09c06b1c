"""TokenBatch: rows and their prompts stay together however a batch is cut."""

from __future__ import annotations

import pytest
import torch

from covey.tensors import TokenBatch, make_batch

PROMPTS = [[10, 11], [20], [30, 31, 32]]
COMPLETIONS = [[[1, 2], [3, 4, 5]], [[6]], [[7, 8], [9]]]
PER_TOKEN = ("mask", "advantages", "weights", "rollout_logprobs", "old_logprobs", "ref_logprobs")


def batch() -> TokenBatch:
    """Every per-token field holds the completion id plus a hundred times the number of the field."""
    packed = make_batch(PROMPTS, COMPLETIONS)
    ids = packed.completion_ids.float()
    return packed.with_fields(**{name: ids + 100 * i for i, name in enumerate(PER_TOKEN)})


def rows(packed: TokenBatch) -> list[tuple[list[int], list[int]]]:
    """(prompt, completion) of each row, read back from the flat tensors; checks the other fields on the way."""
    for i, name in enumerate(PER_TOKEN):
        value = getattr(packed, name)
        assert (value - 100 * i).tolist() == packed.completion_ids.tolist(), name
    prompts = packed.prompt_ids.split(packed.prompt_lens.tolist())
    completions = packed.completion_ids.split(packed.lens.tolist())
    return [(prompts[g].tolist(), c.tolist()) for g, c in zip(packed.group_of_row, completions, strict=True)]


ALL_ROWS = [
    ([10, 11], [1, 2]),
    ([10, 11], [3, 4, 5]),
    ([20], [6]),
    ([30, 31, 32], [7, 8]),
    ([30, 31, 32], [9]),
]


def test_packing_stores_each_prompt_once() -> None:
    packed = batch()
    assert rows(packed) == ALL_ROWS
    assert packed.prompt_ids.tolist() == [10, 11, 20, 30, 31, 32]
    assert (packed.num_groups, packed.num_rows, packed.num_tokens) == (3, 5, 9)
    assert packed.row_of_token.tolist() == [0, 0, 1, 1, 1, 2, 3, 3, 4]


@pytest.mark.parametrize("picked", [[0], [1, 2], [0, 4], [3, 4], [0, 1, 2, 3, 4]])
def test_selected_rows_keep_their_prompt_and_fields(picked: list[int]) -> None:
    part = batch().select_rows(picked)
    assert rows(part) == [ALL_ROWS[i] for i in picked]
    groups = sorted({[0, 0, 1, 2, 2][i] for i in picked})
    assert part.prompt_ids.tolist() == [t for g in groups for t in PROMPTS[g]]
    assert part.group_of_row.unique().tolist() == list(range(len(groups)))


@pytest.mark.parametrize("rows_per_part", [1, 2, 3, 5, 9])
def test_split_covers_every_row_once_in_order(rows_per_part: int) -> None:
    parts = batch().split(rows_per_part)
    assert [row for part in parts for row in rows(part)] == ALL_ROWS
    assert all(part.num_rows == rows_per_part for part in parts[:-1])
    assert 1 <= parts[-1].num_rows <= rows_per_part


def test_unshared_repeats_the_prompt_of_each_row() -> None:
    unshared = batch().unshared()
    assert rows(unshared) == ALL_ROWS
    assert unshared.num_groups == unshared.num_rows == 5
    assert rows(unshared.select_rows([1, 4])) == [ALL_ROWS[1], ALL_ROWS[4]]
    assert rows(unshared.unshared()) == ALL_ROWS


def test_optional_fields_stay_absent() -> None:
    bare = batch().with_fields(old_logprobs=None, ref_logprobs=None)
    for part in (bare.select_rows([2]), bare.unshared(), bare.to("cpu")):
        assert part.old_logprobs is None and part.ref_logprobs is None


def test_operations_leave_the_batch_itself_alone() -> None:
    packed = batch()
    packed.select_rows([0]), packed.split(2), packed.unshared(), packed.with_fields(mask=torch.zeros(9))
    assert rows(packed) == ALL_ROWS


def test_empty_prompts_and_completions_are_refused() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        make_batch([[]], [[[1]]])
    with pytest.raises(ValueError, match="no tokens"):
        make_batch([[1]], [[[1], []]])
