"""The keys of the `cluster` section of a config: the machines that a run uses."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rolecall.config.section import Section


class PoolConfig(Section):
    """GPUs that Ray keeps for a run, on as few machines as it can."""

    gpus: int = Field(ge=1, le=100_000)
    """How many; policies say that they use them (`policies.NAME.pool`)."""


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
    """GPUs by the name of their pool; without any, engines and ranks have GPUs of their own, as
    many as they need."""
    workers: int = Field(0, ge=0, le=65_536)
    """Actors that play the episodes, with their workflows, environments, tools and rewards; 0: the
    trainer's process does."""
    in_flight: Literal["recompute", "finish"] = "recompute"
    """What becomes of answers under way when new weights come (`trainer.max_staleness`): they go on
    with those, which read the conversation again (`recompute`), or end with the weights that they
    began with while further ones wait (`finish`)."""
    restarts: int = Field(3, ge=0, le=1_000_000)
    """How often what has ended is started again before the run stops; each engine counts its own,
    and a step that is done sets the count of the learners back."""
    heartbeat_s: float = Field(10.0, gt=0, le=1e6)
    """Most seconds that an actor may be silent; then it is ended, as if it had died."""
    start_timeout_s: float = Field(300.0, gt=0, le=1e7)
    """Most seconds until Ray has room for an actor and it has started."""


ClusterConfig = Annotated[
    LocalClusterConfig | RayClusterConfig,
    Field(discriminator="name"),
]
