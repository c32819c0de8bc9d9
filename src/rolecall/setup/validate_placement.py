"""Says where engines, learners and devices of the policies do not fit together."""

from __future__ import annotations

from collections.abc import Iterator

from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.placement.gpu_assignment import assign_gpus

Problems = Iterator[str]


def check_placement(config: Config) -> Problems:
    """Check everything that does not depend on this machine."""
    for name in sorted(config.policies):
        yield from _check_dtypes(config, name)
        yield from _check_quantization(config, name)
        yield from _check_opponents(config, name)
        yield from _check_replicas(config, name)
        yield from _check_transfer(config, name)
        yield from _check_pool(config, name)
    yield from _check_pools(config)
    yield from _check_sharing(config)
    yield from _check_budgets(config)
    if config.trainer.deterministic and not config.is_exact:
        agents = {agent.policy for agent in config.team.values()}
        sections = map(config.get_engine, config.policies.keys() & agents)
        others = sorted({section.label or section.name for section in sections} - {"local"})
        yield (
            f"trainer.deterministic: what {' and '.join(others)} says of a seed "
            "depends on what it samples beside it; leave it out, or set engine.name=local"
        )


def _check_quantization(config: Config, name: str) -> Problems:
    """Weights of few bits are frozen, and whoever computes with them must be in this process."""
    policy, engine = config.policies[name], config.get_engine(name)
    key = f"policies.{name}.quantization"
    if policy.quantization == "none":
        return
    if name in config.trained_policies and policy.adapter is None:
        yield (
            f"{key}: weights of {policy.quantization} cannot be trained; train an adapter beside "
            f"them (policies.{name}.adapter.rank=32), or write none"
        )
    if policy.opponent_pool is not None and policy.adapter is None:
        yield f"{key}: earlier weights of another policy cannot be put into it; write none"
    if policy.base.startswith("tiny:"):
        yield f"{key}: {policy.base} takes a few megabytes as it is; write none"
    if not engine.is_embedded:
        yield (
            f"{key}: {engine.label or engine.name} samples with weights of its own, which are not "
            f"rounded like these; write none, or {config.get_section_key(name, 'engine')}"
            ".name=local"
        )
    if name in config.trained_policies and config.is_ranked(name):
        yield (
            f"{key}: a base of {policy.quantization} is trained in this process only; write none, "
            f"or {config.get_section_key(name, 'learner')}.name=local"
        )


def _check_opponents(config: Config, name: str) -> Problems:
    """Check that a pool of opponents can keep weights of this process.

    Those are the weights of a learner here, or those that a ranked one publishes to an engine here.
    """
    pool = config.policies[name].opponent_pool
    if pool is None or pool.of not in config.trained_policies or pool.of not in config.policies:
        return
    of, engine = pool.of, config.get_engine(pool.of)
    if config.is_ranked(of) and (config.is_replicated(of) or not engine.is_embedded):
        by = "the cluster" if config.is_replicated(of) else engine.label or engine.name
        or_else = f", or {config.get_section_key(of, 'engine')}.name=local"
        yield (
            f"policies.{name}.opponent_pool.of: {of!r} is trained on ranks and sampled by "
            f"{by}, so no weights of it are in this process to be kept; set "
            f"{config.get_section_key(of, 'learner')}.name=local"
            f"{'' if config.is_replicated(of) else or_else}"
        )


def _check_replicas(config: Config, name: str) -> Problems:
    engine = config.get_engine(name)
    if engine.num_engines > 1 and not config.is_replicated(name):
        yield (
            f"{config.get_section_key(name, 'engine')}.replicas: several engines of a policy need "
            "processes of a cluster; set cluster.name=ray, or write 1"
        )


