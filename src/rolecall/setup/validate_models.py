"""Says which bases are not there and which adapters do not fit, before weights are loaded."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

from rolecall.config.schema import Config
from rolecall.core.errors import first_line
from rolecall.models.base_location import GGUF, locate
from rolecall.models.known_models import KNOWN_MODELS
from rolecall.setup.bases import list_bases

Problems = Iterator[str]
HOW_TO_NAME_ONE = (
    "write a model's folder, a GGUF file, a hub name, tiny:NAME, or one of "
    f"{', '.join(KNOWN_MODELS)}"
)


def check_bases(config: Config) -> Problems:
    """Yield a line for each base that no run could load; hub names are not looked up."""
    for key, base in list_bases(config):
        try:
            path = Path(locate(base))
        except ValueError as error:
            hint = "" if base.endswith(GGUF) else f"; {HOW_TO_NAME_ONE}"
            yield f"{key}: {error}{hint}"
            continue
        if not path.is_dir() or (path / "config.json").is_file():
            continue
        if (path / "adapter_config.json").is_file():
            yield (
                f"{key}: {base!r} holds an adapter without its base; write the folder of a model "
                "that the adapter was merged into (PEFT's merge_and_unload)"
            )
        else:
            yield f"{key}: {base!r} has no config.json; write the folder of a model"


def check_adapters(config: Config) -> Problems:
    """Yield a line for each adapter whose targets the base does not have.

    Bases that are not on this machine are passed over.
    """
    from rolecall.models.lora import attach  # with PEFT, which takes seconds
    from rolecall.models.sizes import get_size

    for name, policy in config.policies.items():
        if policy.adapter is None or policy.adapter.targets == "all-linear":
            continue
        try:
            size = get_size(policy.base)
        except ValueError:
            continue
        layers = sorted(size.linear_names)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of PEFT; the run itself shows them
                attach(size.model, {name: policy.adapter}, seed=0)
        except ValueError as error:
            yield (
                f"policies.{name}.adapter.targets: {first_line(error)}; write all-linear, or names "
                f"of layers: {', '.join(layers)}"
            )
