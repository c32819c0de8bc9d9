"""The keys of the `cluster` section of a config: the machines that a run uses."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rolecall.config.section import Section


class PoolConfig(Section):
    """GPUs that Ray keeps for a run, on as few machines as it can."""

    gpus: int = Field(ge=1, le=100_000)
    """Number of GPUs. Policies use them by `policies.NAME.pool`."""


class LocalClusterConfig(Section):
    """This machine alone."""

    is_remote: ClassVar[bool] = False
    pools: ClassVar[dict[str, PoolConfig]] = {}
    workers: ClassVar[int] = 0
    restarts: ClassVar[int] = 0

    name: Literal["local"] = "local"
    """This machine alone; nothing but the processes that the run starts itself."""


class RayClusterConfig(Section):
    """Machines that Ray joins: `pip install 'rolecall[ray]'`."""

    is_remote: ClassVar[bool] = True

    name: Literal["ray"]
    """Engines and the ranks of learners are actors of Ray."""
    address: str = "auto"
    """`auto` joins the cluster that this machine belongs to, or else starts one here; `local`
    always starts one here; HOST:PORT joins that cluster."""
    pools: dict[str, PoolConfig] = {}
    """Pools of GPUs by name. Without pools, engines and ranks get as many GPUs as they need."""
    workers: int = Field(0, ge=0, le=65_536)
    """Number of actors that play episodes, with workflows, environments, tools and rewards; 0: the
    trainer's process plays them."""
    in_flight: Literal["recompute", "finish"] = "recompute"
    """Treatment of unfinished answers when new weights arrive (`trainer.max_staleness`).
    `recompute`: they continue with the new weights, which read the conversation again. `finish`:
    they end with their old weights, and new requests wait."""
    restarts: int = Field(3, ge=0, le=1_000_000)
    """Most restarts of a lost actor before the run stops. Each engine has its own count; the
    learners' count is reset after each step."""
    heartbeat_s: float = Field(10.0, gt=0, le=1e6)
    """Seconds of silence after which an actor is ended and counts as lost."""
    start_timeout_s: float = Field(300.0, gt=0, le=1e7)
    """Time limit for placing and starting an actor, in seconds."""


ClusterConfig = Annotated[
    LocalClusterConfig | RayClusterConfig,
    Field(discriminator="name"),
]
