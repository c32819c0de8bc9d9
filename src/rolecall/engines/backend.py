"""Answers what a run asks of one kind of engine, before there is an engine and to make it.

A config is checked without PyTorch and what engines import: methods that need those import them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rolecall.config import registry
from rolecall.config.engine_section import EngineSection
from rolecall.config.engines import OwnEngineConfig
from rolecall.config.schema import Config
from rolecall.config.user_code_location import UserCallable
from rolecall.core.errors import ConfigError
from rolecall.core.json_types import Options

if TYPE_CHECKING:
    from rolecall.core.interfaces.engine import Engine
    from rolecall.core.interfaces.publisher import FileEngine
    from rolecall.engines.inputs import EngineInputs
    from rolecall.models.memory_needs import Need
    from rolecall.models.sizes import Size


class EngineBackend:
    """One kind of engine, for the policies of a config that share an engine.

    A kind of your own is a subclass, named by `engine.name=path/to/file.py:Class`. It implements
    `make`, whose further arguments are `engine.options`, and whatever else differs from an engine
    that samples the models of this process.
    """

    def __init__(self, config: Config, policies: Sequence[str]) -> None:
        self.config, self.policies = config, list(policies)
        self.section: EngineSection = config.get_engine(self.policies[0])

    @property
    def key(self) -> str:
        """Return the config key of the section."""
        return self.config.get_section_key(self.policies[0], "engine")

    @classmethod
    def sharing_key(cls, config: Config, policy: str) -> tuple[str, ...]:
        """Return what must be equal, beside the section, for policies to share an engine."""
        return ()

    @property
    def hosted_abilities(self) -> frozenset[str]:
        """Return `Engine.can` of an engine in a process of a cluster."""
        return frozenset()

    def check(self) -> Iterator[str]:
        """Yield what does not fit, whatever machine it is: `KEY: what is wrong; what to write`."""
        section = self.section
        if section.is_embedded and not section.runs_on_cluster and self.config.cluster.workers:
            yield (
                f"cluster.workers: {self.key}.name={section.name} samples in the trainer's "
                "process, where workers cannot ask it; write 0"
            )

    def check_machine(self) -> Iterator[str]:
        """Yield what this machine lacks: `KEY: what is missing`."""
        if all(self.config.sampling_dtype(name) != "float16" for name in self.policies):
            return
        from rolecall.models.devices import device_named, is_gpu

        groups = self.devices(auto=str(device_named("auto")))
        for device in sorted({device for group in groups for device in group}):
            if not is_gpu(device):
                yield (
                    f"{self.key}.dtype: float16 needs a GPU, and {device} multiplies it slowly; "
                    "write bfloat16 or float32"
                )

    def devices(self, *, auto: str) -> list[list[str]]:
        """Return the devices of each engine; `auto`: the device that this name stands for."""
        from rolecall.placement.devices import engine_devices

        return engine_devices(self.config, self.policies[0], auto=auto)

    def memory(self, policy: str, size: Size | None, *, auto: str) -> Iterator[Need]:
        """Yield what the engine takes for a policy, beside the models of its process.

        `size`: of the policy's base, if it is known. Weights that are not the learner's own are
        here; a subclass adds its caches.
        """
        from rolecall.models.memory_needs import weight_needs

        config = self.config
        if not (config.is_replicated(policy) or self.has_copy(policy)):
            return
        section, dtype = config.policies[policy], config.sampling_dtype(policy)
        for devices in self.devices(auto=auto):
            for device in devices:
                yield from weight_needs(
                    owner_name(config, policy), size, section.quantization, dtype, device
                )

    def working_memory(self, policy: str, size: Size | None, *, auto: str) -> Iterator[Need]:
        """Yield what a forward pass holds for a moment, on each device."""
        yield from ()

    def make(self, inputs: EngineInputs, **options: Any) -> Engine:
        """Make the engine. Raises ConfigError."""
        raise NotImplementedError

    async def make_hosted(self, inputs: EngineInputs) -> FileEngine:
        """Make the engine in a process of a cluster. Raises ConfigError."""
        raise ConfigError(f"{self.key}.name: this engine cannot run in processes of a cluster")

    def check_options(self) -> Options:
        """Return the options of `make`, in the types that it asks for. Raises ConfigError."""
        return _check_options(self, type(self).make, skip=2)

    def has_copy(self, policy: str) -> bool:
        """Return whether it samples a trained policy with weights that are not the learner's."""
        return policy in self.config.trained_policies and self.config.weights_are_apart(policy)


class EngineClassBackend(EngineBackend):
    """An `Engine` class of the user's, made from `EngineInputs` and from `engine.options`."""

    def __init__(self, config: Config, policies: Sequence[str], engine: UserCallable) -> None:
        super().__init__(config, policies)
        self._engine = engine

    def make(self, inputs: EngineInputs, **options: Any) -> Engine:
        engine: Engine = self._engine(inputs, **options)
        return engine

    def check_options(self) -> Options:
        return _check_options(self, self._engine, skip=1)


def engine_backends(config: Config) -> list[EngineBackend]:
    """Return one backend for each engine of a config. Raises ConfigError for an unknown name."""
    sharing: dict[tuple[str, ...], list[str]] = {}
    for name, policy in config.policies.items():
        section = config.get_engine(name)
        key: tuple[str, ...] = (repr(section), str(config.get_pool(name)), str(policy.colocate))
        kind = _resolve(config, name)
        if isinstance(kind, type) and issubclass(kind, EngineBackend):
            key = (*key, *kind.sharing_key(config, name))
        sharing.setdefault(key, []).append(name)
    return [engine_backend(config, names) for names in sharing.values()]


def engine_backend(config: Config, policies: Sequence[str]) -> EngineBackend:
    """Return the backend of policies that share an engine. Raises ConfigError."""
    kind = _resolve(config, policies[0])
    if isinstance(kind, type) and issubclass(kind, EngineBackend):
        return kind(config, policies)
    return EngineClassBackend(config, policies, kind)


def _resolve(config: Config, policy: str) -> Any:
    key = config.get_section_key(policy, "engine")
    return registry.resolve("engine", config.get_engine(policy).name, key=f"{key}.name")


def _check_options(backend: EngineBackend, call: UserCallable, *, skip: int) -> Options:
    section = backend.section
    if not isinstance(section, OwnEngineConfig):
        return {}
    options = section.options
    return registry.check_options(call, options, key=f"{backend.key}.options", skip=skip)


def owner_name(config: Config, policy: str) -> str:
    """Return the owner of what an engine takes: adapters of one base are one owner."""
    section = config.policies[policy]
    return f"engine of {section.base if section.adapter else policy}"
