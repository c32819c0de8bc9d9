"""The comment beside a dataclass field in, its description in the API reference out.

mkdocs.yml names it for mkdocstrings, which by itself reads docstrings only.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from griffe import Attribute, Docstring, Extension, Object

sys.path.insert(0, str(Path(__file__).parent))
from page_text import shown


class FieldComments(Extension):
    """`id: str  # unique within its data source` -> id: unique within its data source."""

    def on_attribute_instance(self, *, attr: Attribute, **others: Any) -> None:
        described = attr.docstring is not None or attr.endlineno is None
        if described or attr.parent is None or not attr.parent.is_class:
            return
        assert attr.endlineno is not None
        assert isinstance(attr.filepath, Path)
        line = attr.filepath.read_text().splitlines()[attr.endlineno - 1]
        _, mark, comment = line.partition("  # ")
        if mark:
            attr.docstring = Docstring(comment.strip(), parent=attr)

    def on_object(self, *, obj: Object, **others: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)
