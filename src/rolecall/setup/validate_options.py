"""Says where the parts of a config do not fit, and which options would have no effect.

Each check yields a line for each problem: the key, what is wrong, and what to write instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rolecall.config.evaluation import check_evaluation
from rolecall.config.schema import Config, CurriculumConfig, RewardConfig
from rolecall.core.errors import nearest
from rolecall.core.interfaces.environment import ENDLESS
from rolecall.environments.mixed import Mixture
from rolecall.rewards.coach.rubric_section import explain_most
from rolecall.rollout.task_sampler import TaskSampler
from rolecall.workflows.base import RESERVED, Workflow

Problems = Iterator[str]

LOOKED_AT = 1000  # tasks of a part whose sources say whether it has several


def check_config(
    config: Config, chat_policies: Collection[str] = (), *, is_trained: bool = True
) -> Problems:
    """Check everything that does not depend on the workflow and the algorithms.

    `chat_policies`: those that rewards and the environment name; `is_trained`: False for a team
    that is only played.
    """
    if is_trained and not config.trained_policies:
        yield (
            "team: no agent is trainable, so there is nothing to train; "
            f"set team.{next(iter(config.team))}.trainable=true"
        )
    for name, agent in config.team.items():
        if agent.policy not in config.policies:
            yield (
                f"team.{name}.policy: there is no policy {agent.policy!r}; "
                f"{nearest(agent.policy, list(config.policies))}"
            )
        elif agent.truncation and config.takes_text(agent.policy):
            yield (
                f"team.{name}.truncation: policy {agent.policy!r} is behind an API, and has no "
                "tokenizer here to count with; remove it"
            )
    for name in RESERVED:
        if name in config.team:
            yield f"team.{name}: workflows need this name themselves; choose another"
    if config.trainer.warm_start:
        yield (
            "trainer.warm_start: a single stage has none; write it beside `team`, or add a stage "
            "with algorithm: sft and rollout.data: environment"
        )
    yield from _check_effects(config, chat_policies)
    yield from _check_opponents(config)
    yield from _check_cross_policy(config)
    yield from check_agents_of_rewards(config)
    yield from _check_sampling(config)


def check_roles(config: Config, flow: Workflow) -> Problems:
    """Check that the team has the roles that the workflow calls, and no others."""
    roles = {agent.role or name for name, agent in config.team.items()} | set(config.team)
    lacking = [role for role in flow.roles if role not in roles]
    if lacking:  # others may be superfluous only because these have other names
        yield (
            f"team: workflow {config.workflow.name!r} calls {', '.join(lacking)}, which the team "
            f"lacks (it has: {', '.join(config.team)}); add them, or give an agent that role"
        )
        return
    if flow.calls_others:
        return
    for name, agent in config.team.items():
        if not {name, agent.role or name} & set(flow.roles):
            yield (
                f"team.{name}: workflow {config.workflow.name!r} never calls it "
                f"(it calls: {', '.join(flow.roles)})"
            )


def _check_effects(config: Config, chat_policies: Collection[str]) -> Problems:
    """Check for options without effect, which say something about the run that is not so."""
    trained = config.trained_policies
    for name, policy in config.policies.items():
        users = [
            agent
            for agent in config.team.values()
            if name in (agent.policy, agent.cross_policy and agent.cross_policy.policy)
        ]
        if not users and name not in chat_policies:
            yield (
                f"policies.{name}: no agent speaks with it, and no reward or environment names it; "
                "remove it, or name it as team.AGENT.policy"
            )
        if name not in trained and policy.adapter is not None:
            yield (
                f"policies.{name}.adapter has no effect: no agent that speaks with it is "
                "trainable; remove it"
            )
    shared = len(trained) < sum(agent.trainable for agent in config.team.values())
    if config.metrics.grad_norm_every is not None and not shared:
        yield (
            "metrics.grad_norm_every has no effect: no policy is shared, so every step's "
            "gradient norm is an agent's own; remove it"
        )
    yield from _check_rewards(config)
    yield from _check_trackers(config)
    yield from check_evaluation(config.evaluation)
    counted = config.evaluation.agent
    if counted is not None and counted not in config.team:
        near = nearest(counted, [*config.team])
        yield f"evaluation.agent: there is no agent {counted!r}; {near}"


def _check_rewards(config: Config) -> Problems:
    """Check weights: a reward of weight 0 beside others is measured and not paid; alone it leaves
    nothing to learn.
    """
    weights = {
        name: reward.weight if isinstance(reward, RewardConfig) else reward
        for name, reward in config.rewards.items()
    }
    if weights and not any(weights.values()):
        yield (
            f"rewards.{next(iter(weights))}: all weights are 0, so nothing is paid; write another "
            "weight, or remove it where the workflow pays"
        )


def _check_trackers(config: Config) -> Problems:
    for number, tracker in enumerate(config.trackers):
        if tracker in config.trackers[:number]:
            yield (
                f"trackers.{number}: {tracker.name} gets everything already, as an earlier one of "
                "the list; remove it"
            )


def check_agents_of_rewards(config: Config) -> Problems:
    """Check that the options of a coach and of `own_answers` name agents, and a coach's caps."""
    for name in ("coach", "checked_steps", "own_answers"):
        reward = config.rewards.get(name)
        options = reward.options if isinstance(reward, RewardConfig) else {}
        view = options.get("view")
        options |= {f"view.{k}": v for k, v in view.items()} if isinstance(view, dict) else {}
        rubric, caps = options.get("rubric"), options.get("caps")
        if isinstance(rubric, dict):
            options["rubric.agents"] = rubric.get("agents")
        bounds = {f"caps.{n}": cap for n, cap in enumerate(caps if isinstance(caps, list) else ())}
        bounds = {key: cap for key, cap in bounds.items() if isinstance(cap, dict)}
        for key, cap in bounds.items():
            options[f"{key}.agents"] = cap.get("agents")
            most, scale = cap.get("most"), options.get("scale", 10)
            if isinstance(most, int | float) and scale in (1, 10) and most >= scale:
                yield f"rewards.{name}.{key}.most: {explain_most(most, scale)}"
        named = [f"{key}.agents" for key in bounds]
        named += ["show_to", "view.ground_truth_roles", "view.team", "rubric.agents", "printed"]
        for key in named:
            agents = options.get(key)
            if isinstance(agents, str) or not isinstance(agents, Collection):
                continue  # types are checked elsewhere
            for agent in agents:
                if agent not in config.team:
                    near = nearest(agent, [*config.team])
                    yield f"rewards.{name}.{key}: there is no agent {agent!r}; {near}"


