"""Says which policies lack a base, and what an engine at an address cannot do for a policy."""

from __future__ import annotations

from collections.abc import Iterator

from rolecall.config.schema import Config
from rolecall.config.served import OpenAIEngineConfig, SGLangEngineConfig

Problems = Iterator[str]


def check_served(config: Config) -> Problems:
    for name, policy in sorted(config.policies.items()):
        engine = config.engine_of(name)
        if isinstance(engine, OpenAIEngineConfig):
            yield from _check_untrained(config, name, engine)
            yield from _check_base(config, name, engine)
        elif not policy.base:
            yield f"policies.{name}.base: missing; write a model's folder, hub name or tiny:NAME"
    yield from _check_sglang(config)


def _check_untrained(config: Config, name: str, engine: OpenAIEngineConfig) -> Problems:
    """Check that nothing is published to the engine, and nothing that it says is trained on."""
    policy = config.policies[name]
    for agent, section in config.team.items():
        if section.policy == name and section.trainable:
            yield (
                f"team.{agent}.trainable: {engine.url} takes no new weights, so policy {name!r} "
                f"cannot be trained; set team.{agent}.trainable=false, or another "
                f"policies.{name}.engine"
            )
        if section.policy == name and config.takes_text(name):
            native = section.tools is not None and section.tools.format == "native"
            if native:
                yield (
                    f"team.{agent}.tools.format: native calls need a chat template, and engine "
                    "openai is sent messages; write tags or code"
                )
    if policy.opponent_pool is not None:
        yield f"policies.{name}.opponent_pool: {engine.url} takes no earlier weights; remove it"
    unread = ["reference", "device", *(["template"] if config.takes_text(name) else [])]
    for key in unread:
        if getattr(policy, key):
            yield f"policies.{name}.{key} has no effect: engine openai does not read it; remove it"


def _check_base(config: Config, name: str, engine: OpenAIEngineConfig) -> Problems:
    """Tokens need a tokenizer, which is the base's."""
    base = config.policies[name].base
    if engine.token_ids is True and not base:
        key = f"policies.{name}.engine" if config.policies[name].engine else "engine"
        yield (
            f"policies.{name}.base: missing: token_ids needs the model's tokenizer; write its "
            f"folder or hub name, or set {key}.token_ids=false"
        )
    if engine.token_ids is False and base:
        yield (
            f"policies.{name}.base has no effect: with token_ids=false the server is sent "
            "messages; remove it"
        )


def _check_sglang(config: Config) -> Problems:
    """A server has one base: adapters beside it, or one policy that changes all its weights."""
    served: dict[str, list[str]] = {}
    for name in sorted(config.policies):
        engine = config.engine_of(name)
        if isinstance(engine, SGLangEngineConfig):
            served.setdefault(engine.url, []).append(name)
    for url, names in served.items():
        first = names[0]
        for name in names[1:]:
            if config.engine_of(name) != config.engine_of(first):
                yield (
                    f"policies.{name}.engine: policies.{first} has another section for {url}; "
                    "write the same for both"
                )
            if config.policies[name].base != config.policies[first].base:
                yield (
                    f"policies.{name}.base: {url} serves policies.{first} with another base; "
                    "start a server for each"
                )
        whole = [name for name in names if _changes_all(config, name)]
        if whole and len(names) > 1:
            other = next(name for name in names if name != whole[0])
            yield (
                f"policies.{whole[0]}.engine: its updates change all weights at {url}, and so what "
                f"policies.{other} says; train an adapter, or start a server for each"
            )


def _changes_all(config: Config, name: str) -> bool:
    policy = config.policies[name]
    moves = name in config.trained or policy.opponent_pool is not None
    return moves and policy.adapter is None
