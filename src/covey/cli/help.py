"""Help texts, written from the flag table."""

from __future__ import annotations

import textwrap

from covey import __version__
from covey.cli.flags import COMMANDS, LATER_COMMANDS, RLHF_TYPES, NotInSwift, flag
from covey.config.base import Composition, default_values, option_type, options, section_types
from covey.config.presets import PRESETS
from covey.config.values import show, type_name

SUMMARIES: dict[str, str] = {
    "rlhf": "train on rewards (--rlhf_type grpo, ppo) or preferences (dpo, rm)",
    "sft": "supervised fine-tuning, e.g. the warm start before rlhf",
    "recipe": "run a recipe: covey recipe recipes/countdown-smollm2.yaml",
    "eval": "accuracy, format and rewards on held-out prompts",
    "sample": "completions of given prompts",
    "chat": "talk to a model",
    "score": "rewards of given completions, without a model",
    "check-reward": "try a reward on right, wrong and hostile completions: covey check-reward my.py:name",
    "bench": "contenders for the same time on this machine: covey bench grpo-vs-ppo, grpo-vs-dpo, or a file",
    "models": "models list; models fetch NAME",
}

EXAMPLES: dict[str, str] = {
    "rlhf": "covey rlhf --rlhf_type grpo --model smollm2-135m --dataset countdown --reward_funcs format accuracy",
    "rlhf --rlhf_type ppo": "covey rlhf --rlhf_type ppo --model runs/warm/final --dataset countdown"
    " --reward_funcs format accuracy",
    "rlhf --rlhf_type dpo": "covey rlhf --rlhf_type dpo --model smollm2-135m --dataset pairs.jsonl --beta 0.1",
    "rlhf --rlhf_type rm": "covey rlhf --rlhf_type rm --model smollm2-135m --dataset pairs.jsonl",
    "sft": "covey sft --model smollm2-135m --dataset countdown --learning_rate 3e-4",
    "recipe": "covey recipe recipes/countdown-smollm2.yaml --seed 1",
    "eval": "covey eval --model runs/my_run/final --dataset countdown --json",
    "sample": 'covey sample --model runs/my_run/final --prompt "24 from 8, 6, 2" --num_samples 4',
    "chat": "covey chat --model runs/my_run/final",
    "bench": "covey bench grpo-vs-ppo --model runs/warm/final --seconds 480",
    "score": "covey score --task countdown --file rows.jsonl",
    "check-reward": "covey check-reward examples/article_reward.py:article --task countdown",
}


def main_help() -> str:
    """``covey --help``."""
    commands = "\n".join(f"  {name:12} {summary}" for name, summary in SUMMARIES.items())
    later = ", ".join(f"{name} ({part.split(' (')[0]})" for name, part in LATER_COMMANDS.items())
    return (
        f"covey {__version__}: group-relative reinforcement learning for language models\n\n"
        f"usage: covey COMMAND [--flag value ...]\n\n{commands}\n\n"
        f"covey COMMAND --help lists the flags of a command; covey --version prints the version.\n"
        f"Not in this version: {later}.\n"
    )


def command_help(command: str) -> str:
    """``covey COMMAND --help``."""
    if command == "models":
        return "usage: covey models list\n       covey models fetch NAME   (prints the folder as its last line)\n"
    composition = COMMANDS[command]
    lines = [f"covey {command}: {SUMMARIES[command.split()[0]]}", "", f"example: {EXAMPLES[command]}", ""]
    lines += ["Lists are separated by spaces, booleans are true or false, --config file.yaml holds the same names", ""]
    if command.startswith("rlhf"):
        others = ", ".join(f"covey rlhf --rlhf_type {kind} --help" for kind in RLHF_TYPES if kind != "grpo")
        lines += [f"  --rlhf_type {'|'.join(RLHF_TYPES)}", "      the algorithm; required"]
        lines += [f"      this is the list of {command.split()[-1] if ' ' in command else 'grpo'}; see also {others}"]
    if command == "rlhf":
        lines += [f"  --preset {'|'.join(PRESETS)}", "      the settings of a paper; flags beside it win", ""]
    # the table knows ms-swift's defaults for GRPO and supervised training
    compare = command in ("rlhf", "sft")
    for section in section_types(composition):
        keys = [key for key, (owner, _) in options(composition).items() if owner == section]
        lines += [f"{section}:", *(line for key in keys for line in _flag_lines(composition, key, compare)), ""]
    return "\n".join(lines)


def _flag_lines(composition: type[Composition], key: str, compare: bool) -> list[str]:
    line = flag(key)
    default = default_values(composition)[key]
    facts = [line.unit] if line.unit else []
    if default not in (None, "", []):
        facts.append(f"default {show(default)}")
        if compare and not isinstance(line.swift, NotInSwift) and line.swift is not None and line.swift != default:
            facts.append(f"ms-swift {show(line.swift)}")
    text = line.help + (f" [{', '.join(facts)}]" if facts else "")
    return [
        f"  --{key} {type_name(option_type(composition, key))}",
        *textwrap.wrap(text, width=110, initial_indent="      ", subsequent_indent="      "),
    ]