def _check_transfer(config: Config, name: str) -> Problems:
    """Check that a learner's devices can send to engines that are told to receive."""
    engine, key = config.get_engine(name), f"{config.get_section_key(name, 'engine')}.transfer"
    if not engine.receives_directly or name not in config.trained_policies:
        return
    if config.policies[name].adapter is not None:
        yield f"{key}: {name!r} is an adapter, which engines read from files; write files"
    elif config.is_embedded(name):
        yield f"{key}: the embedded engine of this process takes tensors as they are; leave it out"
    elif config.is_replicated(name) and not config.is_ranked(name):
        yield (
            f"{key}: the learner of {name!r} is in the trainer's process, which is to send no "
            f"weights to machines; write files, or {config.get_section_key(name, 'learner')}"
            ".name=fsdp"
        )


def _check_pool(config: Config, name: str) -> Problems:
    """Check that a policy can use the pool that it names."""
    policy, key, cluster = config.policies[name], f"policies.{name}", config.cluster
    pools = cluster.pools
    has_actors = config.is_replicated(name) or (
        name in config.trained_policies and config.is_ranked(name)
    )
    if policy.pool is not None and policy.pool not in pools:
        choices = f"there are {', '.join(pools)}" if pools else "cluster.pools has none"
        yield f"{key}.pool: there is no pool {policy.pool!r}; {choices}"
    elif not cluster.is_remote or not has_actors:
        if policy.pool is not None or policy.colocate:
            yield (
                f"{key}.{'pool' if policy.pool else 'colocate'} has no effect: neither its engine "
                "nor its learner is in processes of a cluster; remove it"
            )
    elif policy.pool is None and len(pools) > 1:
        yield f"{key}.pool: say which of the pools it uses: {', '.join(pools)}"
    if policy.colocate and config.trainer.max_staleness:
        yield (
            f"{key}.colocate: engines that sleep during updates cannot sample ahead; write "
            "trainer.max_staleness=0, or colocate=false"
        )


def _check_pools(config: Config) -> Problems:
    used = {config.get_pool(name) for name in config.policies}
    for unused in sorted(config.cluster.pools.keys() - used):
        yield f"cluster.pools.{unused}: no policy uses it; remove it, or write policies.NAME.pool"
    try:
        assign_gpus(config)
    except ConfigError as error:
        yield from error.problems


def _check_budgets(config: Config) -> Problems:
    """Check that everything with a budget is counted in one process."""
    if not config.cluster.workers:
        return
    counted = [
        config.get_section_key(name, "engine")
        for name in config.policies
        if config.get_engine(name).has_budget
    ]
    for key in dict.fromkeys(counted):
        yield (
            f"cluster.workers: the budget of {key} is counted in one process; write 0 workers, or "
            "no budget"
        )


def _check_dtypes(config: Config, name: str) -> Problems:
    key = config.get_section_key(name, "engine")
    sampling, training = config.sampling_dtype(name), config.get_learner(name).dtype
    if (
        sampling != training
        and name in config.trained_policies
        and not config.weights_are_apart(name)
    ):
        yield (
            f"{key}.dtype: to sample in {sampling} what is trained in {training}, the engine needs "
            f"weights of its own; set {key}.separate_weights=true"
        )


def _check_sharing(config: Config) -> Problems:
    """Adapters of one base share its weights, so they are sampled and trained in one place."""
    firsts: dict[str, str] = {}  # by base
    for name, policy in sorted(config.policies.items()):
        if policy.adapter is None or not policy.base:
            continue
        first = firsts.setdefault(policy.base, name)
        pairs = {
            "engine": (config.get_engine(first), config.get_engine(name)),
            "learner": (config.get_learner(first), config.get_learner(name)),
            "device": (config.get_device(first), config.get_device(name)),
            "pool": (config.get_pool(first), config.get_pool(name)),
            "colocate": (config.policies[first].colocate, policy.colocate),
            "quantization": (config.policies[first].quantization, policy.quantization),
        }
        for key, (one, other) in pairs.items():
            if one != other:
                yield (
                    f"policies.{name}.{key}: adapters of one base share its weights, and "
                    f"policies.{first} has another {key}; write the same for both"
                )
