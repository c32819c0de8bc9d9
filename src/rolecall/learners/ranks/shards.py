"""Reads the shards of a checkpoint without running what its files say.

PyTorch unpickles the description of the shards without any limit. Here only the classes of which a
description is made are found.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    Metadata,
    StorageMeta,
    TensorStorageMetadata,
)

CHECKPOINT = "torch.distributed.checkpoint"
ALLOWED = {
    f"{CHECKPOINT}.filesystem": {"_StorageInfo"},
    f"{CHECKPOINT}.metadata": {
        "_MEM_FORMAT_ENCODING", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata",
    },
    "pathlib": {"PosixPath"},
    "pathlib._local": {"PosixPath"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
}  # fmt: skip


class ShardReader(FileSystemReader):
    """Reads shards that this package has written: tensors, in files of the folder itself."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read the metadata; raises pickle.UnpicklingError if a description holds anything else."""
        with Path(self.path, ".metadata").open("rb") as file:
            metadata = _DescriptionUnpickler(file).load()
        _check(metadata)
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _DescriptionUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        if (module, name) == ("builtins", "getattr"):
            return _member
        if name not in ALLOWED.get(module, ()):
            raise pickle.UnpicklingError(
                f"a description of shards may not hold {module}.{name}; the checkpoint has been "
                "changed, or another version of PyTorch wrote it"
            )
        return super().find_class(module, name)


def _member(kind: Any, name: str) -> _MEM_FORMAT_ENCODING:
    """Return the memory format of that name, which Python before 3.11.4 pickles as an attribute."""
    if kind is not _MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError(f"a description of shards may not hold {kind!r}.{name}")
    return _MEM_FORMAT_ENCODING[name]


def _check(found: Any) -> None:
    """Refuse values that PyTorch would unpickle later, and files outside of the folder."""
    if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
        raise pickle.UnpicklingError("the description of the shards is none")
    for name, described in found.state_dict_metadata.items():
        if not isinstance(described, TensorStorageMetadata):
            raise pickle.UnpicklingError(f"{name!r} of the shards is no tensor")
    for stored in found.storage_data.values():
        if Path(stored.relative_path).name != stored.relative_path:
            raise pickle.UnpicklingError(
                f"a shard lies outside of its folder: {stored.relative_path!r}"
            )
        if stored.transform_descriptors:
            raise pickle.UnpicklingError("shards that are transformed are not read")
