"""Makes an engine of vLLM as the config of a run says it."""

from __future__ import annotations

from pathlib import Path

from rolecall.agents.chat_template import Tokenizer
from rolecall.config.schema import Config
from rolecall.config.vllm import VllmEngineConfig
from rolecall.engines.vllm import installed
from rolecall.engines.vllm.engine import VllmEngine
from rolecall.engines.vllm.launch import check_updates
from rolecall.models.devices import device_named
from rolecall.models.loading import end_ids_of
from rolecall.models.tokenizers import num_ids
from rolecall.placement.devices import engine_devices, takes_turns


def vllm_engine(
    config: Config,
    names: list[str],
    section: VllmEngineConfig,
    tokenizers: dict[str, Tokenizer],
    *,
    threads: int,
    sleeps: bool | None = None,
) -> VllmEngine:
    """Make the vLLM engine of policies that share one; `threads`: on a CPU; `sleeps`: whether it
    gives its GPUs back during updates, where that is not seen from the config of this process.

    Raises ConfigError.
    """
    policy, auto = config.policies[names[0]], str(device_named("auto"))
    base, device = policy.base, engine_devices(config, names[0], auto=auto)[0][0]
    is_updated = names[0] in config.trained and policy.adapter is None
    if is_updated and installed.on_cpu() and Path(base).is_dir():
        check_updates(base)
    return VllmEngine(
        base,
        {name: config.policies[name].adapter for name in names},
        end_ids=end_ids_of(base, tokenizers[names[0]]),
        options=section.model_copy(update={"dtype": config.sampling_dtype(names[0])}),
        device=device,
        takes_turns=takes_turns(config, names[0], auto=auto) if sleeps is None else sleeps,
        threads=threads,
        vocabulary=num_ids(tokenizers[names[0]]),
    )
