"""Reward contract: format (fault 12), abstention (17), result validation (18), names, weights, errors."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from covey.errors import UserError
from covey.rewards import RewardContext, RewardError, build_reward_set
from covey.rewards.format import is_well_formed
from covey.tasks import get_task
from covey.types import Completion, Prompt


def _prompts(n: int = 4) -> list[Prompt]:
    return [
        Prompt(f"p{i}", ({"role": "user", "content": f"q{i}"},), {"nums": [4, 6], "target": 24, "i": i})
        for i in range(n)
    ]


def _completions(texts: list[str]) -> list[Completion]:
    return [Completion((1,), (-0.5,), text, "stop") for text in texts]


def _returning(result: Any) -> Callable[..., Any]:
    def fixed(prompts: list[str], completions: list[str], **columns: list[Any]) -> Any:
        return result

    return fixed


def _score_four(*functions: Callable[..., Any], weights: list[float] | None = None) -> list[float | None]:
    batch = build_reward_set(functions, weights=weights).score(_prompts(), _completions(["a", "b", "c", "d"]))
    return [item.total for item in batch.scored]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>one\ntwo\n\nfour</think>\n\n<answer>\n4*6\n</answer>\n", True),
        ("<think>a</think><think>b</think><answer>4*6</answer>", False),
        ("<think>a</think><answer>4*6</answer></answer>", False),
        ("<think>a</think><answer>4*6</answer> done", False),
        ("<think>a</think>so <answer>4*6</answer>", False),
        ("<think>a</think>", False),  # no answer tag: no format reward
        ("<answer>4*6</answer>", False),
        ("<Think>a</Think><answer>4*6</answer>", False),
        ("</think><think><answer>4*6</answer>", False),
    ],
)
def test_format(text: str, expected: bool) -> None:
    assert is_well_formed(text) is expected


def test_format_and_accuracy_weigh_04_and_06() -> None:
    rewards = build_reward_set(["accuracy", "format"], context=RewardContext(get_task("countdown")))
    assert rewards.weights == (0.6, 0.4)
    texts = [
        "<think>t</think><answer>4*6</answer>",
        "<think>t</think><answer>4+6</answer>",
        "<answer>4*6</answer>",
        "24",
    ]
    batch = rewards.score(_prompts(), _completions(texts))
    assert [item.total for item in batch.scored] == [1.0, 0.4, 0.6, 0.0]
    assert batch.scored[2].rewards == {"accuracy": 1.0, "format": 0.0}
    assert batch.stats["accuracy"].mean == 0.5


def test_other_sets_weigh_one_each() -> None:
    assert build_reward_set(["format"]).weights == (1.0,)
    assert build_reward_set(["format", lambda prompt, completion: 1.0]).weights == (1.0, 1.0)
    context = RewardContext(get_task("countdown"))
    assert build_reward_set(["format", "accuracy"], context=context, weights=[0.1, 0.9]).weights == (0.1, 0.9)


def test_wrong_weights_are_refused() -> None:
    with pytest.raises(UserError, match="3 reward weights for 1 rewards"):
        build_reward_set(["format"], weights=[1.0, 2.0, 3.0])
    with pytest.raises(UserError, match="not a finite number"):
        build_reward_set(["format"], weights=[math.nan])


def test_accuracy_needs_a_task_and_unknown_names_are_explained() -> None:
    with pytest.raises(UserError, match="needs a task"):
        build_reward_set(["accuracy"])
    with pytest.raises(
        UserError, match=r"unknown reward 'acuracy'. Did you mean 'accuracy'\? Known: accuracy, cosine"
    ):
        build_reward_set(["acuracy"])
    with pytest.raises(UserError, match="no reward given"):
        build_reward_set([])


def test_a_prompt_that_opened_the_thought_counts_for_the_completion() -> None:
    turns = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>"})
    prompt = Prompt("p", turns, {"nums": [4, 6], "target": 24})  # type: ignore[arg-type]
    (completion,) = _completions(["t</think><answer>4*6</answer>"])
    batch = build_reward_set(["format"]).score([prompt], [completion])
    assert batch.scored[0].total == 1.0
    assert batch.scored[0].completion is completion


def test_none_is_left_out_of_the_sum() -> None:
    # weights 1 and 2: [1, 0, 1*1 + 2*0.5, 0]
    totals = _score_four(_returning([1, 0, 1, 0]), _returning([None, None, 0.5, None]), weights=[1.0, 2.0])
    assert totals == [1.0, 0.0, 2.0, 0.0]


def test_a_row_without_any_score_has_no_total_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    rewards = build_reward_set([_returning([None, 0, 1, 0]), _returning([None] * 4)])
    with caplog.at_level(logging.WARNING, logger="covey.rewards"):
        batch = rewards.score(_prompts(), _completions(["a", "b", "c", "d"]))
    assert [item.total for item in batch.scored] == [None, 0.0, 1.0, 0.0]
    assert batch.unscored == 1
    first, second = batch.stats.values()
    assert (first.mean, first.n, first.abstained, first.failed) == (1 / 3, 3, 1, 0)
    assert (second.mean, second.n, second.abstained, second.failed) == (None, 0, 4, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "rewards: 1 of 4 completions got no score and are left out"
    ]


def test_nan_and_infinity_count_as_failed_not_as_scores(caplog: pytest.LogCaptureFixture) -> None:
    rewards = build_reward_set([_returning([math.nan, math.inf, 10**400, 1])])
    with caplog.at_level(logging.WARNING, logger="covey.rewards"):
        batch = rewards.score(_prompts(), _completions(["a", "b", "c", "d"]))
    assert [item.total for item in batch.scored] == [None, None, None, 1.0]
    (stats,) = batch.stats.values()
    assert (stats.mean, stats.n, stats.abstained, stats.failed) == (1.0, 1, 0, 3)
    assert "failed on 3 of 4 completions (3 nan)" in caplog.text


@pytest.mark.parametrize(
    ("result", "received"),
    [
        ([1.0], "it returned 1"),
        (1.0, "it returned a float"),
        ([1, 2, 3], "it returned 3"),
        ([[1], [2], [3], [4]], "row 0 is a list"),
        (["1", "0", "1", "0"], "row 0 is a str"),
        ("1010", "it returned a str"),
        (None, "it returned a NoneType"),
        ({"a": 1, "b": 2, "c": 3, "d": 4}, "it returned a dict"),
        ((x for x in range(4)), "it returned a generator"),
        (np.float64(1.0), "it returned a float64"),
        (np.ones((4, 1)), "row 0 is a list"),
        (np.ones(3), "it returned 3"),
        ([1.0, 1j, 1.0, 1.0], "row 1 is a complex"),
    ],
)
def test_wrong_results_are_refused_by_name(result: Any, received: str) -> None:
    with pytest.raises(RewardError) as caught:
        _score_four(_returning(result))
    assert "'fixed' must return a list of 4 scores" in str(caught.value)
    assert received in str(caught.value)


def test_right_results_are_accepted() -> None:
    torch = pytest.importorskip("torch")
    expected = [1.0, 0.0, 0.5, 0.0]
    assert _score_four(_returning([1.0, 0, 0.5, False])) == expected
    assert _score_four(_returning((True, 0, 0.5, 0.0))) == expected
    assert _score_four(_returning(np.array(expected, dtype=np.float32))) == expected
    assert _score_four(_returning([np.float32(1), np.bool_(False), np.float64(0.5), np.int64(0)])) == expected
    assert _score_four(_returning(torch.tensor(expected, dtype=torch.bfloat16))) == expected
    assert _score_four(_returning(list(torch.tensor(expected, requires_grad=True)))) == expected


def test_per_sample_result_is_validated_too() -> None:
    with pytest.raises(RewardError, match="row 0 is a str"):
        _score_four(lambda prompt, completion: "1")


def test_batch_rewards_get_plain_strings_and_aligned_columns() -> None:
    seen: dict[str, Any] = {}

    def spy(prompts: list[str], completions: list[str], **columns: list[Any]) -> list[float]:
        seen.update(prompts=prompts, completions=completions, **columns)
        return [0.0] * len(completions)

    prompts = [*_prompts(1), Prompt("b", ({"role": "user", "content": "other"},), {"extra": "x"})]
    build_reward_set([spy]).score(prompts, _completions(["a", "b"]))
    assert seen["prompts"] == ["q0", "other"]
    assert seen["completions"] == ["a", "b"]
    assert (seen["target"], seen["extra"], seen["i"]) == ([24, None], [None, "x"], [0, None])
    assert seen["prompt_id"] == ["p0", "b"]
    assert seen["finish_reason"] == ["stop", "stop"]
    assert seen["response_token_ids"] == [[1], [1]]
    assert seen["messages"][1] == [{"role": "user", "content": "other"}]


def test_batch_reward_names_only_the_columns_it_wants() -> None:
    def wants(completions: list[str], i: list[int], absent: None = None) -> list[float]:
        return [float(k) for k in i]

    def needs(completions: list[str], absent: list[int]) -> list[float]:
        return []

    assert _score_four(wants) == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(RewardError, match=r"'needs' reads the columns absent.*nums"):
        _score_four(needs)


def test_ms_swift_style_class() -> None:
    class Longer:
        def __call__(self, completions: list[str], i: list[int], **kwargs: Any) -> list[float]:
            return [float(len(text) + k) for text, k in zip(completions, i, strict=True)]

    rewards = build_reward_set([Longer])
    assert rewards.names == ("Longer",)
    assert [item.total for item in rewards.score(_prompts(2), _completions(["aa", "b"])).scored] == [2.0, 2.0]


def test_unclear_functions_are_refused() -> None:
    def one(completion: Completion) -> float:
        return 1.0

    with pytest.raises(UserError, match=r"'one' takes .* it must be reward\(prompt, completion\)"):
        build_reward_set([one])
    with pytest.raises(UserError, match="not a function"):
        build_reward_set([3])  # type: ignore[list-item]


def test_lambdas_partials_and_objects_have_distinct_names() -> None:
    def scaled(prompt: Prompt, completion: Completion, factor: float) -> float:
        return factor

    class Judge:
        def __call__(self, prompt: Prompt, completion: Completion) -> float:
            return 4.0

    def mean(prompt: Prompt, completion: Completion) -> float:
        return 0.0

    rewards = build_reward_set(
        [
            lambda prompt, completion: 1.0,
            lambda prompt, completion: 2.0,
            functools.partial(scaled, factor=3.0),
            functools.partial(scaled, factor=5.0),
            Judge(),
            mean,  # metrics.jsonl already has reward/mean
        ]
    )
    assert rewards.names == ("lambda", "lambda_2", "scaled", "scaled_2", "Judge", "mean_2")
    batch = rewards.score(_prompts(1), _completions(["a"]))
    assert list(batch.scored[0].rewards.values()) == [1.0, 2.0, 3.0, 5.0, 4.0, 0.0]
    assert batch.scored[0].total == 15.0


def test_a_raising_reward_is_named_with_prompt_and_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """One exception costs one score; a function that raises everywhere stops the run (more: test_reward_workers)."""

    def breaks(prompt: Prompt, completion: Completion) -> float:
        return 1 / len(completion.text)

    def breaks_all(completions: list[str]) -> list[float]:
        raise KeyError("gold")

    batch = build_reward_set([breaks]).score(_prompts(), _completions(["a", "b", "", "d"]))
    assert [item.total for item in batch.scored] == [1.0, 1.0, None, 1.0] and batch.failures == {"breaks": 1}
    assert "breaks failed on 1 of 4 completions (1 error)" in caplog.text
    with pytest.raises(RewardError) as caught:
        build_reward_set([breaks]).score(_prompts(), _completions([""] * 4))
    message = str(caught.value)
    assert "reward 'breaks' raised ZeroDivisionError on a completion of prompt p0" in message
    assert "1 / len(completion.text)" in message
    with pytest.raises(RewardError, match=r"(?s)'breaks_all' failed on 4 of 4.*raised KeyError on a batch of 4"):
        build_reward_set([breaks_all]).score(_prompts(), _completions(["a"] * 4))


def test_messages_in_place_of_strings_are_explained() -> None:
    def of_trl(completions: list[str], **columns: Any) -> list[float]:
        return [float(len(completion[0]["content"])) for completion in completions]  # type: ignore[call-overload]

    with pytest.raises(RewardError, match=r"Completions are plain strings here.*not completion\[0\]\['content'\]"):
        build_reward_set([of_trl]).score(_prompts(1), _completions(["a"]))


def test_misaligned_input_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="2 prompts for 1 completions"):
        build_reward_set(["format"]).score(_prompts(2), _completions(["a"]))
