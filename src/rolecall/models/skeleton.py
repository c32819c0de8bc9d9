"""Makes models without weights, into which each rank then reads its own shares of them.

Whether a model can be driven as ours are is tried out on one of the same kind with two layers.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch.nn import Module, Parameter
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from rolecall.core.errors import first_line
from rolecall.models import row_rope
from rolecall.models.attention import layouts
from rolecall.models.base_location import exported_name, locate
from rolecall.models.exact_head import make_exact
from rolecall.models.foreign_attention import Carrying, carry
from rolecall.models.language_model import get_layers
from rolecall.models.last_layer import trim
from rolecall.models.loaded_model import LoadedModel
from rolecall.models.loading import set_up

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


META = torch.device("meta")
SMALL_VOCABULARY = 256


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A model on torch's meta device with its capabilities, and where its weights are."""

    loaded: LoadedModel
    small: PreTrainedModel  # of two layers, on the device: it has the numbers that no file holds
    folder: Path


def make_skeleton(base: str, *, device: torch.device, dtype: torch.dtype) -> Skeleton | None:
    """None where the base's files do not name its weights as the model does, and where its rows are
    kept apart: such a base is loaded whole first.

    `device`: where the two layers are tried out. Raises ValueError where the base is missing or
    cannot be driven.
    """
    try:
        path = locate(base)
        folder = Path(path if Path(path).is_dir() else snapshot_download(path))
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"base {base!r} cannot be loaded: {first_line(error)}") from error
    with META:
        model = _build(config, dtype)
    if not {name for name, _ in model.named_parameters()} <= _names_in(folder):
        return None
    small = _build(_with_two_layers(config), dtype)
    capabilities = set_up(small, base, device=device, sampled=False, fuses=False).capabilities
    if capabilities.has_separate_rows:
        return None
    row_rope.install(model)
    if any(isinstance(layer, Carrying) for layer in get_layers(small)):
        carry(model)
    model.eval()
    model.name_or_path = model.config._name_or_path = exported_name(base)
    make_exact(model)
    if capabilities.is_trimmed:
        trim(model)
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return Skeleton(LoadedModel(model, capabilities), small, folder)


def _build(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=layouts.NAME)


def _with_two_layers(config: PretrainedConfig) -> PretrainedConfig:
    small = deepcopy(config)
    small.num_hidden_layers = 2
    small.vocab_size = min(SMALL_VOCABULARY, config.vocab_size)
    small.pad_token_id = None
    kinds = getattr(config, "layer_types", None)
    if kinds:
        small.layer_types = [kinds[0], kinds[-1]]
    return small


def _names_in(folder: Path) -> set[str]:
    """Return the names of the tensors in a folder's files."""
    names: set[str] = set()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            names |= set(opened.keys())
    return names


def hollow(model: PreTrainedModel) -> None:
    """Take a model from the meta device to the CPU, in place, with weights that need no memory.

    PEFT then makes adapters whose first weights are numbers.
    """
    hollowed: dict[int, Parameter] = {}  # tied weights stay tied
    for module in model.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None:
                one = torch.zeros(1, dtype=weight.dtype).expand(weight.shape)
                parameter = Parameter(one, requires_grad=weight.requires_grad)
                module._parameters[name] = hollowed.setdefault(id(weight), parameter)


def fill_buffers(model: Module, skeleton: Skeleton) -> None:
    """Fill the buffers that no file holds, such as rotary frequencies, from the two-layer model."""
    buffers = dict(skeleton.small.named_buffers(remove_duplicate=False))
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            match = [key for key in buffers if name == key or name.endswith(f".{key}")]
            if len(match) != 1 or buffers[match[0]].shape != buffer.shape:
                raise ValueError(f"nothing says what the model's buffer {name} holds")
            buffer.copy_(buffers[match[0]])


def name_in_file(name: str) -> str:
    """Return the name of a base's weight, from that in a model which may be wrapped by PEFT."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")
