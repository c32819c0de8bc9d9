"""Turns a config and the policies into what vLLM's process is started with, or says what is wrong.

All that can be checked without vLLM is checked here, before a process is started.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rolecall.config.schema import Adapter
from rolecall.config.vllm import VllmEngineConfig
from rolecall.core.errors import ConfigError, first_line
from rolecall.core.json_types import Options

if TYPE_CHECKING:
    from transformers import PretrainedConfig


RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM has room for: MaxLoRARanks
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # that its kernels have
VOCABULARY = "rolecall_vocabulary"  # key of vLLM's `additional_config`: ids of the tokenizer
PADDING = 64  # vLLM pads a vocabulary to a multiple of it
CPU_CACHE_GB = 2.0
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}  # layers without states
NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # keys of model configs
HERE = __package__


@dataclass(frozen=True, slots=True)
class Launch:
    """Holds the first message to the process."""

    arguments: Options  # of vllm.engine.arg_utils.AsyncEngineArgs
    adapters: dict[str, Adapter]  # by policy; none: one policy with all weights
    end_ids: tuple[int, ...]
    on_cpu: bool
    gpus: range  # those that it may see, of those that this process sees
    threads: int  # on a CPU


def plan_launch(
    model: str,
    policies: Mapping[str, Adapter | None],
    *,
    end_ids: list[int],
    options: VllmEngineConfig,
    on_cpu: bool,
    device: str = "auto",
    takes_turns: bool = False,
    threads: int = 1,
    vocabulary: int | None = None,
) -> Launch:
    """Return what vLLM's process is started with. `model`: a folder or a hub name; `device`: the
    first GPU, which `takes_turns` frees at times; `threads`: on a CPU; `vocabulary`: the
    tokenizer's number of ids, if others are not sampled.

    Raises ConfigError where vLLM could not serve it. Where the options name no dtype it is float32:
    they do not know the learner's.
    """
    adapters = _adapters(policies)
    if options.tensor_parallel > 1:
        check_division(model, options.tensor_parallel)
    if Path(model).is_dir():  # nothing is downloaded for a check
        _check_length(model, options.max_length)
        if on_cpu:
            _check_kernels(model, options.dtype or "float32")
    cache_gb = options.cache_gb or (CPU_CACHE_GB if on_cpu else None)
    arguments: Options = {
        "model": model,
        "tensor_parallel_size": options.tensor_parallel,
        "gpu_memory_utilization": options.memory,
        "kv_cache_memory_bytes": None if cache_gb is None else int(cache_gb * 1e9),
        "max_num_seqs": options.max_sequences,
        "dtype": options.dtype or "float32",
        "max_model_len": _context(model, options.max_length),
        "enforce_eager": options.eager,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",  # of the distribution that is sampled from
        "generation_config": "vllm",  # what the model's own file says of sampling is left alone
        "enable_sleep_mode": takes_turns,
        "disable_log_stats": True,
        "enable_log_requests": False,
        "worker_extension_cls": f"{HERE}.whole_weights_worker.WholeWeights",
    }
    if on_cpu:
        # A prompt read in part is sampled from too, and vLLM then sets the offset of the request's
        # generator back, which a generator of the CPU has not: so prompts are read whole.
        arguments["enable_chunked_prefill"] = False
        # For states of other layers than attention vLLM caches prefixes of parts alone.
        kinds = _kinds(model) if Path(model).is_dir() else set()
        arguments["enable_prefix_caching"] = kinds <= ATTENTION
    if vocabulary is not None and vocabulary < _config(model).vocab_size:
        arguments["logits_processors"] = [f"{HERE}.padded_ids:MaskPaddedIds"]
        arguments["additional_config"] = {VOCABULARY: vocabulary}
    if adapters:
        arguments |= {
            "enable_lora": True,
            "max_lora_rank": _room(adapters),
            "max_loras": len(adapters),
            "max_cpu_loras": len(adapters),  # none is ever dropped
            "worker_extension_cls": f"{HERE}.adapter_worker.Adapters",
        }
    number = device.partition(":")[2]
    first = int(number) if number.isdigit() else 0
    gpus = range(first, first + options.tensor_parallel)
    return Launch(arguments, adapters, tuple(end_ids), on_cpu, gpus, threads)


def _adapters(policies: Mapping[str, Adapter | None]) -> dict[str, Adapter]:
    """Return the adapters; raises ConfigError unless all are adapters, or one policy is whole."""
    adapters = {name: adapter for name, adapter in sorted(policies.items()) if adapter is not None}
    whole = sorted(policies.keys() - adapters.keys())
    if whole and len(policies) > 1:
        raise ConfigError(
            f"policies.{whole[0]}: one vLLM engine serves one policy with all its weights, or "
            "adapters of one base; give the policy an adapter, or an engine of its own"
        )
    return adapters


def _room(adapters: dict[str, Adapter]) -> int:
    """Return the smallest rank that vLLM has room for and that holds all adapters."""
    name = max(adapters, key=lambda name: adapters[name].rank)
    largest = adapters[name].rank
    if largest > RANKS[-1]:
        raise ConfigError(
            f"policies.{name}.adapter.rank: vLLM serves ranks up to {RANKS[-1]}, not {largest}"
        )
    return next(rank for rank in RANKS if rank >= largest)


def _config(model: str) -> PretrainedConfig:
    """Return what the model's config file says of its text."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model).get_text_config()
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"base {model!r} has no usable config: {first_line(error)}") from error


