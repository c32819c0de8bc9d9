"""No key of the frameworks' own default files is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rolecall.importers.translating import FRAMEWORKS, check_known

KEYS = yaml.safe_load(Path(__file__).with_name("seed_keys.yaml").read_text())
# Options that hold a mapping, whose own keys are in the table.
MAPPINGS = ("workflow_args", "tools_config", "reward_alloc")


def keys_of(name: str) -> list[str]:
    """All dotted keys of a framework."""
    sections = KEYS[name].items()
    return [key if section == "top" else f"{section}.{key}" for section, keys in sections
            for key in keys]  # fmt: skip


@pytest.mark.parametrize(("name", "number"), [("drmas", 261), ("marti_v1", 169), ("marti", 159)])
def test_each_key_of_a_default_file_is_in_the_table(name, number):
    keys = keys_of(name)
    assert len(keys) == number
    check_known({key: None for key in keys if key not in MAPPINGS}, FRAMEWORKS[name])
