"""Rewards that shape: soft overlong punishment and diversity."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from covey.algo.advantages import group_advantages
from covey.errors import UserError
from covey.models.embedder import SentenceEmbedder
from covey.rewards import RewardContext, build_reward_set
from covey.rewards.cosine import cosine_between
from covey.rewards.diversity import diversity, mean_distances
from covey.rewards.functions import GroupReward
from covey.rewards.overlong import soft_overlong_punishment
from covey.tasks import get_task
from covey.types import Completion, Prompt

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())["cases"]


def case(name: str) -> dict[str, Any]:
    return next(c for c in GOLDEN if c["name"] == name)


def completions(texts: Sequence[str]) -> list[Completion]:
    return [Completion((1,) * max(1, len(text)), (), text, "stop") for text in texts]


PROMPT = Prompt("p", ({"role": "user", "content": "24 from 4, 6"},), {"nums": [4, 6], "target": 24})


def test_soft_overlong_punishment() -> None:
    """21,000 tokens of at most 20,480 get -1, the floor that verl and ms-swift do not have (-1.127)."""
    golden = case("dapo_overlong_reward")
    lengths, options = golden["options"]["lengths"], golden["options"]
    found = [soft_overlong_punishment(n, options["L_max"], options["L_cache"]) for n in lengths]
    assert found == pytest.approx(golden["expected"]["vals"])


def test_a_group_reward_gives_one_score_per_completion() -> None:
    short = GroupReward("short", lambda prompt, own: [1.0])
    with pytest.raises(UserError, match=r"'short' must return a list of 2 scores .* it returned 1"):
        build_reward_set([short]).score([PROMPT] * 2, completions("ab"))


def test_soft_overlong_counts_tokens() -> None:
    context = RewardContext(options={"soft_max_length": 8, "soft_cache_length": 4})
    rewards = build_reward_set(["soft_overlong"], context=context)
    scored = rewards.score([PROMPT] * 3, completions(["abcd", "abcdef", "abcdefghij"])).scored
    assert [item.total for item in scored] == [0.0, -0.5, -1.0]
    with pytest.raises(UserError, match="soft_cache_length"):
        build_reward_set(["soft_overlong"])


def test_diversity_counts_the_others_that_differ() -> None:
    """With one unit vector per semantic class it is DARLING's share of distinct others, times the reward."""
    golden = case("darling_reward")
    classes = golden["inputs"]["clusters"]
    one_hot = [[float(c == k) for k in range(max(classes) + 1)] for c in classes]
    assert mean_distances(one_hot) == pytest.approx(golden["expected"]["diversity"])
    values = dict(zip("abcd", golden["inputs"]["rewards"], strict=True))
    reward = diversity(lambda prompt, completion: values[completion.text], lambda texts: one_hot)
    assert reward.scores([PROMPT] * 4, completions("abcd")) == pytest.approx(golden["expected"]["effective_reward"])


def test_wrong_but_different_is_not_paid() -> None:
    vectors = {"a": [1.0, 0.0], "b": [1.0, 0.0], "c": [0.0, 1.0]}
    reward = diversity(
        lambda prompt, completion: float(completion.text != "c"), lambda texts: [vectors[text] for text in texts]
    )
    assert reward.scores([PROMPT] * 3, completions("abc")) == [0.5, 0.5, 0.0]


def test_a_bonus_of_the_whole_group_cancels_in_the_advantage() -> None:
    """The pitfall: the mean distance within a group, added to all of its completions, changes no advantage.

    The reward of this version differs between the completions of a group, so it does.
    """
    vectors = {"a": [1.0, 0.0], "b": [1.0, 0.0], "c": [0.0, 1.0], "d": [0.6, 0.8]}
    correct = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0}
    own = diversity(lambda prompt, completion: correct[completion.text], lambda texts: [vectors[t] for t in texts])
    bonus = torch.tensor([float(str(v)) for v in own.scores([PROMPT] * 4, completions("abcd"))], dtype=torch.float64)
    rewards = torch.tensor(list(correct.values()), dtype=torch.float64)
    group = torch.zeros(4).long()
    for estimator in ("grpo", "rloo", "opo"):
        lens = torch.ones(4)
        plain = group_advantages(rewards, group, estimator, lens=lens)
        assert torch.allclose(group_advantages(rewards + bonus.mean(), group, estimator, lens=lens), plain)
        with_own = group_advantages(rewards + bonus, group, estimator, lens=lens)
        assert with_own[2] > with_own[0] == with_own[1] > with_own[3]  # the different one of the correct gains most


