"""Pairs from a model's own samples: ``python -m covey.build.bench_pairs spec.json``, a process of ``covey bench``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covey.build.objects import data_seed, say
from covey.build.policy import load_learner, read_inputs, tokenized
from covey.config import GRPOConfig
from covey.control.order import stream_indices
from covey.evals.accuracy import evaluate
from covey.models.load import load_tokenizer
from covey.trainers.credit import is_correct
from covey.types import Scored


def sample_pairs(config: GRPOConfig, seconds: float, target: Path) -> dict[str, Any]:
    """Sample groups until ``seconds`` are over; write one pair per group that has a right and a wrong answer.

    Truncated completions are left out: they have no end that a training could be about.
    """
    inputs = tokenized(config, read_inputs(config, None, None, None), load_tokenizer(config.model.model))
    learner = load_learner(config)
    learner.engine.load_weights(learner.backend.named_weights(), version=0)
    size, count = inputs.plan.prompts_per_generation, config.rollout.num_generations
    shuffle, order = config.data.dataset_shuffle, data_seed(config.data, config.run)
    rows: list[dict[str, Any]] = []
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        indices = stream_indices(len(inputs.prompts), number * size, size, shuffle, order)
        prompts = [inputs.prompts[i] for i in indices]
        seed = (config.run.seed, number)
        _, groups = evaluate(learner.engine, prompts, count, learner.sampling, inputs.score.score, seed=seed)
        for group in groups:
            pair = right_and_wrong(group.members)
            if pair is not None:
                chosen, rejected = (member.completion.text for member in pair)
                rows.append({"messages": list(group.prompt.messages), "chosen": chosen, "rejected": rejected})
        number += 1
    spent = time.perf_counter() - began
    target.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"seconds": spent, "pairs": len(rows), "completions": number * size * count}


def right_and_wrong(members: Sequence[Scored]) -> tuple[Scored, Scored] | None:
    """The first right and the first wrong finished completion of a group, if it has both."""
    ended = [m for m in members if m.completion.finish_reason == "stop" and m.completion.text.strip()]
    right = next((member for member in ended if is_correct(member)), None)
    wrong = next((member for member in ended if not is_correct(member)), None)
    return None if right is None or wrong is None else (right, wrong)


def main() -> None:
    """Read the spec, sample, write the report."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    found = sample_pairs(GRPOConfig.from_dict(spec["options"]), spec["seconds"], Path(spec["target"]))
    say(f"{found['pairs']} pairs from {found['completions']} completions in {found['seconds']:.0f} s")
    Path(spec["report"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
