"""Drawing tokens: the distribution, exact supports of the filters, the random numbers of a row."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from covey.rollout.base import Sampling
from covey.rollout.sampler import draw, row_uniforms
from covey.types import Prompt

# tokens:      0       1    2      3    4
PROBS = [0.0625, 0.25, 0.5, 0.125, 0.0625]
LOGITS = torch.tensor([PROBS]).log()
EDGES = [0.0, 1e-12, 0.25, 0.5, 0.75, 0.999, 0.999999999, 1 - 2**-53]


def tokens_at(uniforms: list[float], sampling: Sampling, logits: Tensor = LOGITS) -> list[int]:
    points = torch.tensor(uniforms, dtype=torch.float64)
    return draw(logits.expand(len(uniforms), -1), points, sampling)[0].tolist()


def support(sampling: Sampling, logits: Tensor = LOGITS) -> set[int]:
    """Every token drawn by 2,000 evenly spaced uniforms and by the extreme ones."""
    return set(tokens_at([(i + 0.5) / 2000 for i in range(2000)] + EDGES, sampling, logits))


# Token 2 (0.5) comes first, then 1 (0.25), 3 (0.125), 0 and 4 (0.0625 each).
@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 1}, {2}),
        ({"top_k": 2}, {1, 2}),
        ({"top_k": 3}, {1, 2, 3}),
        ({"top_k": 4}, {0, 1, 2, 3, 4}),  # a tie at the limit is kept whole
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_k": 0}, {0, 1, 2, 3, 4}),
        ({"top_p": 1e-9}, {2}),
        ({"top_p": 0.4999}, {2}),
        ({"top_p": 0.51}, {1, 2}),
        ({"top_p": 0.74}, {1, 2}),
        ({"top_p": 0.76}, {1, 2, 3}),
        ({"min_p": 0.24}, {1, 2, 3}),  # at least 0.24 * 0.5 = 0.12
        ({"min_p": 0.26}, {1, 2}),
        ({"min_p": 1.0}, {2}),
        # of the two tokens top_k leaves, 2 holds two thirds: 0.66 is then reached by it alone, 0.67 is not
        ({"top_k": 2, "top_p": 0.66}, {2}),
        ({"top_k": 2, "top_p": 0.67}, {1, 2}),
        ({"top_p": 0.76, "min_p": 0.26}, {1, 2}),
    ],
)
def test_filters_leave_exactly_these_tokens(filters: dict[str, Any], expected: set[int]) -> None:
    assert support(Sampling(**filters)) == expected


@pytest.mark.parametrize("uniform", EDGES)
@pytest.mark.parametrize("kept", [0, 3, 49])
def test_a_dropped_token_is_never_drawn(uniform: float, kept: int) -> None:
    """One token of a flat vocabulary stands out a little; top_k 1 must draw it at any uniform, at both ends too."""
    logits = torch.zeros(1, 50)
    logits[0, kept] = 0.01
    assert tokens_at([uniform], Sampling(top_k=1), logits) == [kept]


@pytest.mark.parametrize("uniform", EDGES)
def test_a_token_without_probability_is_never_drawn(uniform: float) -> None:
    logits = torch.tensor([[-math.inf, 0.0, 0.0, -math.inf, -200.0]])
    assert tokens_at([uniform], Sampling(), logits)[0] in (1, 2)


def test_uniforms_cut_the_line_in_vocabulary_order() -> None:
    """Cumulative 0.0625, 0.3125, 0.8125, 0.9375, 1; after top_k 2 the line is 1/3 for token 1, then token 2."""
    assert tokens_at([0.06, 0.07, 0.31, 0.32, 0.81, 0.82, 0.93, 0.94], Sampling()) == [0, 1, 1, 2, 2, 3, 3, 4]
    assert tokens_at([0.333, 0.334], Sampling(top_k=2)) == [1, 2]
    # temperature 0.5 squares: 1, 16, 64, 4 and 1 of 86; cumulative 0.0116, 0.1977, 0.9419, 0.9884, 1
    squared = tokens_at([0.011, 0.012, 0.197, 0.198, 0.941, 0.942, 0.988, 0.989], Sampling(temperature=0.5))
    assert squared == [0, 1, 1, 2, 2, 3, 3, 4]


@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.6}, {"min_p": 0.3}])
def test_logprobs_are_of_the_full_distribution(filters: dict[str, Any]) -> None:
    """As the trainer computes them: ln 0.5 for token 2 also where a filter leaves fewer tokens."""
    ids, logprobs = draw(LOGITS, torch.tensor([0.6], dtype=torch.float64), Sampling(**filters))
    assert ids.tolist() == [2] and logprobs.item() == pytest.approx(math.log(0.5), abs=1e-6)
    _, logprobs = draw(LOGITS, torch.tensor([0.6], dtype=torch.float64), Sampling(temperature=0.5, **filters))
    assert logprobs.item() == pytest.approx(math.log(64 / 86), abs=1e-6)


def test_greedy_takes_the_largest_and_reports_it_at_temperature_one() -> None:
    for uniform in EDGES:
        ids, logprobs = draw(LOGITS * 1.0, torch.tensor([uniform], dtype=torch.float64), Sampling(temperature=0.0))
        assert ids.tolist() == [2] and logprobs.item() == pytest.approx(math.log(0.5), abs=1e-6)


@pytest.mark.parametrize("temperature", [1e-6, 0.01, 100.0])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    ids, logprobs = draw(torch.tensor([[80.0, -80.0, 79.0]]), torch.tensor([0.3]), Sampling(temperature=temperature))
    assert ids.tolist() == [0] and bool(torch.isfinite(logprobs).all())


@pytest.mark.parametrize(
    ("filters", "probs"),
    [
        ({}, PROBS),
        ({"temperature": 2.0}, [p**0.5 / sum(q**0.5 for q in PROBS) for p in PROBS]),
        ({"top_p": 0.8}, [0, 2 / 7, 4 / 7, 1 / 7, 0]),
    ],
)
def test_frequencies_are_the_probabilities(filters: dict[str, Any], probs: list[float]) -> None:
    """Chi-square over 40,000 draws with the generator of the engine.

    With k - 1 = 4 degrees of freedom 30 is passed by chance once in 200,000 (p = 5e-6), so with fixed seeds it is a
    real difference; a shift of 0.01 of probability would give about 40,000 * 0.0001 / 0.25 = 16 per token.
    """
    count = 40_000
    uniforms = row_uniforms([Prompt("p", ())], count // 8, 8, (1, 2)).flatten()
    ids, _ = draw(LOGITS.expand(count, -1), uniforms, Sampling(**filters))
    seen = torch.bincount(ids, minlength=5).tolist()
    assert all(n == 0 for n, p in zip(seen, probs, strict=True) if p == 0)
    chi_square = sum((n - count * p) ** 2 / (count * p) for n, p in zip(seen, probs, strict=True) if p > 0)
    assert chi_square < 30


@pytest.mark.parametrize(
    "filters",
    [{"top_k": 7}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 20, "top_p": 0.5, "min_p": 0.1, "temperature": 0.7}],
)
def test_filters_are_those_of_transformers(filters: dict[str, Any]) -> None:
    """An independent implementation, in the same order, on ten random rows of 40 tokens."""
    sampling = Sampling(**filters)
    logits = torch.randn(10, 40, generator=torch.Generator().manual_seed(8)) * 2
    scores = TemperatureLogitsWarper(sampling.temperature)(None, logits)
    if sampling.top_k > 0:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    if sampling.min_p > 0:
        scores = MinPLogitsWarper(sampling.min_p)(None, scores)
    for row in range(10):
        assert support(sampling, logits[row : row + 1]) == set((scores[row] > -math.inf).nonzero().squeeze(1).tolist())


# --- the random numbers of a row ---


def prompts(*names: str) -> list[Prompt]:
    return [Prompt(name, ()) for name in names]


def test_uniforms_depend_on_seed_prompt_and_sample_alone() -> None:
    a, b = prompts("a", "b")
    together = row_uniforms([a, b], 2, 5, (1, 7))
    assert together.shape == (4, 5) and together.dtype == torch.float64
    assert bool((together >= 0).all()) and bool((together < 1).all())
    assert torch.equal(row_uniforms([b], 2, 5, (1, 7)), together[2:])
    assert torch.equal(row_uniforms([b, a], 2, 5, (1, 7)), together[[2, 3, 0, 1]])
    assert torch.equal(row_uniforms([a], 1, 5, (1, 7)), together[:1])  # a further sample moves no other
    assert torch.equal(row_uniforms([a], 2, 3, (1, 7)), together[:2, :3])  # nor does another length limit
    assert len({tuple(row) for row in together.tolist()}) == 4
    for other in ((1, 8), (2, 7), (17,), (1,)):
        assert not torch.isin(row_uniforms([a, b], 2, 5, other), together).any()


def test_a_prompt_that_comes_twice_gets_other_numbers() -> None:
    twice = row_uniforms(prompts("a", "b", "a"), 2, 4, (0,))
    assert len({tuple(row) for row in twice.tolist()}) == 6
    assert torch.equal(twice[:2], row_uniforms(prompts("a"), 2, 4, (0,)))


def test_uniforms_are_the_same_on_every_machine() -> None:
    """Frozen: blake2b of "(1, 7)|a|0|0" keys Philox. Another value would change what every seeded run samples."""
    assert row_uniforms(prompts("a"), 1, 2, (1, 7)).tolist() == [
        pytest.approx([0.4334246159307156, 0.8089300978457298], abs=1e-12)
    ]


def test_no_prompt_no_numbers() -> None:
    assert row_uniforms([], 4, 3, (0,)).shape == (0, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1}, {"temperature": math.nan}, {"temperature": math.inf}, {"top_p": 0.0}, {"top_p": 1.1},
        {"min_p": -0.1}, {"min_p": 1.1}, {"max_new_tokens": 0},
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        Sampling(**wrong)  # type: ignore[arg-type]


def test_nan_logits_do_not_pass_as_a_token() -> None:
    _, logprobs = draw(torch.full((1, 4), math.nan), torch.tensor([0.5]), Sampling())
    assert bool(logprobs.isnan().all())