def _check_opponents(config: Config) -> Problems:
    """Check that earlier weights can be kept and played as an opponent pool."""
    for name, policy in config.policies.items():
        if policy.opponent_pool is None:
            continue
        key, of = f"policies.{name}.opponent_pool", policy.opponent_pool.of
        if name in config.trained_policies:
            changes = " ".join(
                f"team.{agent}.trainable=false"
                for agent, section in config.team.items()
                if section.policy == name and section.trainable
            )
            yield f"{key}: agents that play earlier weights cannot be trained; set {changes}"
        if of not in config.trained_policies or of not in config.policies:
            yield f"{key}.of: {of!r} is no policy that is trained"
            continue
        if policy.base != config.policies[of].base:
            yield f"policies.{name}.base: must be that of {of!r}, whose earlier weights it plays"
        if config.policies[of].adapter is not None:
            yield (
                f"{key}: earlier weights of an adapter are not kept; remove "
                f"policies.{of}.adapter to train all weights"
            )
        if config.trainer.max_staleness:
            yield f"{key}: rollouts that run ahead have no opponents; set trainer.max_staleness=0"


def _check_cross_policy(config: Config) -> Problems:
    for name, agent in config.team.items():
        if agent.cross_policy is None:
            continue
        key, other = f"team.{name}.cross_policy", agent.cross_policy.policy
        pool = config.policies[other].opponent_pool if other in config.policies else None
        if not agent.trainable:
            yield f"{key} has no effect: it is not trainable"
        elif pool is None or pool.of != agent.policy:
            yield (
                f"{key}.policy: {other!r} does not hold earlier weights of {agent.policy!r}; set "
                f"policies.{other}.opponent_pool.of={agent.policy}"
            )


