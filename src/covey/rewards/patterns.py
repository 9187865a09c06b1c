"""Rewards for the form of an answer: a regular expression, a JSON schema."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.errors import UserError
from covey.options import option
from covey.rewards.context import RewardContext
from covey.rewards.functions import SampleReward
from covey.rewards.spec import RewardParams
from covey.tasks.base import THINK_CLOSE, extract_answer
from covey.types import Completion, Prompt


@dataclass(frozen=True, slots=True)
class RegexParams(RewardParams):
    """The pattern, in Python's syntax; a dot also matches a line break."""

    reward_regex: str | None = option(None, "regex: what all of the completion must match")

    def check(self, max_completion_length: int) -> None:
        if self.reward_regex is None:
            raise UserError("--reward_funcs regex needs --reward_regex")
        try:
            re.compile(self.reward_regex)
        except re.error as error:
            raise UserError(f"--reward_regex {self.reward_regex}: not a regular expression ({error})") from error


@dataclass(frozen=True, slots=True)
class SchemaParams(RewardParams):
    """The schema file."""

    reward_json_schema: str | None = option(None, "json_schema: a file with the JSON schema of the answer")

    def check(self, max_completion_length: int) -> None:
        if self.reward_json_schema is None:
            raise UserError("--reward_funcs json_schema needs --reward_json_schema FILE")


def build_regex(context: RewardContext) -> SampleReward:
    """1.0 where the whole completion matches."""
    wanted = context.params(RegexParams).reward_regex
    assert wanted is not None
    pattern = re.compile(wanted, re.DOTALL)

    def regex(prompt: Prompt, completion: Completion) -> float:
        return float(pattern.fullmatch(completion.text.strip()) is not None)

    return regex


def build_json_schema(context: RewardContext) -> SampleReward:
    """1.0 where the answer is JSON that fits: the text between the answer tags, or else what follows the thought."""
    path = context.params(SchemaParams).reward_json_schema
    assert path is not None
    validator = _validator(Path(path))

    def json_schema(prompt: Prompt, completion: Completion) -> float:
        answer = extract_answer(completion.text)
        text = completion.text.rpartition(THINK_CLOSE)[2] if answer is None else answer
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return 0.0
        return float(validator.is_valid(value))

    return json_schema


def _validator(path: Path) -> Any:
    import jsonschema

    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--reward_json_schema {path}: can not be read as JSON ({error})") from error
    kind = jsonschema.validators.validator_for(schema)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise UserError(f"--reward_json_schema {path}: not a JSON schema ({error.message})") from error
    return kind(schema)
