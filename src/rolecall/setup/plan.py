"""Checks a config as a whole, before data is read and weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rolecall.agents.agent import Parser
from rolecall.algorithms.base import Algorithm
from rolecall.config import registry
from rolecall.config.load import UnreadableError, load
from rolecall.config.schema import Config, Named, RewardConfig
from rolecall.config.user_code_location import locate_definition
from rolecall.core.errors import ConfigError, nearest
from rolecall.core.json_types import Options
from rolecall.core.versions import check_versions
from rolecall.engines.backend import engine_backends
from rolecall.learners.backend import learner_backend
from rolecall.rollout.episodes import Reward
from rolecall.setup import validate_algorithms, validate_options
from rolecall.setup.agents import choose_parser, tool_components
from rolecall.setup.algorithms import make_algorithms
from rolecall.setup.chat_models import check_chat_models, find_named_policies
from rolecall.setup.component import Component, resolve_component
from rolecall.setup.problem_collector import ProblemCollector
from rolecall.setup.rewards import reward_component
from rolecall.setup.validate_external import check_external
from rolecall.setup.validate_options import Problems
from rolecall.setup.validate_placement import check_placement
from rolecall.tools.use import Toolkit
from rolecall.workflows.base import Workflow, workflow


def check_prices(config: Config) -> Problems:
    """Check that each price is of a policy."""
    for name, price in config.prices.items():
        if name not in config.policies:
            near = nearest(name, list(config.policies))
            yield f"prices.{name}: there is no policy {name!r}; {near}"
        elif not (price.prompt or price.completion):
            yield f"prices.{name} has no effect: it names no price; write prompt and completion"


def _check_group_rewards(
    config: Config, rewards: Mapping[str, tuple[Component | Reward, float] | None]
) -> Problems:
    """Check that a reward which compares the attempts at a task has some to compare."""
    if config.rollout.group_size > 1:
        return
    for name, reward in rewards.items():
        kind = reward[0].call if reward and isinstance(reward[0], Component) else None
        if hasattr(kind, "pay_group"):
            yield (
                f"rewards.{name}: it compares the attempts at a task, and there is one "
                "(rollout.group_size); write rollout.group_size=2 or more, or remove the reward"
            )


@dataclass(frozen=True, slots=True)
class Plan:
    """A config whose parts fit, and what its names resolve to. Nothing is made yet."""

    config: Config
    workflow: Workflow
    options: Options  # of the workflow
    environment: Component
    algorithms: dict[str, Algorithm]  # by trainable agent
    parsers: dict[str, Parser | None]  # by agent
    rewards: dict[str, tuple[Component | Reward, float]]  # with their weights
    chat_policies: dict[str, str]  # that rewards and the environment ask, by key
    tools: dict[str, Component | Toolkit]  # by name and options
    trackers: list[Component]


def load_plan(path: Path, overrides: list[str] | None = None, *, is_trained: bool = True) -> Plan:
    """Read a file and check it, and the versions of packages.

    `is_trained`: False for a team that is only played, in which nobody needs to be trainable.

    Raises ConfigError with a line for each problem.

    A wrong entry does not hide what else does not fit, except in its own section, whose problems
    may come from it.
    """
    check_versions()
    try:
        return validate(load(path, overrides), is_trained=is_trained)
    except UnreadableError as error:
        if error.rest is None:
            raise
        _, problems = _examined(error.rest, is_trained=is_trained)
        sections = tuple(key.rpartition(".")[0] or key for key in error.keys)
        more = error.rest.locate_problems(
            line for line in problems if not line.startswith(sections)
        )
        raise ConfigError(*error.problems, *more.problems) from error


def validate(config: Config, *, is_trained: bool = True) -> Plan:
    """Resolve all names and check that the parts fit. Raises ConfigError with all problems."""
    plan, problems = _examined(config, is_trained=is_trained)
    if plan is None:
        raise config.locate_problems(problems)
    return plan


def _examined(config: Config, *, is_trained: bool) -> tuple[Plan | None, list[str]]:
    """Return the plan and no problems, or None and all that does not fit."""
    attempts = ProblemCollector()
    flow = attempts.run(resolve_workflow, config.workflow)
    options = attempts.run(_workflow_options, flow, config.workflow) if flow else None
    environment = attempts.run(
        resolve_component, "environment", config.environment, key="environment"
    )
    algorithms = attempts.run(make_algorithms, config)
    tools = attempts.run(tool_components, config)
    rewards = {
        n: attempts.run(reward_component, n, section) for n, section in config.rewards.items()
    }
    parsers = {n: attempts.run(choose_parser, n, a, flow) for n, a in config.team.items() if flow}
    trackers = [attempts.run(_resolve_tracker, named) for named in config.trackers]
    attempts.note(_check_backends(config, attempts))
    chat_policies: dict[str, str] = {}
    for maker in [environment, *(reward[0] for reward in rewards.values() if reward)]:
        chat_policies |= find_named_policies(maker) if isinstance(maker, Component) else {}
    used = {*chat_policies.values(), *_texts_of_wrong_sections(config, environment, rewards)}
    attempts.note(validate_options.check_config(config, used, is_trained=is_trained))
    attempts.note(check_chat_models(config, chat_policies, used))
    attempts.note(check_placement(config))
    attempts.note(_check_bases(config))
    attempts.note(check_prices(config))
    attempts.note(_check_group_rewards(config, rewards))
    if flow is not None:
        attempts.note(validate_options.check_roles(config, flow))
    if flow is not None and algorithms is not None:
        attempts.note(validate_algorithms.check_needs(config, flow, algorithms))
        attempts.note(check_external(config, flow, algorithms))
    if flow is None or options is None or environment is None or attempts.problems:
        return None, attempts.problems
    assert algorithms is not None
    assert tools is not None
    plan = Plan(
        config=config,
        workflow=flow,
        options=options,
        environment=environment,
        algorithms=algorithms,
        parsers=parsers,
        rewards={name: reward for name, reward in rewards.items() if reward is not None},
        chat_policies=chat_policies,
        tools=tools,
        trackers=[tracker for tracker in trackers if tracker is not None],
    )
    return plan, []


def _texts_of_wrong_sections(
    config: Config, environment: Component | None, rewards: Mapping[str, object]
) -> set[str]:
    """Return the texts of sections whose options are wrong; they may be names of policies."""
    wrong: list[Named | RewardConfig | float] = [] if environment else [config.environment]
    wrong += [section for name, section in config.rewards.items() if rewards[name] is None]
    options = [section.options for section in wrong if not isinstance(section, float)]
    return {value for section in options for value in section.values() if isinstance(value, str)}


def resolve_workflow(named: Named) -> Workflow:
    """Return the workflow of a name; raises ConfigError for an unknown name and for no workflow."""
    resolved = registry.resolve("workflow", named.name, key="workflow.name")
    try:
        flow = resolved if isinstance(resolved, Workflow) else workflow(resolved)
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"workflow.name: {error}") from error
    if not flow.answers:
        raise ConfigError(
            f"workflow.name: {named.name!r} ({locate_definition(flow.play)}) returns nothing, so "
            "no episode has an answer; write `return turn` with the turn that answers, or "
            "`return None` where the world needs no answer"
        )
    return flow


def _workflow_options(flow: Workflow, named: Named) -> Options:
    return registry.check_options(flow.play, named.options, key="workflow", skip=3)


def _resolve_tracker(named: Named) -> Component:
    return resolve_component("tracker", named, key="trackers", name_key="trackers", skip=1)


def _check_backends(config: Config, attempts: ProblemCollector) -> Iterator[str]:
    """Let each kind of engine and learner say what it cannot do with this config."""
    for backend in attempts.run(engine_backends, config) or []:
        attempts.run(backend.check_options)
        yield from backend.check()
    for name in sorted(config.policies):
        learner = attempts.run(learner_backend, config, name)
        if learner is not None:
            attempts.run(learner.check_options)
            yield from learner.check()


def _check_bases(config: Config) -> Iterator[str]:
    for name, policy in sorted(config.policies.items()):
        if not policy.base and config.get_engine(name).takes_weights:
            yield f"policies.{name}.base: missing; write a model's folder, hub name or tiny:NAME"
