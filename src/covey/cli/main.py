"""``covey COMMAND ...``: parse, print what was understood, hand the config to ``covey.build``.

Exit codes: 0 done, 1 check-reward found something, 2 wrong input (one message, no traceback), 130 interrupted, 141 the
reader of the output has gone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import cast

from covey import __version__
from covey.cli.flags import LATER_COMMANDS
from covey.cli.help import SUMMARIES, command_help, main_help
from covey.cli.model_names import EMBEDDED_MODELS, HUB_OWNERS
from covey.cli.notes import default_differences, resolved_config
from covey.cli.parse import Parsed, parse, rlhf_command, split_flags
from covey.config import (
    BenchConfig,
    ChatConfig,
    CheckRewardConfig,
    EvalRunConfig,
    RecipeConfig,
    SampleConfig,
    ScoreConfig,
)
from covey.config.values import near_match
from covey.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except UserError as error:
        print(f"covey: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("covey: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader (a pager, head) has gone: nothing more can be written, the interpreter's own flush included
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _dispatch(words: list[str]) -> int:
    """The exit code of a command that does not fail."""
    if not words or words[0] in ("--help", "-h", "help"):
        print(main_help())
        return 0
    command, rest = words[0], words[1:]
    if command == "--version":
        print(f"covey {__version__}")
        return 0
    if command not in SUMMARIES:
        raise UserError(_unknown_command(command))
    if "--help" in rest or "-h" in rest:
        print(command_help(_help_topic(command, rest)))
    elif command == "models":
        _models(rest)
    elif command == "recipe":
        _recipe(rest)
    elif command == "bench":
        _bench(rest)
    elif command == "check-reward":
        return _check_reward(rest)
    else:
        parsed = parse(command, rest)
        _announce(parsed)
        _HANDLERS[command](parsed)
    return 0


def _help_topic(command: str, words: list[str]) -> str:
    """``covey rlhf --rlhf_type ppo --help`` shows the flags of PPO."""
    typed = split_flags(command, [word for word in words if word not in ("--help", "-h")])
    return rlhf_command(typed["rlhf_type"]) if command == "rlhf" and "rlhf_type" in typed else command


def _announce(parsed: Parsed) -> None:
    """Notes on standard error, so that standard output stays machine-readable."""
    for note in parsed.notes:
        print(note, file=sys.stderr)
    differences = default_differences(parsed.config, parsed.given)
    if differences:
        print("Covey's default where ms-swift has another: " + "; ".join(differences), file=sys.stderr)


def _train(parsed: Parsed) -> None:
    from covey import build

    if parsed.config.to_dict()["dry_run"]:
        print("\n".join(resolved_config(parsed.config)))
    build.TRAINERS[type(parsed.config)](parsed.config)


def _eval(parsed: Parsed) -> None:
    from covey import build

    build.run_eval(cast(EvalRunConfig, parsed.config))


def _chat(parsed: Parsed) -> None:
    from covey import build

    build.chat(cast(ChatConfig, parsed.config))


def _sample(parsed: Parsed) -> None:
    from covey import build

    build.sample(cast(SampleConfig, parsed.config))


def _score(parsed: Parsed) -> None:
    from covey.rewards.score_file import score_file

    options = cast(ScoreConfig, parsed.config).score
    for row in score_file(options.task, options.file):
        print(json.dumps(row, allow_nan=False))


def _check_reward(words: list[str]) -> int:
    if not words or words[0].startswith("--"):
        raise UserError("covey check-reward needs a reward: covey check-reward accuracy, my.py:name or package.name")
    options = cast(CheckRewardConfig, parse("check-reward", words[1:]).config).check_reward
    from covey.rewards.check import check_reward

    report = check_reward(
        words[0], options.task, dataset=options.dataset, timeout_s=options.reward_timeout, seed=options.seed
    )
    print(json.dumps(asdict(report)) if options.json else "\n".join(report.lines()))
    return 1 if report.findings else 0


def _recipe(words: list[str]) -> None:
    if not words or words[0].startswith("--"):
        raise UserError("covey recipe needs a file: covey recipe recipes/countdown-smollm2.yaml")
    parsed = parse("recipe", words[1:])
    from covey import build

    build.run_recipe(words[0], cast(RecipeConfig, parsed.config).recipe)


def _bench(words: list[str]) -> None:
    if not words or words[0].startswith("--"):
        raise UserError("covey bench needs a name or a file: covey bench grpo-vs-ppo --model runs/warm/final")
    parsed = parse("bench", words[1:])
    from covey import build

    build.run_bench(words[0], cast(BenchConfig, parsed.config).bench)


def _models(words: list[str]) -> None:
    if words == ["list"]:
        print("embedded: " + ", ".join(EMBEDDED_MODELS))
        print("or a folder, a Hugging Face hub name (owner/name), or a bare name that starts with:")
        print("  " + ", ".join(f"{start} ({owner})" for start, owner in HUB_OWNERS.items()))
    elif len(words) == 2 and words[0] == "fetch":
        from covey.models.embedded import fetch

        print(fetch(words[1]))
    else:
        raise UserError("usage: covey models list, or covey models fetch NAME")


def _unknown_command(command: str) -> str:
    if command in LATER_COMMANDS:
        return f"covey {command} comes with {LATER_COMMANDS[command]}; this version has: {', '.join(SUMMARIES)}"
    near = near_match(command, SUMMARIES)
    hint = f" (did you mean covey {near}?)" if near else ""
    return f"unknown command {command!r}{hint}; commands: {', '.join(SUMMARIES)}"


_HANDLERS: dict[str, Callable[[Parsed], None]] = {
    "rlhf": _train,
    "sft": _train,
    "eval": _eval,
    "chat": _chat,
    "sample": _sample,
    "score": _score,
}


if __name__ == "__main__":
    sys.exit(main())
