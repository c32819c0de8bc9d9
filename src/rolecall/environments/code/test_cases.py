"""Reads lists of test cases, as rows of LiveCodeBench and DeepCoder have them.

A case is {"input": text, "output": text}, where `testtype` or `type` may say `functional`: then
each line of the input is the JSON of an argument of the function that `metadata.func_name` names.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import zlib

from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.data.files import Row

COLUMNS = ("public_test_cases", "private_test_cases", "official_tests", "tests")
LARGEST = 500_000_000  # bytes of the cases of a row, unpacked


def read_test_cases(row: Row) -> JsonObject | None:
    """Return the cases of a row as {inputs, outputs, fn_name}; None if it has none.

    Raises ValueError for cases that cannot be read.
    """
    lists = [(column, _unpack(row[column], column)) for column in COLUMNS if row.get(column)]
    cases = [case for _, cases in lists if isinstance(cases, list) for case in cases]
    if not cases or not all(isinstance(case, dict) and "input" in case for case in cases):
        return None
    kinds = {str(case.get("testtype") or case.get("type") or "stdin") for case in cases}
    truth: JsonObject = {
        "inputs": [case["input"] for case in cases],
        "outputs": [case.get("output", "") for case in cases],
    }
    if "functional" in kinds:
        truth["fn_name"] = _function_name(row, cases)
    return truth


def _function_name(row: Row, cases: list[JsonObject]) -> str:
    """Return the function that functional cases call."""
    for source in (row.get("metadata"), cases[0].get("metadata")):
        metadata = _parse(source) if isinstance(source, str) else source
        name = metadata.get("func_name") if isinstance(metadata, dict) else None
        if isinstance(name, str) and name.isidentifier():
            return name
    raise ValueError("functional test cases without metadata.func_name: which function is called?")


def _unpack(value: JsonValue, column: str) -> JsonValue:
    """Return the value of a column: as it is, of its JSON, or of JSON that was compressed."""
    if not isinstance(value, str):
        return value
    read = _parse(value)
    if read is not None:
        return read
    try:
        unpacker = zlib.decompressobj()
        packed = unpacker.decompress(base64.b64decode(value, validate=True), LARGEST)
        if unpacker.unconsumed_tail:
            raise ValueError(f"{column}: its test cases take more than {LARGEST:,} bytes")
        text = _TextUnpickler(io.BytesIO(packed)).load()
    except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, IndexError) as error:
        raise ValueError(f"{column} is neither JSON nor compressed JSON: {error}") from error
    read = _parse(text) if isinstance(text, str) else None
    if read is None:
        raise ValueError(f"{column} is neither JSON nor compressed JSON")
    return read


class _TextUnpickler(pickle.Unpickler):
    """Reads a pickled text; anything that names a class or a function is refused."""

    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and must be text")


def _parse(text: str) -> JsonValue:
    """Return the value of a JSON text; None if it is none."""
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return None
    return value