def _kinds(model: str) -> set[str]:
    """Return the kinds of the model's layers, where its config tells them apart."""
    return set(getattr(_config(model), "layer_types", None) or [])


def _check_length(model: str, length: int | None) -> None:
    longest = getattr(_config(model), "max_position_embeddings", None)
    if length and longest and length > longest:
        raise ConfigError(
            f"engine.max_length: base {model!r} has a context of {longest} tokens, not {length}"
        )


def _context(model: str, length: int | None) -> int | None:
    """Return the most tokens of a row; None: as many as the model's context has.

    vLLM rotates all rows by a model's long factors once one may be longer than its original
    context (longrope), where the learner rotates each row by its own length: so none may be.
    Raises ConfigError for a length beyond that context.
    """
    from transformers import AutoConfig

    from rolecall.models.language_model import has_longrope, original_context

    if Path(model).is_dir():
        config = _config(model)
    else:
        try:
            config = AutoConfig.from_pretrained(model, local_files_only=True).get_text_config()
        except (OSError, ValueError, KeyError):
            return length  # not here yet
    if not has_longrope(config):
        return length
    limit = original_context(config)
    if length is not None and length > limit:
        raise ConfigError(
            f"engine.max_length: base {model!r} computes rows of more than {limit} tokens "
            f"otherwise, and vLLM then computes all rows so; write at most {limit} "
            f"(it is {length}), or set engine.name: local"
        )
    return length or limit


def _check_kernels(model: str, dtype: str) -> None:
    """Check that vLLM can compute a model on a CPU; raises ConfigError otherwise.

    vLLM itself would fail at the first token.
    """
    config = _config(model)
    if "linear_attention" in _kinds(model) and dtype != "bfloat16":
        raise ConfigError(
            f"engine.dtype: base {model!r} has linear attention, which vLLM on a CPU computes in "
            f"bfloat16 only, not in {dtype}; write bfloat16"
        )
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if size not in CPU_HEAD_SIZES:
        raise ConfigError(
            f"base {model!r} has attention heads of size {size}; vLLM on a CPU has "
            f"{', '.join(map(str, CPU_HEAD_SIZES))}: name another base, or engine.name: local"
        )


def check_updates(model: str) -> None:
    """Check that vLLM can update a model's weights on a CPU; raises ConfigError otherwise."""
    config = _config(model)
    if any(getattr(config, key, None) for key in NUM_EXPERTS) or _kinds(model) - ATTENTION:
        raise ConfigError(
            f"base {model!r} has experts or convolutions, for which vLLM on a CPU takes no new "
            "weights; train an adapter (policies.NAME.adapter), or write engine.name: local"
        )


def check_division(model: str, parts: int) -> None:
    """Check that vLLM can divide a model among that many GPUs; raises ConfigError otherwise."""
    config = _config(model)
    heads = config.num_attention_heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    counts = {
        "attention heads": heads,
        # Fewer than there are GPUs are repeated.
        "key-value heads": parts if shared < parts and parts % shared == 0 else shared,
        "entries of the padded vocabulary": -(-config.vocab_size // PADDING) * PADDING,
        "intermediate features": getattr(config, "intermediate_size", None) or parts,
    }
    for what, number in counts.items():
        if number % parts:
            raise ConfigError(
                f"engine.tensor_parallel: {parts} does not divide the {number} {what} of "
                f"{model!r}; write a number that does"
            )


def environment(launch: Launch, *, scratch: Path) -> dict[str, str]:
    """Return the process's variables; `scratch` is a folder for vLLM's own sockets and files."""
    ours = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_RPC_BASE_PATH": str(scratch),
        "TMPDIR": str(scratch),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",  # the log's last lines must be there when it dies
    }
    if Path(launch.arguments["model"]).is_dir():
        ours["HF_HUB_OFFLINE"] = "1"
    if launch.on_cpu:
        ours["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # OMP_NUM_THREADS says how many, as to all
        ours["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(launch.threads))
    else:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = seen.split(",") if seen else [str(number) for number in range(launch.gpus.stop)]
        ours["CUDA_VISIBLE_DEVICES"] = ",".join(names[launch.gpus.start : launch.gpus.stop])
    return {**os.environ, **ours}
