"""Makes what samples: an engine for all policies whose sections are equal."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

import torch

from rolecall.agents.chat_template import Tokenizer
from rolecall.cluster.pool import Pool
from rolecall.cluster.session import RaySession
from rolecall.config.schema import Config
from rolecall.core.errors import as_config_error
from rolecall.core.interfaces.engine import Engine
from rolecall.engines.backend import EngineBackend, engine_backends
from rolecall.engines.inputs import EngineInputs
from rolecall.engines.served.provider import ProviderEngine
from rolecall.engines.several import SeveralEngines
from rolecall.models.language_model import LanguageModel, copies
from rolecall.runtime.call_tree import IdleBarrier
from rolecall.runtime.spending import Account
from rolecall.setup.on_cluster import make_replicas
from rolecall.setup.weights import load_models

log = logging.getLogger("rolecall")


def make_engines(
    config: Config,
    models: dict[str, LanguageModel],
    tokenizers: dict[str, Tokenizer],
    barrier: IdleBarrier,
    session: RaySession | None = None,
    pools: Mapping[str, Pool] = MappingProxyType({}),
) -> dict[str, Engine]:
    """Make the engine of each policy. Raises ConfigError.

    `models` are those that this process has loaded, `session` the cluster that others run on, with
    GPUs in `pools`.
    """
    backends = engine_backends(config)
    # On a CPU engines sample at the same time: with more threads than cores they would wait for
    # one another.
    at_once = sum(
        b.section.num_engines for b in backends if not (b.section.is_served or _is_in_process(b))
    )
    threads = max(1, torch.get_num_threads() // max(1, at_once))
    engines: dict[str, Engine] = {}
    for backend in backends:
        names = backend.policies
        if session is not None and config.is_replicated(names[0]):
            engine: Engine = make_replicas(session, backend, pools=pools, threads=threads)
        else:
            sampled = _sampled_models(config, names, models) if _is_in_process(backend) else {}
            inputs = EngineInputs(
                sampled,
                barrier,
                deterministic=config.deterministic,
                tokenizers=tokenizers,
                threads=threads,
            )
            engine = _make(backend, inputs)
        log.info("engine policies=%s name=%s", ",".join(names), backend.section.name)
        engines |= dict.fromkeys(names, engine)
    return engines


def _is_in_process(backend: EngineBackend) -> bool:
    return backend.config.is_embedded(backend.policies[0])


def _make(backend: EngineBackend, inputs: EngineInputs) -> Engine:
    """Make an engine. Raises ConfigError where its options do not fit after all."""
    with as_config_error(f"{backend.key}.options: "):
        return backend.make(inputs, **backend.check_options())


def combine_engines(engines: dict[str, Engine]) -> Engine:
    """Combine the engines into one for all policies."""
    distinct = {id(engine): engine for engine in engines.values()}
    return next(iter(distinct.values())) if len(distinct) == 1 else SeveralEngines(engines)


def list_accounts(engines: dict[str, Engine]) -> dict[str, Account]:
    """Return the accounts of paid servers, by the names of the policies that share one."""
    return {
        "+".join(sorted(engine.policies)): engine.account
        for engine in engines.values()
        if isinstance(engine, ProviderEngine)
    }


def _sampled_models(
    config: Config, names: list[str], models: dict[str, LanguageModel]
) -> dict[str, LanguageModel]:
    """Return the models that an engine of this process samples: those being trained, or others."""
    section = config.get_engine(names[0])
    other = [
        name for name in names if config.sampling_dtype(name) != config.get_learner(name).dtype
    ]
    apart = [
        name
        for name in names
        if section.separate_weights and name in config.trained_policies
        if name not in other and not config.is_ranked(name)
    ]
    sampled = {name: models[name] for name in names if name not in other}
    sampled |= copies({name: models[name] for name in apart})
    tokenizers = {name: models[name].tokenizer for name in other}
    sampled |= load_models(config, other, tokenizers, sampling=True)
    return {name: sampled[name] for name in names}