def test_prompts_are_told_apart() -> None:
    other = Prompt("q", PROMPT.messages, PROMPT.columns)
    vectors = {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [1.0, 0.0]}
    reward = diversity(lambda prompt, completion: 1.0, lambda texts: [vectors[text] for text in texts])
    rewards = build_reward_set([lambda prompt, completion: 1.0, reward])
    scored = rewards.score([PROMPT, PROMPT, other], completions("abc")).scored
    assert [item.rewards["diversity"] for item in scored] == [1.0, 1.0, 0.0]  # c is alone with its prompt
    assert rewards.names == ("lambda", "diversity")


def test_real_sentence_embeddings() -> None:
    """all-MiniLM-L6-v2: two ways to the same product are nearer to each other than to a sum."""
    embed = SentenceEmbedder()
    vectors = embed(["4 times 6 is 24", "24 is 6 times 4", "The weather in Paris is fine today."])
    assert all(sum(x * x for x in v) == pytest.approx(1, abs=1e-5) and len(v) == 384 for v in vectors)
    same, other = (sum(a * b for a, b in zip(vectors[0], v, strict=True)) for v in vectors[1:])
    assert same > 0.8 and other < 0.3
    rewards = build_reward_set(["accuracy", "diversity"], context=RewardContext(get_task("countdown"), embed=embed))
    texts = [
        "<think>4*6</think><answer>4*6</answer>",
        "<think>6 by 4</think><answer>6*4</answer>",
        "<answer>4+6</answer>",
    ]
    scored = rewards.score([PROMPT] * 3, completions(texts)).scored
    assert [item.rewards["accuracy"] for item in scored] == [1, 1, 0]
    assert 0 < (scored[0].rewards["diversity"] or 0) < 1 and scored[2].rewards["diversity"] == 0


def totals(name: str, texts: list[str], **options: Any) -> list[float | None]:
    context = RewardContext(get_task("countdown"), max_completion_length=100, options=options)
    rows = [Completion(tuple(range(len(text))), (), text, "stop") for text in texts]
    prompt = Prompt("p", (), {"nums": [4, 6], "target": 24})
    return [item.total for item in build_reward_set([name], context=context).score([prompt] * len(rows), rows).scored]


def test_repetition_counts_n_grams_that_were_there_before() -> None:
    # "a b c a b c": 4 trigrams, abc twice: 1 - 3/4
    assert totals("repetition", ["a b c a B c", "a b c d", "a b", ""]) == [-0.25, 0.0, 0.0, 0.0]
    assert totals("repetition", ["x x x x"], repetition_n_grams=1, repetition_max_penalty=-2.0) == [-1.5]
    with pytest.raises(UserError, match="--repetition_max_penalty 1 must be 0 or below"):
        totals("repetition", ["a"], repetition_max_penalty=1.0)


def test_cosine_pays_short_right_and_long_wrong_answers() -> None:
    """Half of the way is the middle, and the ends are the options' values."""
    assert [cosine_between(1.0, 0.5, n, 100) for n in (0, 50, 100, 200)] == pytest.approx([1.0, 0.75, 0.5, 0.5])
    assert [cosine_between(-0.5, 0.0, n, 100) for n in (0, 50, 100)] == pytest.approx([-0.5, -0.25, 0.0])
    right, wrong = "<think>t</think><answer>4*6</answer>", "<think>t</think><answer>4+6</answer>"
    assert totals("cosine", [right, wrong], cosine_max_len=2 * len(right)) == pytest.approx([0.75, -0.25])
    with pytest.raises(UserError, match="worth more than a right one"):
        totals("cosine", ["a"], cosine_max_len_value_wrong=0.9)


def test_regex_wants_the_whole_completion() -> None:
    options = {"reward_regex": r"<a>.*</a>"}
    assert totals("regex", [" <a>x\ny</a>\n", "<a>x</a>!", "<a>"], **options) == [1.0, 0.0, 0.0]
    with pytest.raises(UserError, match="needs --reward_regex"):
        totals("regex", ["a"])
    with pytest.raises(UserError, match=r"--reward_regex \(: not a regular expression"):
        totals("regex", ["a"], reward_regex="(")


def test_json_schema_judges_the_answer(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(schema))
    texts = [
        '{"x": 1}', '<think>hm {"x": "no"}</think> {"x": 2}', '<think>t</think><answer>{"x": 3}</answer>', '{"x": "1"}',
        "[1]", "no json", '{"x": 1} and more', "[" * 100_000,
    ]  # fmt: skip
    options = {"reward_json_schema": str(path)}
    assert totals("json_schema", texts, **options) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    path.write_text('{"type": "objekt"}')
    with pytest.raises(UserError, match="not a JSON schema"):
        totals("json_schema", ["a"], **options)
    with pytest.raises(UserError, match="can not be read"):
        totals("json_schema", ["a"], reward_json_schema=str(tmp_path / "absent.json"))
