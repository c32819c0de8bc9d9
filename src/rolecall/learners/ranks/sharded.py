"""Trains the shares of one rank of a sharded model, and saves them with those of the others."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import checkpoint
from torch.distributed.checkpoint import FileSystemReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    Metadata,
    StorageMeta,
    TensorStorageMetadata,
)

from rolecall.core.interfaces.algorithm import Outputs
from rolecall.core.json_types import Options
from rolecall.learners.forward import LogProbs
from rolecall.learners.ranks.member import Member, nothing
from rolecall.learners.ranks.spec import SHARDS
from rolecall.models.weight_stream import write_stream

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


MOMENTS = ("exp_avg", "exp_avg_sq")


class ShardedMember(Member):
    """One rank's share of a policy's learner. The value head, which is tiny, is whole on each.

    Float32 masters are the very weights that passes gather, so they stay on the device while
    moments and the reference are offloaded. On GPUs none of this has run.
    """

    def __init__(
        self, *arguments: Any, dtype: torch.dtype, context_parallel: int = 1, **options: Any
    ) -> None:
        """`dtype`: what passes are computed in; `context_parallel`: ranks that share a row."""
        self.dtype = dtype
        self.counts = distributed.get_rank() % context_parallel == 0  # others count the same
        super().__init__(*arguments, **options)
        self.names = [name for name, _ in self.model.named_parameters()]

    @property
    def exact(self) -> bool:
        return self.model.device.type == "cpu" and self.dtype == torch.float32

    @property
    def num_bytes(self) -> int:  # type: ignore[override]
        return sum(p.numel() * self.written(p).itemsize for p in self.parameters)

    def _exchanged(self, count: float, *, apart: bool) -> float:
        return super()._exchanged(count if self.counts else 0.0, apart=apart)

    def _also(self, outputs: Outputs) -> list[Tensor]:
        """Return outputs that reach the same parameters on all ranks, because FSDP sums gradients
        only where a rank has any.
        """
        return nothing(outputs)

    def _move_reference(self, device: torch.device, *, needed: bool = True) -> None:
        """Move the reference's whole pass, which FSDP knows; on a CPU it stays where it is."""
        if self.offloads and needed and isinstance(self.reference_pass, LogProbs):
            self.reference_pass.to(device)

    def written(self, parameter: Tensor) -> torch.dtype:
        """Return the dtype of the passes; adapters stay in float32."""
        return parameter.dtype if self.model.adapter is not None else self.dtype

    def write(self, folder: Path) -> None:
        """Rank 0 writes one weight after another, as it is gathered.

        The ranks may be on several machines, which share no folder.
        """
        first = distributed.get_rank() == 0
        if self.model.adapter is not None:  # it is small
            weights = dict(zip(self.shapes, self.gather_weights(), strict=True))
            if first:
                self.model.write_weights(folder, weights)
            return
        gathered = self.gather_weights()
        if first:
            write_stream(folder / "model.safetensors", self.shapes, gathered)
            self._write_config(folder)
        else:
            for _ in gathered:
                pass

    def gather_weights(self) -> Iterator[Tensor]:
        for _, parameter in self.model.named_parameters():
            yield whole(parameter.detach()).to(self.written(parameter))

    def _write_config(self, folder: Path) -> None:
        self.model.config.save_pretrained(folder)
        generation = getattr(self.model.model, "generation_config", None)
        if generation is not None:
            generation.save_pretrained(folder)

    def _write_shares(self, folder: Path) -> None:
        """Write this rank's shares into the folder of all, where rank 0 then joins them."""
        weights = {
            name: parameter.detach().to(self.written(parameter))
            for name, parameter in self.model.named_parameters()
        }
        writer = HuggingFaceStorageWriter(
            str(folder), save_distributed=True, enable_consolidation=True
        )
        checkpoint.save(weights, storage_writer=writer)
        if distributed.get_rank() == 0:
            shutil.rmtree(folder / "sharded")
            (folder / "model.safetensors.index.json").unlink()
            (folder / "model-00001-of-00001.safetensors").rename(folder / "model.safetensors")
            self._write_config(folder)

    def save(self, folder: Path) -> None:
        """Save what `from_pretrained` reads, and in a folder beside it every rank's shares."""
        if self.model.adapter is None:
            self._write_shares(folder)
        else:
            self.write(folder)
        checkpoint.save(self._state(), checkpoint_id=str(folder / SHARDS))
        if distributed.get_rank() == 0:
            self.model.tokenizer.save_pretrained(folder)
            rest: Options = {
                "num_steps": self.stepper.num_steps,
                "version": self.version,
                "num_skipped": self.num_skipped,
            }
            if self.head is not None and self.head_stepper is not None:
                rest |= {
                    "head": self.head.state_dict(),
                    "head_stepper": self.head_stepper.state_dict(),
                }
            torch.save(rest, folder / "learner.pt")

    def load(self, folder: Path) -> None:
        """Continue from `save` of any number of ranks: bit for bit the same weights and moments."""
        shards = folder / SHARDS
        rest = torch.load(folder / "learner.pt", weights_only=True, map_location=self.model.device)
        keys = ShardReader(str(shards)).read_metadata().state_dict_metadata.keys()
        self._make_moments({key.partition("/")[2] for key in keys if not key.startswith("weight")})
        checkpoint.load(self._state(), storage_reader=ShardReader(str(shards)))
        self.stepper.num_steps = rest["num_steps"]
        self.version, self.num_skipped = rest["version"], rest["num_skipped"]
        if self.head is not None and self.head_stepper is not None:
            self.head.load_state_dict(rest["head"])
            self.head_stepper.load_state_dict(rest["head_stepper"])
        self._rest()

    def _state(self) -> dict[str, Tensor]:
        """Return weights, moments and their counts of steps: the very tensors, by name."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in zip(self.names, self.parameters, strict=True):
            tensors[f"weight/{name}"] = parameter.detach()
            for kind, value in self.stepper.optimizer.state.get(parameter, {}).items():
                tensors[f"{kind}/{name}"] = value
        return tensors

    def _make_moments(self, names: set[str]) -> None:
        """Room for the moments of these parameters; the others have none."""
        state = self.stepper.optimizer.state
        state.clear()
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if name in names:
                moments = {kind: torch.zeros_like(parameter.detach()) for kind in MOMENTS}
                step = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state[parameter] = {"step": step, **moments}


def whole(tensor: Tensor) -> Tensor:
    gathered: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered
