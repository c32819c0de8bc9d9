"""Makes what samples: an engine for all policies whose sections are equal."""

from __future__ import annotations

from rolecall.config.engines import LocalEngineConfig, OwnEngineConfig
from rolecall.config.schema import Config
from rolecall.engines.local import LocalEngine
from rolecall.engines.parts import EngineParts
from rolecall.engines.several import SeveralEngines
from rolecall.interfaces.engine import Engine
from rolecall.models.language_model import LanguageModel, copies
from rolecall.runtime.call_tree import IdleBarrier
from rolecall.setup.plan import Plan
from rolecall.setup.weights import load_models


def make_engines(
    plan: Plan, models: dict[str, LanguageModel], barrier: IdleBarrier
) -> dict[str, Engine]:
    """The engine of each policy; `models` are those that this process has loaded."""
    alike: dict[str, list[str]] = {}
    for name in plan.config.policies:
        alike.setdefault(repr(plan.config.engine_of(name)), []).append(name)
    engines: dict[str, Engine] = {}
    for names in alike.values():
        engines |= dict.fromkeys(names, _engine(plan, names, models, barrier))
    return engines


def together(engines: dict[str, Engine]) -> Engine:
    """One engine for all policies."""
    distinct = {id(engine): engine for engine in engines.values()}
    return next(iter(distinct.values())) if len(distinct) == 1 else SeveralEngines(engines)


def _engine(
    plan: Plan, names: list[str], models: dict[str, LanguageModel], barrier: IdleBarrier
) -> Engine:
    config, section = plan.config, plan.config.engine_of(names[0])
    sampled = _sampled(config, names, models)
    own = plan.engines[names[0]]
    if own is not None:
        made: Engine = own.make(EngineParts(sampled, barrier, deterministic=config.deterministic))
        return made
    assert isinstance(section, LocalEngineConfig)
    return LocalEngine(
        sampled,
        barrier=barrier,
        deterministic=config.deterministic,
        max_sequences=section.max_sequences,
        cache_gb=section.cache_gb,
        free_on_update=section.free_on_update,
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
