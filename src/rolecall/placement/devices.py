"""Says which devices learners and engines use, and which engines take turns with learners."""

from __future__ import annotations

from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.models.devices import device_named, full_name, is_gpu
from rolecall.models.weight_transfer import Direct
from rolecall.placement.gpu_assignment import assign_gpus, gpu_name


def check_devices(config: Config) -> None:
    """Check that this machine has the devices of the config; raises ConfigError otherwise."""
    for name, policy in sorted(config.policies.items()):
        of_learner = f"policies.{name}.learner.device" if policy.learner else "learner.device"
        key = f"policies.{name}.device" if policy.device else of_learner
        try:
            device_named(config.get_device(name))
            if device := config.get_engine(name).first_device:
                key = f"policies.{name}.engine.device" if policy.engine else "engine.device"
                device_named(device)
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from error


def has_seats(config: Config, *, auto: str) -> bool:
    """Return whether ranks and engines get GPUs of a cluster, and not shares of its processors."""
    if not config.cluster.is_remote:
        return False
    named = {full_name(config.get_device(name), auto=auto) for name in config.policies}
    return bool(config.cluster.pools) or any(map(is_gpu, named))


def learner_devices(config: Config, policy: str, *, auto: str) -> list[str]:
    """Return a device for each rank of what trains a policy; its own device if nothing does.

    GPUs of a cluster are named by their pool: cuda:main/0.
    """
    learner, first = config.get_learner(policy), full_name(config.get_device(policy), auto=auto)
    if policy not in config.trained_policies or not learner.is_ranked:
        return [first]
    if has_seats(config, auto=auto):
        seats = assign_gpus(config)[policy]
        return [gpu_name(seats.pool, number) for number in seats.ranks]
    return [f"cuda:{rank}" if is_gpu(first) else first for rank in range(learner.num_ranks)]


def engine_devices(config: Config, policy: str, *, auto: str) -> list[list[str]]:
    """Return the devices of each engine of a policy: the GPUs of vLLM; else the policy's device."""
    engine, first = config.get_engine(policy), full_name(config.get_device(policy), auto=auto)
    if config.is_replicated(policy):
        if not has_seats(config, auto=auto):
            return [[first]] * engine.num_engines
        seats = assign_gpus(config)[policy]
        return [[gpu_name(seats.pool, number) for number in each] for each in seats.engines]
    first = full_name(engine.first_device or first, auto=auto)
    if engine.gpus_per_engine == 1 or not is_gpu(first):
        return [[first]]
    number = int(first.partition(":")[2] or 0)
    return [[f"cuda:{number + offset}" for offset in range(engine.gpus_per_engine)]]


def direct_transfer(config: Config, policy: str, *, auto: str) -> Direct | None:
    """Return how a policy's engines get weights from its learner's devices, if they do.

    Raises ConfigError where some of them share these devices and others do not.
    """
    engine = config.get_engine(policy)
    if policy not in config.trained_policies or not engine.receives_directly:
        return None
    receivers = engine.gpus_per_engine
    mine = set(learner_devices(config, policy, auto=auto))
    theirs = {device for each in engine_devices(config, policy, auto=auto) for device in each}
    on_machines = config.is_replicated(policy) and not has_seats(config, auto=auto)
    if on_machines or not mine & theirs:
        return Direct(receivers, shares_device=False)
    if not theirs <= mine:
        raise ConfigError(
            f"policies.{policy}: its engines share {min(mine & theirs)} with the learner, and not "
            f"{min(theirs - mine)}; write engine.transfer=files"
        )
    return Direct(receivers, shares_device=True)


def takes_turns(config: Config, policy: str, *, auto: str) -> bool:
    """Return whether an engine gives its GPUs back during updates.

    It does where something is updated on one of them and nothing is sampled meanwhile.
    """
    if not config.get_engine(policy).can_sleep or config.trainer.max_staleness:
        return False
    updated = {
        d for name in config.trained_policies for d in learner_devices(config, name, auto=auto)
    }
    if config.critics:
        updated.add(full_name(config.learner.device, auto=auto))
    shared = updated & {d for e in engine_devices(config, policy, auto=auto) for d in e}
    return any(is_gpu(device) for device in shared)
