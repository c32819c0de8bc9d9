"""Builds a run from a plan: models, learners, critics, and what connects them."""

from __future__ import annotations

from random import Random

from rolecall.agents.plain_frames import warn_of_plain_frame
from rolecall.algorithms.base import Algorithm
from rolecall.cluster.pool import Pool
from rolecall.cluster.session import RaySession
from rolecall.config.cluster import RayClusterConfig
from rolecall.config.schema import WRITTEN, Config
from rolecall.core.errors import ConfigError
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Group
from rolecall.demonstrations.offline_data import demonstrations, preferences
from rolecall.demonstrations.playing import write_demonstrations
from rolecall.memory.check import check_room
from rolecall.models.devices import device_named
from rolecall.models.language_model import LanguageModel
from rolecall.models.weight_transfer import Direct
from rolecall.placement.devices import check_devices, direct_transfer
from rolecall.rollout.episodes import RolloutContext
from rolecall.rollout.opponent_pool import OpponentPool
from rolecall.rollout.task_sampler import TaskSampler
from rolecall.runtime.call_tree import IdleBarrier
from rolecall.runtime.progress import activity
from rolecall.setup.bases import fetch_known_bases
from rolecall.setup.context import make_context
from rolecall.setup.engines import combine_engines, list_accounts, make_engines
from rolecall.setup.on_cluster import make_pools, make_workers
from rolecall.setup.open_environment import Opened, open_components
from rolecall.setup.plan import Plan
from rolecall.setup.prompt_lengths import context_lengths, drop_long_prompts
from rolecall.setup.ranks import Ranks
from rolecall.setup.run_length import limit_steps
from rolecall.setup.templates import check_templates
from rolecall.setup.weights import (
    load_models,
    load_tokenizers,
    make_critics,
    make_learner,
    policies_in_process,
)
from rolecall.training.algorithm_group import AlgorithmGroup, group_agents
from rolecall.training.publish import WeightPublisher
from rolecall.training.run import Run


def build(plan: Plan) -> Run:
    """Make the parts and connect them. Raises ConfigError, before weights are loaded if it can."""
    fetch_known_bases(plan.config)
    _check_machine(plan.config)
    opened = open_components(plan)
    ranks: Ranks | None = None
    session: RaySession | None = None
    try:
        session = start_session(plan.config)
        gpus = make_pools(session, plan.config) if session is not None else {}
        ranks = Ranks(plan.config, session, gpus)
        with activity("loading models and starting engines and learners"):
            return _connected(plan, opened, ranks, session, gpus)
    except BaseException as error:
        if ranks is not None:
            ranks.close()
        if session is not None:
            session.close()
        if isinstance(error, ConfigError):
            raise plan.config.locate_problems(error.problems) from error
        raise


def _check_machine(config: Config) -> None:
    """Check that the machine has the devices, and room on them, before anything is fetched.

    On a cluster Ray says what each machine has.
    """
    if config.cluster.is_remote:
        return
    try:
        check_devices(config)
        check_room(config)
    except ConfigError as error:
        raise config.locate_problems(error.problems) from error


def start_session(config: Config) -> RaySession | None:
    """Return the cluster that a run uses, if it is another one than this machine alone."""
    section = config.cluster
    return RaySession(section) if isinstance(section, RayClusterConfig) else None


