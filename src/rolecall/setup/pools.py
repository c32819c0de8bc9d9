"""Reserves the GPUs of a cluster that a run needs, and looks whether it fits into their memory."""

from __future__ import annotations

from rolecall.cluster.pool import NoRoomError, Pool
from rolecall.cluster.session import RaySession
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.memory.check import check_room
from rolecall.models.devices import full_name, is_gpu
from rolecall.placement.devices import has_seats
from rolecall.placement.gpu_assignment import gpu_name, num_gpus


def make_pools(session: RaySession, config: Config) -> dict[str, Pool]:
    """Make the pools by name; none where actors share processors. Raises ConfigError where there
    are too few GPUs, or where one would hold more than it has.
    """
    auto = session.actor_device("auto")
    if not has_seats(config, auto=auto):
        return {}
    _check_trainer(config, auto=auto)
    sizes = num_gpus(config)
    if (number := sum(sizes.values())) > (there := session.gpus()):
        parts = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ConfigError(
            f"cluster: its engines and ranks need {number} GPUs ({parts}), and Ray has {there}; "
            "write fewer engine.replicas or learner.ranks, or policies.NAME.colocate=true"
        )
    pools = {name: Pool(session, name, size) for name, size in sizes.items()}
    try:
        rooms = {name: pool.memory() for name, pool in pools.items()}
    except NoRoomError as error:
        raise ConfigError(f"cluster: {error}") from error
    memory = {
        gpu_name(name, number): room
        for name, room in rooms.items()
        if room is not None
        for number in range(sizes[name])
    }
    if memory:
        check_room(config, machine=memory)
    return pools


def _check_trainer(config: Config, *, auto: str) -> None:
    """Check that the trainer trains on no GPU that Ray gives away; raises ConfigError otherwise."""
    for name in sorted(config.trained_policies):
        device = full_name(config.get_device(name), auto=auto)
        if not config.get_learner(name).is_ranked and is_gpu(device):
            raise ConfigError(
                f"policies.{name}.learner: the trainer's process would train it on {device}, which "
                "Ray gives to actors; write learner.name=fsdp and learner.ranks=1, or "
                "learner.device=cpu"
            )
