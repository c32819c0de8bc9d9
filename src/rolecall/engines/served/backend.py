"""Answers what a run asks of engines that are servers of somebody else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rolecall.config.served import (
    OpenAIEngineConfig,
    ProviderEngineConfig,
    ServedEngineConfig,
    SGLangEngineConfig,
)
from rolecall.core.errors import ConfigError, as_config_error
from rolecall.engines.backend import EngineBackend
from rolecall.runtime.secret_texts import remember_secret

if TYPE_CHECKING:
    from rolecall.engines.inputs import EngineInputs
    from rolecall.engines.served.provider import ProviderEngine
    from rolecall.engines.served.sglang import SGLangEngine
    from rolecall.models.memory_needs import Need
    from rolecall.models.sizes import Size


class ServedBackend(EngineBackend):
    """A server at an address, which takes no memory of this machine."""

    section: ServedEngineConfig

    def memory(self, policy: str, size: Size | None, *, auto: str) -> Iterator[Need]:
        yield from ()

    def share_concurrency(self, processes: int) -> None:
        """Let this process make its share of the requests that may be under way."""
        concurrency = max(1, self.section.concurrency // processes)
        self.section = self.section.model_copy(update={"concurrency": concurrency})

    def check_machine(self) -> Iterator[str]:
        try:
            self.read_key()
        except ConfigError as error:
            yield from error.problems

    def read_key(self) -> str | None:
        """Read the key from the environment. Raises ConfigError where it is not there."""
        names = self.section.key_names
        for name in names:
            if key := os.environ.get(name, "").strip():
                remember_secret(key)
                return key
        if not names:
            return None
        first, *others = names
        problem = f"the environment variable {first} is not set"
        problem += "".join(f", nor is {name}" for name in others)
        raise ConfigError(f"{self.key}.key_env: {problem}")


class ProviderBackend(ServedBackend):
    """An LLM behind somebody's API, for policies that nobody trains."""

    section: ProviderEngineConfig

    def check(self) -> Iterator[str]:
        for policy in sorted(self.policies):
            yield from self._check_untrained(policy)
            yield from self._check_agents(policy)
            yield from self._check_base(policy)
            if self.section.budget_usd and policy not in self.config.prices:
                yield (
                    f"{self.key}.budget_usd counts nothing without prices; write "
                    f"prices.{policy}.prompt and prices.{policy}.completion"
                )

    def make(self, inputs: EngineInputs, **options: Any) -> ProviderEngine:
        """Make the client. Raises ConfigError where it lacks something."""
        from rolecall.engines.prices import find_prices

        prices = {n: price for n, price in find_prices(self.config).items() if n in self.policies}
        with as_config_error(f"{self.key}."):
            return self._client()(
                self.section, policies=self.policies, key=self.read_key(), prices=prices
            )

    def _client(self) -> type[ProviderEngine]:
        """Import the client, with the SDK of its provider."""
        raise NotImplementedError

    def _check_untrained(self, name: str) -> Iterator[str]:
        """Check that nothing is published to the engine, and nothing that it says is trained on."""
        config, section = self.config, self.section
        policy, address = config.policies[name], section.url or section.name
        for agent, member in config.team.items():
            if member.policy == name and member.trainable:
                yield (
                    f"team.{agent}.trainable: {address} takes no new weights, so policy {name!r} "
                    f"cannot be trained; set team.{agent}.trainable=false, or another "
                    f"policies.{name}.engine"
                )
        if policy.opponent_pool is not None:
            yield f"policies.{name}.opponent_pool: {address} takes no earlier weights; remove it"
        layout = ["chat_template", "template"] if config.takes_text(name) else []
        for key in ["reference", "device", *layout]:
            if getattr(policy, key):
                yield (
                    f"policies.{name}.{key} has no effect: engine {section.name} does not read "
                    "it; remove it"
                )

    def _check_agents(self, name: str) -> Iterator[str]:
        """Check that agents ask for nothing that messages cannot hold."""
        engine = self.section.name
        for agent, section in self.config.team.items():
            if section.policy != name or not self.config.takes_text(name):
                continue
            if section.tools is not None and section.tools.format == "native":
                yield (
                    f"team.{agent}.tools.format: native calls need a chat template, and engine "
                    f"{engine} is sent messages; write tags or code"
                )
            for key in ("top_p", "top_k", "stop", "stop_token_ids"):
                if key in section.sampling.model_fields_set and engine != "openai":
                    yield (
                        f"team.{agent}.sampling.{key} has no effect: engine {engine} is sent "
                        "temperature and max_tokens alone; remove it"
                    )

    def _check_base(self, name: str) -> Iterator[str]:
        if self.config.policies[name].base:
            yield (
                f"policies.{name}.base has no effect: engine {self.section.name} is sent "
                "messages; write engine.model, and remove it"
            )


