"""Records the keys and values of published run files, from clones of their repositories.

    python -m tests.importers.record_published NAME FOLDER [FOLDER...]

writes published/NAME.yaml of all files below the folders that import completely: values that half
of the files share, and how each file differs. Values that are their default, keys that never have
an effect, and the words of prompts are left out.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml

from rolecall.core.errors import ConfigError
from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.importers.importing import Plain, import_files
from rolecall.importers.keys import Framework
from rolecall.importers.reading import guess, read_text, read_values
from rolecall.importers.translating import FRAMEWORKS

PUBLISHED = Path(__file__).with_name("published")
LONGEST_WORD = 80  # characters; longer values with spaces are prompts
ADDRESS = re.compile(r"//\d+\.\d+\.\d+\.\d+:")
FOLDERS = re.compile(r"(?<![\w.:/])/[\w./-]+/+(?=[^/]+$)")  # of a path on their machine
VARIABLE = re.compile(r"\$\w+|\{\w+\}")


def shorten(value: JsonValue) -> JsonValue:
    """Return a value without the words of its prompts, addresses and folders of its machine."""
    if isinstance(value, dict):
        return {name: shorten(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shorten(inner) for inner in value]
    if not isinstance(value, str):
        return value
    if len(value) > LONGEST_WORD and any(map(str.isspace, value)):
        return " ".join(["Words:", *dict.fromkeys(VARIABLE.findall(value))])
    value = ADDRESS.sub("//host:", value)
    return FOLDERS.sub("/", value)


def has_effect(framework: Framework, key: str, value: JsonValue) -> bool:
    """Return whether a value may decide what is imported."""
    known = framework.keys.get(key)
    return known is None or (known.fate != "not needed" and value != known.default)


def published_files(folders: list[Path]) -> Iterator[tuple[str, str, JsonObject]]:
    """Yield name, framework and values of each file that imports completely."""
    for folder in folders:
        for path in sorted([*folder.rglob("*.sh"), *folder.rglob("*.yaml")]):
            try:
                import_files([path], [], source=None, partial=False)
            except ConfigError as error:
                print(f"{path}: {error}", file=sys.stderr)
                continue
            text = read_text(path)
            framework = guess(text, FRAMEWORKS)
            values = framework.tidy(read_values(text, framework, path=path, files=[path]))
            values = {k: shorten(v) for k, v in values.items() if has_effect(framework, k, v)}
            yield str(path.relative_to(folder)), framework.name, values


def main(name: str, *folders: str) -> None:
    """Write published/NAME.yaml."""
    read = list(published_files([Path(folder) for folder in folders]))
    counts = Counter((key, repr(value)) for _, _, values in read for key, value in values.items())
    shared = {
        key: value
        for _, _, values in read
        for key, value in values.items()
        if counts[key, repr(value)] * 2 > len(read)
    }
    files = {}
    for path, framework, values in read:
        own = {k: v for k, v in values.items() if k not in shared or shared[k] != v}
        files[path] = {"framework": framework, "values": own}
        if without := sorted(shared.keys() - values.keys()):
            files[path]["without"] = without
    PUBLISHED.mkdir(exist_ok=True)
    text = yaml.dump(
        {"shared": shared, "files": files}, Dumper=Plain, default_flow_style=None, width=100,
        sort_keys=True, allow_unicode=True,
    )  # fmt: skip
    (PUBLISHED / f"{name}.yaml").write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