def check_task_sampler(config: Config, sampler: TaskSampler) -> Problems:
    """Check that a step finds enough tasks, and that what is to steer the draw does so."""
    rollout, total = config.rollout, len(sampler.train)
    if rollout.data is not None:
        for option in ("curriculum", "stratify"):
            if getattr(rollout, option):
                yield f"rollout.{option} has no effect with rollout.data; remove it"
    if rollout.groups > total:
        yield (
            f"rollout.groups: a step of {rollout.groups} tasks cannot be sampled from {total} "
            f"train tasks; write at most {total}"
        )
    if rollout.curriculum is not None:
        yield from _check_curriculum(rollout.curriculum, sampler)
    for name, most in sampler.largest_counts(min(config.trainer.steps, 1000)).items():
        if name and most > len(sampler.parts[name]):
            yield (
                f"rollout.groups: a step takes up to {most} tasks of {name!r}, which has "
                f"{len(sampler.parts[name])}; write a smaller number"
            )


def _check_curriculum(curriculum: CurriculumConfig, sampler: TaskSampler) -> Problems:
    """Check a curriculum: `by: task` needs tasks that come again, the others something to tell
    apart.
    """
    parts = sampler.parts
    if curriculum.by == "task":
        endless = [name for name, tasks in parts.items() if len(tasks) >= ENDLESS]
        if endless:
            yield (
                "rollout.curriculum.by: train tasks without end"
                + (f" (those of {', '.join(endless)})" if endless != [""] else "")
                + " do not come again, so none has a pass rate of its own; use source or family"
            )
    elif curriculum.by == "source":
        looked = [{task.source for task in tasks[:LOOKED_AT]} for tasks in parts.values()]
        if all(len(sources) < 2 for sources in looked):
            yield (
                "rollout.curriculum.by: source has no effect: there is one source to sample from; "
                "use task"
            )
    elif not (isinstance(sampler.train, Mixture) and sampler.train.label == "family"):
        yield "rollout.curriculum.by: only a mixed environment has families; use task or source"
    if sampler.groups == len(sampler.train):
        yield (
            "rollout.curriculum has no effect: every step takes all train tasks; "
            "remove it, or write a smaller rollout.groups"
        )


def _check_sampling(config: Config) -> Problems:
    allowed = config.rollout.allow_filtered_sampling
    filtered = [n for n, a in config.team.items() if a.trainable and a.sampling.is_filtered]
    for name in filtered:
        if config.team[name].sampling.temperature == 0:
            yield f"team.{name}.sampling.temperature: a trained agent must sample; write above 0"
        elif not allowed:
            yield (
                f"team.{name}.sampling: top_p and top_k make the sampler another distribution "
                "than the one trained; set rollout.allow_filtered_sampling=true to do it anyway"
            )
    if allowed and not filtered:
        yield "rollout.allow_filtered_sampling has no effect: nothing is filtered; remove it"


def unknown_agents(config: Config, agents: list[str], *, key: str) -> list[str]:
    """Return a problem for each agent that is not there, or that nobody trains."""
    trained = [agent for agent, section in config.team.items() if section.trainable]
    return [
        f"{key}: no trained agent {name!r}; write one of: {', '.join(trained)}"
        for name in agents
        if name not in trained
    ]
