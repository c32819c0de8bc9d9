"""Files as they are published import without a key that is refused, and make a config of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rolecall.importers.importing import check
from rolecall.importers.translating import FRAMEWORKS, translate

FILES = {
    f"{file.stem}/{name}": {key: value for key, value in read["shared"].items()
                            if key not in given.get("without", ())} | given["values"]
    | {"": given["framework"]}
    for file in sorted(Path(__file__).with_name("published").glob("*.yaml"))
    for read in [yaml.safe_load(file.read_text())]
    for name, given in read["files"].items()
}  # fmt: skip


def test_all_kinds_of_files_are_there():
    assert len(FILES) == 102


@pytest.mark.parametrize("name", FILES)
def test_a_published_file_imports_completely(name):
    values = dict(FILES[name])
    translated = translate(values, FRAMEWORKS[values.pop("")])
    assert translated.refused_lines == []
    check(translated.config)
