"""Writes the policies of a checkpoint as folders that transformers, vLLM and PEFT read."""

from __future__ import annotations

import shutil
from pathlib import Path

from rolecall.config.load import load
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.storage import checkpoint
from rolecall.storage.run_folder import RunFolder

ADAPTER = "adapter_config.json"
# Of the learner alone; a folder that others read holds the model and its tokenizer.
PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")


def export(
    run: Path,
    output: Path,
    *,
    policy: str | None = None,
    merge: bool = False,
    checkpoint_name: str = "latest",
) -> list[Path]:
    """Write each trained policy to `output/POLICY`, or the one that is named; return the folders.

    merge: add a LoRA adapter to its base and write the whole model.

    Raises ConfigError for an unknown policy, for a folder that is there already, and for `merge`
    where no policy has an adapter.
    """
    folder = RunFolder.existing(run)
    config = load(folder.config)
    names = _choose(config, policy)
    if merge and not any(config.policies[name].adapter for name in names):
        raise ConfigError(f"--merge: {', '.join(names)} has no adapter; leave --merge out")
    for name in names:
        if (output / name).exists():
            raise ConfigError(f"--output: {output / name} is there already; name another folder")
    with checkpoint.held(folder, checkpoint_name) as saved:
        return [_write(saved / name, output / name, config, name, merge=merge) for name in names]


def _choose(config: Config, policy: str | None) -> list[str]:
    trained = sorted(config.trained_policies)
    if policy is None:
        return trained
    if policy not in trained:
        raise ConfigError(f"--policy {policy}: the run trains {', '.join(trained)}")
    return [policy]


def _write(saved: Path, folder: Path, config: Config, name: str, *, merge: bool) -> Path:
    """Write one policy, whole or as an adapter."""
    if merge and (saved / ADAPTER).is_file():
        _merge(saved, folder, config, name)
        return folder
    folder.mkdir(parents=True)
    for pattern in PATTERNS:
        for file in saved.glob(pattern):
            shutil.copyfile(file, folder / file.name)
    return folder


def _merge(saved: Path, folder: Path, config: Config, name: str) -> None:
    """Write the sum of a base and its adapter, in the base's own dtype."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from rolecall.models.base_location import locate
    from rolecall.models.loading import load_tokenizer

    policy = config.policies[name]
    base = AutoModelForCausalLM.from_pretrained(locate(policy.base), dtype="auto")
    merged = PeftModel.from_pretrained(base, str(saved)).merge_and_unload()
    merged.save_pretrained(folder)
    load_tokenizer(policy.base, chat_template=policy.chat_template).save_pretrained(folder)
