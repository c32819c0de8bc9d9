"""Converts GGUF files into folders of safetensors, which are kept in the cache."""

from __future__ import annotations

import hashlib
import shutil
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from rolecall.core.errors import ConfigError, first_line
from rolecall.core.optional import optional
from rolecall.models.gguf_attention import DIVISORS, ELSEWHERE, read_field, restore_attention
from rolecall.runtime.cache_folder import cache_folder
from rolecall.runtime.file_locks import locked_file
from rolecall.runtime.progress import activity
from rolecall.runtime.written_folders import new_folder_beside, replace_folder

MAGIC = b"GGUF"
LAYOUT = 2  # of a converted folder; a higher number leaves older folders unused
WAIT_S = 600.0  # for another process that converts the same file
SPARE = 1 << 26  # bytes that a disk keeps free beside a converted folder


def convert_into_cache(file: Path) -> Path:
    """Return the folder that holds a GGUF file's model as safetensors, converting it if needed.

    A file with another path, size or time of change is another file. Raises ValueError for a file
    that is not there, is damaged, or that transformers does not read, and for a full disk.
    """
    file = file.expanduser()
    if not file.is_file():
        raise ValueError(f"base {str(file)!r}: there is no such file")
    status = file.stat()
    key = f"{file.resolve()}:{status.st_size}:{status.st_mtime_ns}:{LAYOUT}"
    name = f"{file.stem}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    folder = cache_folder() / "models" / name
    if not (folder / "config.json").is_file():
        convert(file, folder)
    return folder


def convert(file: Path, folder: Path, *, label: str = "") -> None:
    """Write the model, tokenizer and chat template of a GGUF file into a new folder.

    The folder appears when it is complete. Raises ValueError as `convert_into_cache` does.
    """
    label = label or f"base {str(file)!r}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (
            locked_file(folder.parent / f".{folder.name}.lock", wait_s=WAIT_S),
            activity(f"converting {file.name} to safetensors"),
        ):
            if (folder / "config.json").is_file():  # another process was quicker
                return
            reader = _open(file, label)
            dtype = _check(reader, label, folder.parent)
            with new_folder_beside(folder) as aside:
                _write(file, aside, reader, dtype, label)
                replace_folder(aside, folder)
    except OSError as error:
        raise ValueError(f"{label} cannot be converted: {first_line(error)}") from error


def import_reader(label: str) -> ModuleType:
    """Import the package that reads GGUF files; raises ValueError that says how to install it."""
    try:
        return optional("gguf", extra="gguf")
    except ConfigError as error:
        raise ValueError(f"{label}: {error}") from error


def _open(file: Path, label: str) -> Any:
    """Return gguf's reader of a file; raises ValueError for a damaged one."""
    with file.open("rb") as opened:
        magic = opened.read(len(MAGIC))
    if magic != MAGIC:
        raise ValueError(
            f"{label} is not a GGUF file: it begins with {magic!r} instead of {MAGIC!r}"
        )
    gguf = import_reader(label)
    try:
        return gguf.GGUFReader(file)
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{label} is damaged or cut short ({first_line(error)}); fetch the file again"
        ) from error


def _check(reader: Any, label: str, place: Path) -> torch.dtype:
    """Return the dtype that holds the file's weights without loss.

    Raises ValueError for a file that holds no whole model and for a disk without room for it.
    """
    kind = read_field(reader, "general.type") or "model"
    if kind != "model":
        raise ValueError(f"{label} is of the type {kind!r} and no model; write the file of a model")
    if (parts := read_field(reader, "split.count") or 0) > 1:
        raise ValueError(
            f"{label} is one of {parts} parts; join them with `llama-gguf-split --merge` first"
        )
    if not reader.tensors:
        raise ValueError(f"{label} holds no weights; write the file of a model")
    types = {tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) > 1}
    dtype = {"F16": torch.float16, "BF16": torch.bfloat16}.get(
        next(iter(types)) if len(types) == 1 else "", torch.float32
    )
    needed, free = _count_weights(reader) * dtype.itemsize + SPARE, shutil.disk_usage(place).free
    if free < needed:
        raise ValueError(
            f"{label} needs {needed / 1e9:.1f} GB in {place}, where {free / 1e9:.1f} GB are free; "
            "free some, or point XDG_CACHE_HOME at another disk"
        )
    return dtype


def _count_weights(reader: Any) -> int:
    return sum(int(t.n_elements) for t in reader.tensors if t.name != DIVISORS)


def _write(file: Path, folder: Path, reader: Any, dtype: torch.dtype, label: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            **source, dtype=dtype, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(**source)
    except (ValueError, KeyError, TypeError, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"{label} cannot be read by transformers: {first_line(error)}") from error
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"{label} lacks {len(missing)} weights; the first: {missing[0]}")
    held, read = _count_weights(reader), sum(p.numel() for p in model.parameters())
    if held != read:
        raise ValueError(
            f"{label} holds {held:,} weights, of which transformers reads {read:,}; {ELSEWHERE}"
        )
    config = deepcopy(model.config)
    restore_attention(config, reader, label)
    if hasattr(config, "quantization_config"):  # with it transformers refuses to save the model
        del config.quantization_config
    with torch.device("meta"):
        plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    plain.config.dtype = dtype
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