def _connected(
    plan: Plan, opened: Opened, ranks: Ranks, session: RaySession | None, gpus: dict[str, Pool]
) -> Run:
    config = plan.config
    tokenizers = load_tokenizers(config)
    check_templates(config, tokenizers)
    for name, tokenizer in tokenizers.items():
        warn_of_plain_frame(tokenizer, key=f"policies.{name}.base")
    models = load_models(config, policies_in_process(config), tokenizers)
    barrier = IdleBarrier()
    engines = make_engines(config, models, tokenizers, barrier, session, gpus)
    context = make_context(plan, opened, tokenizers, engines, barrier)
    tasks = drop_long_prompts(opened.tasks, config, context.agents, context_lengths(config))
    if session is not None and session.section.workers:
        context.player = make_workers(session, config, engines)
    data = _data(config, plan.algorithms, context, tasks.sampler)
    config.trainer.steps = limit_steps(config, len(data or tasks.sampler.train))
    algorithm_groups = _algorithm_groups(plan, models, context)
    for group in algorithm_groups:
        for name in group.agents:
            context.agents[name].chooser = group.algorithm.chooser(group.critic)
            context.agents[name].judge = group.algorithm.judge(group.critic)
    learners = {
        name: make_learner(plan, name, models, ranks) for name in sorted(config.trained_policies)
    }
    pools = _opponent_pools(config, models)
    return Run(
        config=config,
        context=context,
        sampler=tasks.sampler,
        test=tasks.test,
        validation=tasks.validation,
        engine=combine_engines(engines),
        publisher=WeightPublisher(
            engines,
            models,
            learners,
            pools,
            vocabulary={name: len(tokenizer) for name, tokenizer in tokenizers.items()},
            apart={name for name in config.trained_policies if config.weights_are_apart(name)},
            rounded={name for name in config.trained_policies if config.is_rounded(name)},
            direct=_direct(config),
        ),
        learners=learners,
        opponent_pools=pools,
        algorithms=plan.algorithms,
        algorithm_groups=algorithm_groups,
        accounts=list_accounts(engines),
        data=data,
        session=session,
    )


def _direct(config: Config) -> dict[str, Direct]:
    """Return how the engines on this machine receive weights, by policy."""
    auto = str(device_named("auto"))
    here = [name for name in sorted(config.trained_policies) if not config.is_replicated(name)]
    transfers = {name: direct_transfer(config, name, auto=auto) for name in here}
    return {name: direct for name, direct in transfers.items() if direct is not None}


def _opponent_pools(config: Config, models: dict[str, LanguageModel]) -> dict[str, OpponentPool]:
    """Return the opponent pools by the policy that plays them."""
    return {
        name: OpponentPool(
            models[policy.opponent_pool.of], policy.opponent_pool, seed=config.trainer.seed
        )
        for name, policy in config.policies.items()
        if policy.opponent_pool is not None
    }


def _algorithm_groups(
    plan: Plan, models: dict[str, LanguageModel], context: RolloutContext
) -> list[AlgorithmGroup]:
    groups = group_agents(plan.algorithms)
    for group in groups:
        group.critic, group.discriminator = make_critics(
            plan.config, group.algorithm, models, context.agents
        )
    return groups


def _data(
    config: Config,
    algorithms: dict[str, Algorithm],
    context: RolloutContext,
    sampler: TaskSampler,
) -> list[Group]:
    if config.rollout.data is None:
        return []
    [kind] = {algorithm.takes_data for algorithm in algorithms.values()}
    try:
        if config.rollout.data == WRITTEN:
            groups = _written(config, context, sampler)
        elif kind == "demonstrations":
            in_parts = not any(algorithm.answers_data for algorithm in algorithms.values())
            groups = demonstrations(config.rollout.data, context.agents, in_parts=in_parts)
        else:
            groups = preferences(config.rollout.data, context.agents)
    except ValueError as error:
        raise ConfigError(f"rollout.data: {error}") from error
    if config.rollout.groups > len(groups):
        raise ConfigError(
            f"rollout.groups: a step of {config.rollout.groups} {kind} cannot be sampled from "
            f"{len(groups)} rows; write at most {len(groups)}"
        )
    return groups


def _written(config: Config, context: RolloutContext, sampler: TaskSampler) -> list[Group]:
    """Return as many demonstrations of the environment as the steps train."""
    number, train = config.trainer.steps * config.rollout.groups, sampler.train
    random = Random(derive_seed(config.trainer.seed, "demonstrations"))
    places = random.sample(range(len(train)), min(len(train), 2 * number))
    tools = {
        name: frozenset(tool.name for tool in agent.tools.use)
        for name, agent in config.team.items()
        if agent.tools is not None
    }
    return write_demonstrations(
        context, [train[place] for place in places], number, tools=tools, seed=config.trainer.seed
    )
