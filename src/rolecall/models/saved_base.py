"""Saves a model and a tokenizer that a program has loaded, so that a config can name their folder.

The folder is called by its contents: the same weights are saved once, and a run that goes on finds
the same name. It lies in the user's cache.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolecall.runtime.cache_folder import cache_folder
from rolecall.runtime.progress import activity
from rolecall.runtime.written_folders import new_folder_beside, replace_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DONE = "config.json"  # folders are moved into place as a whole


def save_base(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Return the folder that holds the model as it is now. Raises ValueError for an adapter."""
    if hasattr(model, "peft_config"):
        raise ValueError(
            "the model has an adapter of PEFT; pass model.merge_and_unload(), or its base and "
            "policies.NAME.adapter"
        )
    if getattr(model, "is_quantized", False):
        raise ValueError(
            "the model is quantized; pass its name, and policies.NAME.quantization: 8bit or 4bit"
        )
    folder = cache_folder() / "bases" / f"{model.config.model_type}-{_digest(model, tokenizer)}"
    if not (folder / DONE).is_file():
        with activity("saving the model"), new_folder_beside(folder) as aside:
            model.save_pretrained(aside)
            tokenizer.save_pretrained(aside)
            replace_folder(aside, folder)
    return folder


def _digest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return 16 hexadecimal digits of the weights, their configuration and the tokenizer."""
    import torch

    digest = hashlib.sha256(model.config.to_json_string().encode())
    raw: Any = getattr(tokenizer, "backend_tokenizer", None)
    words = sorted(tokenizer.get_vocab().items()) if raw is None else raw.to_str()
    digest.update(repr((words, tokenizer.chat_template, tokenizer.special_tokens_map)).encode())
    for name, weights in sorted(model.state_dict().items()):
        digest.update(name.encode())
        flat = weights.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(flat.numpy().data)
    return digest.hexdigest()[:16]