class AnthropicBackend(ProviderBackend):
    def _client(self) -> type[ProviderEngine]:
        from rolecall.engines.served.anthropic import AnthropicEngine

        return AnthropicEngine


class GoogleBackend(ProviderBackend):
    def _client(self) -> type[ProviderEngine]:
        from rolecall.engines.served.google import GoogleEngine

        return GoogleEngine


class OpenAIBackend(ProviderBackend):
    """A server with OpenAI's API, which takes messages or tokens."""

    section: OpenAIEngineConfig

    def _client(self) -> type[ProviderEngine]:
        from rolecall.engines.served.openai import OpenAIEngine

        return OpenAIEngine

    def _check_base(self, name: str) -> Iterator[str]:
        """Check the base: tokens need a tokenizer, which is the base's."""
        base = self.config.policies[name].base
        if self.section.token_ids is True and not base:
            yield (
                f"policies.{name}.base: missing: token_ids needs the model's tokenizer; write its "
                f"folder or hub name, or set {self.key}.token_ids=false"
            )
        if self.section.token_ids is False and base:
            yield (
                f"policies.{name}.base has no effect: with token_ids=false the server is sent "
                "messages; remove it"
            )


class SGLangBackend(ServedBackend):
    """A server of SGLang: adapters beside its base, or one policy that changes all its weights."""

    section: SGLangEngineConfig

    def check(self) -> Iterator[str]:
        config, url = self.config, self.section.url
        served = [
            name
            for name in sorted(config.policies)
            if isinstance(section := config.get_engine(name), SGLangEngineConfig)
            if section.url == url
        ]
        first = served[0]
        for name in sorted(set(self.policies) - {first}):
            if config.get_engine(name) != config.get_engine(first):
                yield (
                    f"policies.{name}.engine: policies.{first} has another section for {url}; "
                    "write the same for both"
                )
            if config.policies[name].base != config.policies[first].base:
                yield (
                    f"policies.{name}.base: {url} serves policies.{first} with another base; "
                    "start a server for each"
                )
        whole = [name for name in served if self._changes_all(name)]
        if first in self.policies and whole and len(served) > 1:
            other = next(name for name in served if name != whole[0])
            yield (
                f"policies.{whole[0]}.engine: its updates change all weights at {url}, and so what "
                f"policies.{other} says; train an adapter, or start a server for each"
            )

    def make(self, inputs: EngineInputs, **options: Any) -> SGLangEngine:
        from rolecall.engines.served.sglang import SGLangEngine
        from rolecall.models.loading import read_end_ids
        from rolecall.models.tokenizers import padded_ids

        name, policies = self.policies[0], self.config.policies
        base, tokenizer = policies[name].base, inputs.tokenizers[name]
        return SGLangEngine(
            self.section,
            {name: policies[name].adapter for name in self.policies},
            end_ids=read_end_ids(base, tokenizer),
            key=self.read_key(),
            padded_ids=padded_ids(base, tokenizer),
        )

    def _changes_all(self, name: str) -> bool:
        policy = self.config.policies[name]
        changes = name in self.config.trained_policies or policy.opponent_pool is not None
        return changes and policy.adapter is None
