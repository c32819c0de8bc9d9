"""Makes what samples: an engine for all policies whose sections are equal."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from types import MappingProxyType

import torch

from rolecall.agents.chat_template import Tokenizer
from rolecall.cluster.pool import Pool
from rolecall.cluster.session import RaySession
from rolecall.config.engines import LocalEngineConfig, OwnEngineConfig
from rolecall.config.schema import Config
from rolecall.config.served import OpenAIEngineConfig, ServedEngineConfig, SGLangEngineConfig
from rolecall.config.vllm import VllmEngineConfig
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.engine import Engine
from rolecall.engines.inputs import EngineInputs
from rolecall.engines.local.cached_tokens import cached_tokens
from rolecall.engines.local.engine import LocalEngine
from rolecall.engines.served.openai import OpenAIEngine
from rolecall.engines.served.sglang import SGLangEngine
from rolecall.engines.several import SeveralEngines
from rolecall.models.language_model import LanguageModel, copies
from rolecall.models.loading import end_ids_of
from rolecall.models.tokenizers import padded_ids
from rolecall.runtime.call_tree import IdleBarrier
from rolecall.runtime.secret_texts import remember_secret
from rolecall.runtime.spending import Account
from rolecall.setup.plan import Plan
from rolecall.setup.replicas import replicated
from rolecall.setup.vllm import vllm_engine
from rolecall.setup.weights import load_models

log = logging.getLogger("rolecall")


def make_engines(
    plan: Plan,
    models: dict[str, LanguageModel],
    tokenizers: dict[str, Tokenizer],
    barrier: IdleBarrier,
    session: RaySession | None = None,
    pools: Mapping[str, Pool] = MappingProxyType({}),
) -> dict[str, Engine]:
    """The engine of each policy; `models` are those that this process has loaded, `session` the
    cluster that others run on, with GPUs in `pools`.
    """
    alike = sharing(plan.config)
    engines: dict[str, Engine] = {}
    sections = {names[0]: plan.config.engine_of(names[0]) for names in alike}
    # On a CPU engines sample at the same time: with more threads than cores they would wait for
    # one another.
    at_once = [
        getattr(section, "replicas", 1)
        for name, section in sections.items()
        if isinstance(section, VllmEngineConfig) or plan.config.is_replicated(name)
    ]
    threads = max(1, torch.get_num_threads() // max(1, sum(at_once)))
    for names in alike:
        section = sections[names[0]]
        if session is not None and plan.config.is_replicated(names[0]):
            engine: Engine = replicated(session, plan.config, names, pools=pools, threads=threads)
        elif isinstance(section, VllmEngineConfig):
            engine = vllm_engine(plan.config, names, section, tokenizers, threads=threads)
        elif isinstance(section, ServedEngineConfig):
            engine = served_engine(plan.config, names, section, tokenizers)
        else:
            engine = _embedded(plan, names, models, barrier)
        log.info("engine policies=%s name=%s", ",".join(names), section.name)
        engines |= dict.fromkeys(names, engine)
    return engines


def sharing(config: Config) -> list[list[str]]:
    """The policies of each engine. One of vLLM serves adapters of a base, or one policy with all
    its weights.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, policy in config.policies.items():
        section = config.engine_of(name)
        kind: tuple[str, ...] = (repr(section), str(config.pool_of(name)), str(policy.colocate))
        if isinstance(section, VllmEngineConfig):
            kind = (*kind, policy.base, "" if policy.adapter else name)
        alike.setdefault(kind, []).append(name)
    return list(alike.values())


def served_engine(
    config: Config,
    names: list[str],
    section: ServedEngineConfig,
    tokenizers: dict[str, Tokenizer],
) -> OpenAIEngine | SGLangEngine:
    """Return the client of a server. Raises ConfigError where its key is not there."""
    key = _key(config, names[0], section)
    if isinstance(section, OpenAIEngineConfig):
        return OpenAIEngine(section, policies=names, key=key)
    assert isinstance(section, SGLangEngineConfig)
    return SGLangEngine(
        section,
        {name: config.policies[name].adapter for name in names},
        end_ids=end_ids_of(config.policies[names[0]].base, tokenizers[names[0]]),
        key=key,
        padded_ids=padded_ids(config.policies[names[0]].base, tokenizers[names[0]]),
    )


def _key(config: Config, policy: str, section: ServedEngineConfig) -> str | None:
    """The key of a server, from the environment. Raises ConfigError where it is not there."""
    if section.key_env is None:
        return None
    if key := os.environ.get(section.key_env, "").strip():
        remember_secret(key)
        return key
    section_key = f"policies.{policy}.engine" if config.policies[policy].engine else "engine"
    raise ConfigError(
        f"{section_key}.key_env: the environment variable {section.key_env} is not set"
    )


def together(engines: dict[str, Engine]) -> Engine:
    """One engine for all policies."""
    distinct = {id(engine): engine for engine in engines.values()}
    return next(iter(distinct.values())) if len(distinct) == 1 else SeveralEngines(engines)


def accounts_of(engines: dict[str, Engine]) -> dict[str, Account]:
    """Return the accounts of paid servers, by the names of the policies that share one."""
    return {
        "+".join(sorted(engine.policies)): engine.account
        for engine in engines.values()
        if isinstance(engine, OpenAIEngine)
    }


def _embedded(
    plan: Plan, names: list[str], models: dict[str, LanguageModel], barrier: IdleBarrier
) -> Engine:
    config, section = plan.config, plan.config.engine_of(names[0])
    sampled = _sampled(config, names, models)
    own = plan.engines[names[0]]
    if own is not None:
        engine: Engine = own.make(
            EngineInputs(sampled, barrier, deterministic=config.deterministic)
        )
        return engine
    assert isinstance(section, LocalEngineConfig)
    return LocalEngine(
        sampled,
        barrier=barrier,
        deterministic=config.deterministic,
        max_sequences=section.max_sequences,
        cache_gb=section.cache_gb,
        free_on_update=section.free_on_update,
        expected_ids={
            name: cached_tokens(config, name, section, model.max_length)
            for name, model in sampled.items()
        },
    )


def _sampled(
    config: Config, names: list[str], models: dict[str, LanguageModel]
) -> dict[str, LanguageModel]:
    """The models that an engine in this process samples: those being trained, or other ones."""
    section = config.engine_of(names[0])
    assert isinstance(section, LocalEngineConfig | OwnEngineConfig)
    other = [name for name in names if config.sampling_dtype(name) != config.learner_of(name).dtype]
    apart = [
        name
        for name in names
        if section.separate_weights and name in config.trained
        if name not in other and not config.is_ranked(name)
    ]
    sampled = {name: models[name] for name in names if name not in other}
    sampled |= copies({name: models[name] for name in apart})
    tokenizers = {name: models[name].tokenizer for name in other}
    sampled |= load_models(config, other, tokenizers, sampling=True)
    return {name: sampled[name] for name in names}
