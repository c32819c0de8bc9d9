"""Lets agents of several runs play together or against one another, and scores every team.

Consumes built and restored runs, produces a matrix for each agent: its row is the run that the
agent is from, its column the run that all others are from.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, replace
from statistics import fmean

from rolecall.agents.agent import Agent
from rolecall.algorithms.best_of import task_key
from rolecall.config.schema import Config
from rolecall.core.json_types import Record
from rolecall.core.types import Episode
from rolecall.rollout.evaluation import EvaluationOutputs, evaluate
from rolecall.rollout.evaluation_summary import Score, over_tasks
from rolecall.training.run import Run

TEAM = "team"  # whose score it is, where the world scores the team and no agent alone
Team = tuple[str, ...]  # the run that each agent is from, in the order of the team


class Scores:
    """Adds up what episodes of one team scored, as a whole and agent by agent."""

    def __init__(self) -> None:
        self.by_task: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        """By agent, and then by task: ids of tasks are unique within their source alone."""

    def write(self, episodes: list[Episode]) -> None:
        for episode in episodes:
            if episode.error is not None:
                continue
            task = task_key(episode)
            self.by_task[TEAM][task].append(episode.team_score or 0.0)
            for owner, score in episode.scores.items():
                if owner != "team":
                    self.by_task[owner][task].append(score)

    def means(self) -> dict[str, Score]:
        """Return the mean scores over tasks, by agent and as `team`."""
        return {
            name: over_tasks([fmean(values) for values in tasks.values()])
            for name, tasks in self.by_task.items()
        }


def check_fit(configs: dict[str, Config]) -> str:
    """Return why these teams cannot play together, in a line; "" where they can."""
    (first_name, first), *others = configs.items()
    expected = _shape(first)
    if len(expected) < 2:
        [alone] = expected
        return f"{first_name}: {alone!r} is alone in its team; `rolecall compare` compares two runs"
    for name, config in others:
        other = _shape(config)
        if other != expected:
            shown = [", ".join(shape.values()) for shape in (expected, other)]
            return (
                f"{name}: its team ({shown[1]}) has not the agents of {first_name} ({shown[0]}); "
                "name runs whose agents have the same names and roles"
            )
        if config.workflow.name != first.workflow.name:
            return (
                f"{name}: its agents talk in workflow {config.workflow.name!r}, those of "
                f"{first_name} in {first.workflow.name!r}; name runs of one workflow"
            )
    return ""


def _shape(config: Config) -> dict[str, str]:
    """Return `solver`, or `ann as player`, by agent."""
    return {
        name: name if agent.role in (None, name) else f"{name} as {agent.role}"
        for name, agent in config.team.items()
    }


def make_teams(agents: list[str], runs: list[str]) -> list[Team]:
    """Combine each agent of each run with all others of each run; every team once."""
    teams = [
        tuple(row if agent == one else column for agent in agents)
        for one in agents
        for row in runs
        for column in runs
    ]
    return list(dict.fromkeys(teams))


def choose_agent(run: Run, name: str) -> Agent:
    """Return the agent of a run that takes the place of an agent.

    Where earlier weights of a policy play there, as opponents in training, the policy's own do now.
    """
    own, pool = run.context.agents[name], run.config.policies[run.config.team[name].policy]
    if pool.opponent_pool is None:
        return own
    of = pool.opponent_pool.of
    trained = next(a for a in run.context.agents.values() if a.policy.name == of)
    return replace(own, policy=trained.policy)


async def play_teams(runs: dict[str, Run], *, agents: list[str]) -> dict[Team, dict[str, Score]]:
    """Return what each team scores on the first run's tasks, in its environment.

    All play from the same seeds. Raises RuntimeError where every episode of a team failed.
    """
    first = next(iter(runs.values()))
    scores_of = {}
    for team in make_teams(agents, list(runs)):
        places = dict(zip(agents, team, strict=True))
        members = {name: choose_agent(runs[places[name]], name) for name in agents}
        scores = Scores()
        context = replace(first.context, agents=members)
        around = EvaluationOutputs(sink=scores)
        await evaluate(context, first.test, first.config.evaluation, around=around)
        scores_of[team] = scores.means()
    return scores_of


def matrices(
    agents: list[str], runs: list[str], found: dict[Team, dict[str, Score]]
) -> list[Record]:
    """Return a matrix for each agent; of two agents whose team is scored as a whole the first one's
    says all.

    `of` says whose score it is: the agent's own where the world gives it one, else the team's.
    """
    own = {one for one in agents if all(one in scores for scores in found.values())}
    tables = []
    for one in agents if own or len(agents) > 2 else agents[:1]:
        of = one if one in own else TEAM
        cells = [
            [found[tuple(row if a == one else column for a in agents)][of] for column in runs]
            for row in runs
        ]
        tables.append(
            {
                "agent": one,
                "others": [agent for agent in agents if agent != one],
                "of": of,
                "runs": runs,
                "mean": [[score.mean for score in line] for line in cells],
                "margin": [[score.margin for score in line] for line in cells],
            }
        )
    return tables


def plain(agents: list[str], found: dict[Team, dict[str, Score]]) -> list[Record]:
    """Return every team with the runs that its agents are from and all its scores."""
    return [
        {
            "from": dict(zip(agents, team, strict=True)),
            "scores": {name: asdict(score) for name, score in sorted(scores.items())},
        }
        for team, scores in found.items()
    ]
