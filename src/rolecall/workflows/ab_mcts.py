"""A workflow that searches a tree of answers: Adaptive Branching Monte Carlo Tree Search.

AB-MCTS-A with several models (2503.04412), as MARS2 (2604.14564) trains it. The root is the task,
and each other node an answer with its score, which is what `World.step` is worth to the team. To
expand the tree, the search begins at the root and draws from two posteriors of the scores there:
that of new answers (`wider`), and that of what came of its children (`deeper`). If the draw for
`wider` is the highest, an agent answers there: the one whose draw is highest among the posteriors
of all scores of each agent. Otherwise the search goes on at the child whose own draw is highest. At
a node without children it always goes wider. A new score is learned by the agent's posterior, by
`wider` of the parent, and on the way to the root by each child and by `deeper` of its parent.

A posterior is a normal distribution with an unknown variance, prior m 0, kappa 1, nu 1, tau^2 .1:
the draw is N(m, s / kappa) with s = nu tau^2 / chi^2(nu). Or it is Beta(.5 + sum of scores, .5 +
sum of (1 - score)).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

from pydantic import NonNegativeFloat, PositiveInt

from rolecall.agents.agent import Said
from rolecall.agents.parsers import parse_boxed
from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow
from rolecall.workflows.thompson import KINDS, Kind, Posterior, choose

REFINE = "The answer scores {score} of 1. Write a better one."


@dataclass(slots=True)
class Answer:
    """An answer, and what the world says of it."""

    turn: Turn
    score: float
    seen: str


@dataclass(slots=True)
class Node:
    """A place in the tree at which the search can go wider or deeper."""

    wider: Posterior
    deeper: Posterior
    own: Posterior  # of its score and of those below it
    answer: Answer | None = None  # None: the root
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else 1 + self.parent.depth


class Tree:
    """The answers to one task, and what is known of where the next one belongs."""

    def __init__(self, posterior: Kind, agents: list[str]) -> None:
        self.posterior = KINDS[posterior]
        self.agents: dict[str, Posterior] = {name: self.posterior() for name in agents}
        self.root = self._node()
        self.nodes: list[Node] = []  # in the order of their answers

    def _node(self, answer: Answer | None = None, parent: Node | None = None) -> Node:
        return Node(self.posterior(), self.posterior(), self.posterior(), answer, parent)

    def select(self, team: Team) -> tuple[Node, str]:
        """Return the node below which the next answer belongs, and the agent that gives it."""
        random, node = team.random("expansion", len(self.nodes)), self.root
        while node.children and choose([node.wider, node.deeper], random) == 1:
            node = node.children[choose([child.own for child in node.children], random)]
        return node, list(self.agents)[choose(list(self.agents.values()), random)]

    def add(self, parent: Node, answer: Answer) -> None:
        """Add an answer, whose score is learned on the way to the root."""
        node = self._node(answer, parent)
        node.own.observe(answer.score)
        parent.children.append(node)
        self.nodes.append(node)
        self.agents[answer.turn.agent].observe(answer.score)
        parent.wider.observe(answer.score)
        while parent.parent is not None:
            parent.own.observe(answer.score)
            parent.parent.deeper.observe(answer.score)
            parent = parent.parent

    def gains(self, siblings: float) -> list[float]:
        """Return how far each answer's score is above that of its parent and its siblings.

        The baseline is (1 - siblings) * the parent's score + siblings * the mean of the other
        children's scores; where one of them does not exist, the other alone. Without any it is 0.
        """
        gains = []
        for node in self.nodes:
            assert node.answer is not None
            assert node.parent is not None
            above = node.parent.answer
            others = [other.answer.score for other in node.parent.children
                      if other is not node and other.answer is not None]  # fmt: skip
            if above is not None and others:
                baseline = (1 - siblings) * above.score + siblings * fmean(others)
            elif above is not None or others:
                baseline = above.score if above is not None else fmean(others)
            else:
                baseline = node.answer.score
            gains.append(node.answer.score - baseline)
        return gains


@workflow(parsers={"solver": parse_boxed}, is_group=True)
async def ab_mcts(
    team: Team,
    task: Task,
    world: World,
    nodes: PositiveInt = 8,
    evaluation_nodes: PositiveInt = 1,
    posterior: Kind = "gaussian",
    gain: NonNegativeFloat = 0.0,
    siblings: NonNegativeFloat = 0.5,
    refine: str = REFINE,
) -> str:
    """Let solvers answer anew or improve one of the answers so far, by Thompson sampling.

    Each answer earns its score, so an attempt is a group by itself: set `count: turn` of an
    algorithm that compares, such as `drmas`, and `rollout.group_size: 1`. The newest of the best
    answers is the team's.

    nodes: answers in a tree.
    evaluation_nodes: answers in the tree of an evaluation. Which one is best is what the world
        says, and in maths the world knows the truth: more than one is the score of the best of so
        many answers there.
    posterior: distribution of scores: `gaussian`, or `beta` for scores from 0 to 1.
    gain: multiplier of what an answer earns beside its score, which is its score less a mean of
        those of its parent and of the parent's other children.
    siblings: share of the other children in that mean, 0 to 1.
    refine: words behind an answer that ask for a better one; {score} stands for its score.
    """
    if siblings > 1:
        raise ValueError(f"workflow.siblings is a share from 0 to 1, got {siblings}; use 0.5")
    solvers = {member.agent.name: member for member in team.role("solver")}
    tree = Tree(posterior, list(solvers))
    for _ in range(nodes if team.tries_out else evaluation_nodes):
        parent, agent = tree.select(team)
        turn = await solvers[agent](task.prompt, *_feedback(parent.answer, refine))
        text = "" if turn.finish == "length" else turn.visible
        seen = await world.step(agent, text)
        feedback = "" if seen.text == text else seen.text
        tree.add(parent, Answer(turn, float(seen.team), feedback))
    return _finish(team, tree, gain=gain, siblings=siblings)


def _feedback(answer: Answer | None, refine: str) -> list[Said]:
    """Return what a solver is told of the answer that it improves; nothing at the root."""
    if answer is None:
        return []
    request = refine.replace("{score}", f"{answer.score:.2f}")
    return [answer.turn, "\n\n".join(filter(None, [answer.seen, request]))]


def _finish(team: Team, tree: Tree, *, gain: float, siblings: float) -> str:
    """Pay the answers, note what the tree is like, and return the newest of the best answers."""
    answers = [node.answer for node in tree.nodes if node.answer is not None]
    for node, answer, above in zip(tree.nodes, answers, tree.gains(siblings), strict=True):
        answer.turn.pay("score", answer.score + gain * above)
        answer.turn.info |= {"score": answer.score, "depth": node.depth}
    scores = [answer.score for answer in answers]
    team.episode.metrics |= {
        "tree/mean": fmean(scores),
        "tree/best": max(scores),
        "tree/depth": max(node.depth for node in tree.nodes),
    }
    _, best = max(enumerate(answers), key=lambda entry: (entry[1].score, entry[0]))
    return "" if best.turn.finish == "length" else best.turn.visible
