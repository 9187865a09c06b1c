"""``--config file.yaml``: a flat mapping whose keys are flag names (a ``config.json`` of a run is one too)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from covey.errors import UserError


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML in which a key given twice is an error, not a silent override."""


def _unique_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[object] = set()
    for key_node, _ in node.value:
        if key_node.value in seen:
            raise yaml.constructor.ConstructorError(None, None, f"{key_node.value} is given twice", key_node.start_mark)
        seen.add(key_node.value)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def read_config_file(path: str) -> dict[str, object]:
    """The options of a config file as YAML reads them; UserError names the file and what is wrong in it."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--config {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--config {path}: not a text file") from error
    try:
        content = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise UserError(f"--config {path}: not valid YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"--config {path}: expected lines of the form `flag: value`, found a {type(content).__name__}")
    for key, value in content.items():
        if not isinstance(key, str):
            raise UserError(f"--config {path}: the key {key!r} is not a flag name")
        if isinstance(value, dict):
            raise UserError(f"--config {path}: {key} holds a mapping; keys are flat, named as the flags are")
    return content
