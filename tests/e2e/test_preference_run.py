"""DPO and reward models, on the dataset forms of TRL and ms-swift."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from covey.build.data import preference_pairs
from covey.config import DPOConfig
from covey.errors import UserError

Run = Callable[..., Any]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


FORMS: dict[str, dict[str, Any]] = {
    "TRL": {"prompt": "2+2", "chosen": "4", "rejected": "5"},
    "TRL, messages": {"prompt": [user("2+2")], "chosen": [assistant("4")], "rejected": [assistant("5")]},
    "TRL, implicit prompt": {"chosen": [user("2+2"), assistant("4")], "rejected": [user("2+2"), assistant("5")]},
    "ms-swift": {"messages": [user("2+2"), assistant("4")], "rejected_response": "5"},
    "ms-swift, query": {"query": "2+2", "response": "4", "rejected_response": "5"},
}


def read(rows: list[dict[str, Any]], **options: Any) -> list[tuple[str, str, str]]:
    config = DPOConfig.from_dict({"model": "m", **options})
    pairs = preference_pairs(config.data, config.countdown, rows, 0, lambda text: None)
    return [(pair.prompt.messages[-1]["content"], pair.chosen, pair.rejected) for pair in pairs]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_pair(form: str) -> None:
    assert read([FORMS[form]]) == [("2+2", "4", "5")]


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ({"prompt": "2+2", "chosen": "4"}, "no pair of answers"),
        ({"prompt": "2+2", "chosen": "4", "rejected": "4"}, "are the same"),
        ({"prompt": "2+2", "chosen": "4", "rejected": " "}, "the rejected answer must be text"),
        ({"chosen": "4", "rejected": "5"}, "there is no prompt"),
        ({"chosen": [user("1"), assistant("4")], "rejected": [user("2"), assistant("5")]}, "differ before their last"),
        ({"messages": [user("1")], "rejected_response": "5"}, "must end with the chosen answer"),
    ],
)
def test_rows_that_are_no_pair_are_named(row: dict[str, Any], part: str) -> None:
    rows = [FORMS["TRL"], row]
    with pytest.raises(UserError, match=part) as caught:
        read(rows)
    assert "row 2:" in str(caught.value)
    assert read(rows, bad_rows="drop") == [("2+2", "4", "5")]


def write_pairs() -> None:
    rows = [{"prompt": f"{n}?", "chosen": f"yes {n}", "rejected": f"no, never {n}"} for n in range(8)]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def words(tiny: Path) -> Run:
    def make(kind: str, **changes: Any) -> list[str]:
        options = {
            "model": tiny, "dataset": "pairs.jsonl", "per_device_train_batch_size": 4, "learning_rate": 1e-3,
            "max_steps": 6, "torch_dtype": "float32", "output_dir": "run", **changes,
        }  # fmt: skip
        flat = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return ["rlhf", "--rlhf_type", kind, *flat]

    return make


@pytest.mark.parametrize("loss", ["sigmoid", "sigmoid_norm", "ipo"])
def test_dpo_learns_the_preference(covey: Run, words: Run, lines_of: Run, loss: str) -> None:
    write_pairs()
    ended = covey(*words("dpo", loss_type=loss))
    assert ended.code == 0, ended.err
    records = lines_of("run/metrics.jsonl")
    start = {"sigmoid": 0.693147, "sigmoid_norm": 0.693147, "ipo": 25.0}[loss]  # margin 0: log 2, and (1 / 0.2)^2
    assert records[0]["loss"] == pytest.approx(start, abs=1e-5) and records[-1]["loss"] < records[0]["loss"]
    assert records[0]["rewards/margins"] == pytest.approx(0, abs=1e-6) and records[-1]["rewards/accuracies"] == 1
    assert records[0]["logps/chosen"] < 0
    assert not AutoModelForCausalLM.from_pretrained("run/final", output_loading_info=True)[1]["missing_keys"]


@pytest.mark.parametrize("kind", ["dpo", "rm"])
def test_the_micro_batch_size_changes_nothing(covey: Run, words: Run, lines_of: Run, kind: str) -> None:
    write_pairs()
    found = []
    for size in (4, 2, 1):
        shape = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 4 // size, "max_steps": 2}
        assert covey(*words(kind, output_dir=f"run{size}", **shape)).code == 0
        found.append([(r["loss"], r["grad_norm"]) for r in lines_of(f"run{size}/metrics.jsonl")])
    for other in found[1:]:
        assert [v for pair in other for v in pair] == pytest.approx([v for pair in found[0] for v in pair], rel=1e-4)


@pytest.mark.parametrize("model", ["tiny", "tiny_gpt2"])
def test_a_reward_model_is_one_for_transformers(
    covey: Run, words: Run, lines_of: Run, model: str, request: pytest.FixtureRequest
) -> None:
    """Scores of the saved folder are those of the trainer: what step 13 measures is the model after step 12."""
    write_pairs()
    options = {"model": request.getfixturevalue(model), "per_device_train_batch_size": 8, "learning_rate": 5e-3}
    options["lr_scheduler_type"] = "constant"
    assert covey(*words("rm", max_steps=12, **options)).code == 0
    assert covey(*words("rm", max_steps=13, output_dir="longer", **options)).code == 0
    records = lines_of("longer/metrics.jsonl")
    assert records[0]["loss"] == pytest.approx(0.693147, abs=1e-5) and records[0]["rewards/chosen"] == 0
    assert records[12]["loss"] < 0.65 and records[12]["rewards/accuracies"] == 1

    classifier, info = AutoModelForSequenceClassification.from_pretrained("run/final", output_loading_info=True)
    assert not info["missing_keys"] and classifier.config.num_labels == 1
    tokenizer = AutoTokenizer.from_pretrained("run/final")
    margins = []
    for n in range(8):
        turns = f"<|im_start|>user\n{n}?<|im_end|>\n<|im_start|>assistant\n"
        texts = [f"{turns}{answer} {n}<|im_end|>" for answer in ("yes", "no, never")]
        with torch.no_grad():
            chosen, rejected = (classifier(**tokenizer(text, return_tensors="pt")).logits.item() for text in texts)
        margins.append(chosen - rejected)
    assert sum(margins) / 8 == pytest.approx(records[12]["rewards/margins"], abs=1e-4)


def test_dpo_on_generated_puzzles(covey: Run, words: Run, lines_of: Run) -> None:
    ended = covey(*words("dpo", dataset="countdown", countdown_num_puzzles=16, max_steps=2))
    assert ended.code == 0, ended.err
    assert len(lines_of("run/metrics.jsonl")) == 2
