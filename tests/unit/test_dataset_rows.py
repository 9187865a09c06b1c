"""Rows: checked as a whole before use (known fault 25), and their columns reach the rewards row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from covey.errors import UserError
from covey.rewards import build_reward_set
from covey.rewards.score_file import score_file
from covey.tasks import get_task
from covey.tasks.base import PromptTemplate
from covey.tasks.countdown import DEFAULT_TEMPLATE, CountdownTask
from covey.tasks.dataset import load_prompts, read_table
from covey.types import Completion

GOOD: dict[str, Any] = {"prompt": "24 from 4, 6", "nums": [4, 6], "target": 24}
TASK = CountdownTask()


def _write(folder: Path, rows: list[Any], name: str = "rows.jsonl") -> str:
    path = folder / name
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def _fault_25_rows() -> list[dict[str, Any]]:
    return [
        GOOD,
        {"nums": [4, 6], "target": 24},
        {**GOOD, "prompt": None},
        {**GOOD, "target": "24"},
        {**GOOD, "nums": []},
    ]


def test_one_report_lists_every_bad_row(tmp_path: Path) -> None:
    source = _write(tmp_path, _fault_25_rows())
    with pytest.raises(UserError) as caught:
        load_prompts(source, task=TASK, template=DEFAULT_TEMPLATE)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"{source}: 4 of 5 rows cannot be used")
    assert lines[1:] == [
        '  row 2: "prompt" is missing (fields present: nums, target)',
        '  row 3: "prompt" must be text or a list of messages, found null (fields present: prompt, nums, target)',
        "  row 4: \"target\" must be an integer, found str '24' (fields present: prompt, nums, target)",
        '  row 5: "nums" is empty (fields present: prompt, nums, target)',
    ]


def test_bad_rows_can_be_dropped_with_a_count(tmp_path: Path) -> None:
    source = _write(tmp_path, _fault_25_rows())
    loaded = load_prompts(source, task=TASK, template=DEFAULT_TEMPLATE, bad_rows="drop")
    assert [prompt.id for prompt in loaded.prompts] == ["rows.jsonl:1"]
    assert loaded.rows_dropped == 4


def test_dropping_everything_is_refused(tmp_path: Path) -> None:
    source = _write(tmp_path, _fault_25_rows()[1:])
    with pytest.raises(UserError, match="none is left"):
        load_prompts(source, task=TASK, template=None, bad_rows="drop")


def test_long_reports_are_capped(tmp_path: Path) -> None:
    source = _write(tmp_path, [{"nums": [4], "target": None}] * 33)
    with pytest.raises(UserError) as caught:
        load_prompts(source, task=TASK, template=DEFAULT_TEMPLATE)
    lines = str(caught.value).splitlines()
    assert len(lines) == 22
    assert lines[-1] == "  and 13 more"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": True}, '"target" must be an integer, found bool True'),
        ({"target": 24.0}, '"target" must be an integer, found float 24.0'),
        ({"nums": [4, True]}, '"nums" must hold integers only, found bool True'),
        ({"nums": [4, "6"]}, "\"nums\" must hold integers only, found str '6'"),
        ({"nums": "4, 6"}, "\"nums\" must be a list of integers, found str '4, 6'"),
        ({"nums": [-4, 6]}, "negative numbers"),
        ({"numbers": [4, 7]}, '"nums" and "numbers" differ'),
        ({"prompt": "  "}, '"prompt" is blank'),
        ({"prompt": []}, "no user message"),
        ({"prompt": [{"role": "user", "content": None}]}, '"prompt" must hold messages'),
        ({"prompt": [{"role": "human", "content": "x"}]}, '"prompt" must hold messages'),
        ({"completions": "x"}, '"completions" is a reserved name'),
    ],
)
def test_one_wrong_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_prompts(_write(tmp_path, [{**GOOD, **change}]), task=TASK, template=DEFAULT_TEMPLATE)
    assert message in str(caught.value)


def test_rows_without_prompts_use_the_template(tmp_path: Path) -> None:
    source = _write(tmp_path, [{"numbers": [4, 6], "target": 24, "tag": "a"}])
    (prompt,) = load_prompts(source, task=TASK, template=DEFAULT_TEMPLATE).prompts
    assert prompt.messages == ({"role": "user", "content": "24 from 4, 6"},)
    assert prompt.columns == {"numbers": [4, 6], "nums": [4, 6], "target": 24, "tag": "a"}
    with pytest.raises(UserError, match="no prompt"):
        load_prompts(source, task=TASK, template=None)
    with pytest.raises(UserError, match='"hint" is missing'):
        load_prompts(source, task=TASK, template=PromptTemplate(user="{target} {hint}"))


def test_message_lists_and_queries(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "own"}, {"role": "user", "content": "q"}]
    answered = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "leaked"}]
    source = _write(tmp_path, [{"messages": turns, "k": 1}, {"messages": answered}, {"query": "plain"}])
    loaded = load_prompts(source, task=None, template=PromptTemplate(user="unused", system="given"))
    shown = [[(turn["role"], turn["content"]) for turn in prompt.messages] for prompt in loaded.prompts]
    assert shown == [
        [("system", "own"), ("user", "q")],
        [("system", "given"), ("user", "q")],
        [("system", "given"), ("user", "plain")],
    ]
    assert loaded.answers_removed == 1
    assert [prompt.columns for prompt in loaded.prompts] == [{"k": 1}, {}, {}]


def test_bad_json_names_file_and_line(tmp_path: Path) -> None:
    source = _write(tmp_path, [GOOD, "", '{"nums": [4'])
    with pytest.raises(UserError, match=r"rows\.jsonl line 3: not valid JSON"):
        read_table(source)
    with pytest.raises(UserError, match=r"line 1: expected a JSON object, found list"):
        read_table(_write(tmp_path, ["[1]"]))


def test_line_numbers_count_blank_lines(tmp_path: Path) -> None:
    source = _write(tmp_path, [GOOD, "", {**GOOD, "target": None}])
    with pytest.raises(UserError, match="row 3: "):
        load_prompts(source, task=TASK, template=None)


def test_unreadable_sources(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.jsonl does not exist"):
        read_table(str(tmp_path / "nothing.jsonl"))
    with pytest.raises(UserError, match="not a jsonl file"):
        read_table(_write(tmp_path, ["a,b"], "rows.csv"))
    (tmp_path / "latin.jsonl").write_bytes(b'{"a": "\xe9"}\n')
    with pytest.raises(UserError, match="not UTF-8"):
        read_table(str(tmp_path / "latin.jsonl"))
    with pytest.raises(UserError, match="no rows"):
        load_prompts(_write(tmp_path, []), task=TASK, template=None)


def test_sampling_with_a_hash_mark(tmp_path: Path) -> None:
    source = _write(tmp_path, [{**GOOD, "i": i} for i in range(20)])
    first = [row.values["i"] for row in read_table(f"{source}#8", seed=1).rows]
    assert first == [row.values["i"] for row in read_table(f"{source}#8", seed=1).rows]
    assert first != [row.values["i"] for row in read_table(f"{source}#8", seed=2).rows]
    assert len(set(first)) == 8
    for wrong in ("21", "0", "x"):
        with pytest.raises(UserError, match="#"):
            read_table(f"{source}#{wrong}")


def test_local_datasets_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "saved"
    data = datasets.Dataset.from_list([{"nums": [4, 6], "target": 24, "i": i} for i in range(5)])
    data.save_to_disk(str(folder))
    (prompt, *rest) = load_prompts(str(folder), task=TASK, template=DEFAULT_TEMPLATE).prompts
    assert prompt.id == "saved:1"
    assert prompt.columns == {"nums": [4, 6], "target": 24, "i": 0}
    assert len(rest) == 4
    assert len(read_table(f"{folder}#3", seed=0).rows) == 3
    both = tmp_path / "both"
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(str(both))
    assert len(read_table(str(both), split="test").rows) == 5
    with pytest.raises(UserError, match="no split 'dev'; it has: train, test"):
        read_table(str(both), split="dev")


def test_extra_columns_line_up_with_their_completions(tmp_path: Path) -> None:
    source = _write(tmp_path, [{**GOOD, "tag": tag} for tag in "abcde"])
    prompts = [p for p in load_prompts(source, task=TASK, template=None).prompts for _ in range(3)]
    completions = [Completion((), (), f"{prompt.columns['tag']}!", "stop") for prompt in prompts]

    def lined_up(completions: list[str], tag: list[str]) -> list[float]:
        assert tag == list("aaabbbcccdddeee")
        return [float(text.startswith(name)) for text, name in zip(completions, tag, strict=True)]

    batch = build_reward_set([lined_up]).score(prompts, completions)
    assert [item.total for item in batch.scored] == [1.0] * 15


def test_score_file_checks_every_row_before_the_first_score(tmp_path: Path) -> None:
    row = {"completion": "<think>t</think><answer>4*6</answer>", "nums": [4, 6], "target": 24}
    source = _write(tmp_path, [row, {**row, "completion": 5}, {"completion": "x", "target": 24}])
    with pytest.raises(UserError) as caught:
        score_file("countdown", source)
    assert "2 of 3 rows" in str(caught.value)
    assert 'row 2: "completion" must be text, found int 5' in str(caught.value)
    assert 'row 3: "nums" (or "numbers") is missing' in str(caught.value)


def test_unknown_task_lists_the_table() -> None:
    with pytest.raises(UserError, match=r"unknown task 'countdwn'. Did you mean 'countdown'\? Known tasks: countdown"):
        get_task("countdwn")
