"""A description of shards cannot run code, lead out of its folder or have others unpickle more."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    Metadata,
)

from rolecall.learners.ranks.sharded import ShardReader

VALUES = {
    "weight/a": torch.arange(12.0).reshape(3, 4),
    "exp_avg/a": torch.ones(2, dtype=torch.bfloat16),
    "step/a": torch.tensor(3.0),
}


class Opens:
    """What runs a command wherever it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


@pytest.fixture
def shards(tmp_path) -> Path:
    checkpoint.save(dict(VALUES), checkpoint_id=str(tmp_path / "shards"), no_dist=True)
    return tmp_path / "shards"


def read(folder: Path) -> dict[str, torch.Tensor]:
    state = {name: torch.zeros_like(value) for name, value in VALUES.items()}
    checkpoint.load(state, storage_reader=ShardReader(str(folder)), no_dist=True)
    return state


def changed(folder: Path, change) -> None:
    described = pickle.loads((folder / ".metadata").read_bytes())
    (folder / ".metadata").write_bytes(pickle.dumps(change(described) or described))


def test_shards_are_read_bit_for_bit(shards):
    found = read(shards)
    assert all(torch.equal(found[name], value) for name, value in VALUES.items())


class AsOldPython(pickle.Pickler):
    """Writes members of enums as Python before 3.11.4 does."""

    def reducer_override(self, value):
        if isinstance(value, _MEM_FORMAT_ENCODING):
            return getattr, (_MEM_FORMAT_ENCODING, value.name)
        return NotImplemented


def test_shards_that_an_older_python_has_written_are_read(shards):
    described = pickle.loads((shards / ".metadata").read_bytes())
    with (shards / ".metadata").open("wb") as file:
        AsOldPython(file).dump(described)
    assert b"getattr" in (shards / ".metadata").read_bytes()
    found = read(shards)
    assert all(torch.equal(found[name], value) for name, value in VALUES.items())


class Reaches:
    """What takes an attribute of a class that a description may hold."""

    def __reduce__(self):
        return getattr, (Metadata, "__init__")


def test_no_other_attribute_is_taken(shards):
    changed(shards, lambda described: Reaches())
    with pytest.raises(pickle.UnpicklingError, match=r"may not hold .*Metadata.*\.__init__"):
        ShardReader(str(shards)).read_metadata()


def test_a_program_in_the_description_is_not_run(shards, tmp_path):
    changed(shards, lambda described: Opens(tmp_path / "ran"))
    with pytest.raises(checkpoint.CheckpointException, match=r"may not hold posix\.system"):
        read(shards)
    with pytest.raises(pickle.UnpicklingError, match="another version of PyTorch"):
        ShardReader(str(shards)).read_metadata()
    assert not (tmp_path / "ran").exists()


def test_a_tensor_cannot_become_a_pickle_of_its_own(shards, tmp_path):
    """PyTorch reads what is described as bytes with `torch.load`, and no limit."""

    def change(described):
        described.state_dict_metadata["step/a"] = BytesStorageMetadata()

    changed(shards, change)
    with pytest.raises((checkpoint.CheckpointException, pickle.UnpicklingError)):
        read(shards)


def test_a_shard_outside_of_the_folder_is_not_read(shards, tmp_path):
    [file] = shards.glob("*.distcp")
    shutil.copy(file, tmp_path / "elsewhere")

    def change(described):
        for stored in described.storage_data.values():
            stored.relative_path = "../elsewhere"

    changed(shards, change)
    with pytest.raises(checkpoint.CheckpointException, match="outside of its folder"):
        read(shards)


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"cposix\nsystem\n(S'true'\ntR."])
def test_a_damaged_description_is_an_error_of_pickle(shards, content):
    (shards / ".metadata").write_bytes(content)
    with pytest.raises((pickle.UnpicklingError, EOFError)):
        ShardReader(str(shards)).read_metadata()
