"""ReAd: what a speaker added to the team's return, and proposals that are sent back."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
import torch

from rolecall.algorithms.read import ReAd, Refiner, episode_return
from rolecall.config.load import load
from rolecall.config.optimizer import Optimizer
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.core.types import Episode, Turn
from rolecall.critics.prefixes import PrefixCritic, prefixes
from rolecall.learners.packing import join
from rolecall.runtime.turn_order import turns_known_before
from rolecall.setup.plan import validate
from rolecall.workflows.base import workflow
from tests.algorithms.test_every_algorithm import case, train
from tests.toy import command, episode, language_model, turn, write
from tests.workflows.teams import play_team, shown, turns_of

PAYOFF = [[0.0, 2.0], [2.0, -1.0]]


def critic_of(folder, **options) -> PrefixCritic:
    made = {"budget": 4000, "total_updates": 10_000} | options
    return PrefixCritic(language_model(folder), Optimizer(lr=3e-3), **made)


def game(number: int, *actions: int, reward: float = 0.0) -> Episode:
    """The first speaks, then the second, who heard it."""
    turns = []
    for place, (agent, action) in enumerate(zip(("left", "right"), actions, strict=False)):
        made = turn(agent, episode=f"x:{number}", path=(place,))
        made.text, made.parents = "ab"[action], tuple(t.id for t in turns)
        turns.append(made)
    return episode(number, turns, {"team": reward})


def whole_game() -> list[Episode]:
    """Each joint action as often as it is likely with P(1) = .3."""
    times = {(0, 0): 49, (0, 1): 21, (1, 0): 21, (1, 1): 9}
    played = [actions for actions, number in times.items() for _ in range(number)]
    return [game(n, *a, reward=PAYOFF[a[0]][a[1]]) for n, a in enumerate(played)]


@pytest.mark.evidence
def test_the_critic_learns_what_each_speaker_adds_to_the_matrix_game(model_folder):
    """V .75; A_1(1) .35, A_2(1 | 1) -2.1; A_1(0) -.15, A_2(1 | 0) 1.4."""
    critic, episodes = critic_of(model_folder), whole_game()
    asyncio.run(critic.annotate(episodes))
    assert all(t.training.estimate == 0.0 for e in episodes for t in e.turns), "untrained"
    for _ in range(25):
        ReAd(critic_epochs=10).fit(episodes, critic)
    asyncio.run(critic.annotate(episodes))
    added = {
        tuple("ab".index(t.text) for t in e.turns): [t.training.estimate for t in e.turns]
        for e in episodes
    }
    assert added[1, 1] == pytest.approx([0.35, -2.1], abs=0.1)
    assert added[0, 1] == pytest.approx([-0.15, 1.4], abs=0.1)
    first, *_, last = critic.predict_values(episodes)[-1][:, 0]
    assert first == pytest.approx(0.75, abs=0.1)
    assert sum(added[1, 1]) == pytest.approx(last - first, abs=1e-9), "they telescope"
    under_way = game(200, 1)
    live = asyncio.run(critic.before_and_after(under_way.turns[0], under_way))
    assert live == pytest.approx((0.75, 1.1), abs=0.1)


class Known(PrefixCritic):
    """The matrix game's own numbers in place of a model: V .75, Q(u_1) 1.1 or .6, Q(u_1, u_2)."""

    def __init__(self):
        pass

    def predict_values(self, episodes):
        expected = {"": 0.75, "a": 0.6, "b": 1.1}
        expected |= {"ab"[i] + "ab"[j]: PAYOFF[i][j] for i in (0, 1) for j in (0, 1)}
        found = []
        for one in episodes:
            said = ["".join(t.text for t in one.turns[:n]) for n in range(len(one.turns) + 1)]
            found.append(np.array([[expected[words]] for words in said]))
        return found


def test_a_planner_who_speaks_for_all_is_judged_by_the_joint_plan():
    """Mode J: A = Q(s, u) - V(s), which mode S shares out among the speakers."""
    critic = Known()
    for actions in ((0, 0), (0, 1), (1, 0), (1, 1)):
        joint = PAYOFF[actions[0]][actions[1]] - 0.75
        plan = turn("planner", episode="x:0")
        plan.text = "".join("ab"[action] for action in actions)
        one, two = episode(0, [plan], {}), game(1, *actions)
        assert asyncio.run(critic.before_and_after(plan, one)) == (0.75, joint + 0.75)
        asyncio.run(critic.annotate([one, two]))
        assert plan.training.estimate == joint
        assert sum(t.training.estimate for t in two.turns) == pytest.approx(joint, abs=1e-15)
    by_speaker = [t.training.estimate for t in two.turns]
    assert by_speaker == pytest.approx([0.35, -2.1], abs=1e-15)


@workflow
async def planned(team, task, world):
    return await team.first(task.prompt)


def test_a_joint_plan_that_adds_too_little_goes_back_whole(model_folder):
    """b b would end at -1, where .75 could be expected: A -1.75. a b adds 1.25."""
    judge = Refiner(ReAd(), Known())
    says = {"first": ["bb", "aa", "ab"], "second": ["b"]}
    done = play_team(model_folder, planned, says, agents={"first": {"judge": judge}})
    plans = turns_of(done, "first")
    assert [t.training.estimate for t in plans] == [-1.75, -0.75, 1.25]
    assert [t.chosen for t in plans] == [False, False, True]
    assert "a score of 0.75, and after it -1.00. That is -1.75" in plans[1].messages[-1].content
    assert done.answer == "ab"


def test_agents_that_speak_at_once_are_judged_each_as_if_it_spoke_first():
    left, right = game(0, 1, 1).turns
    left.path, right.path, right.parents = (0, 0), (1, 0), ()
    critic, told = Known(), episode(0, [left, right], {})
    for one in (left, right):
        assert asyncio.run(critic.before_and_after(one, told)) == (0.75, 1.1)


def test_a_proposal_is_worth_the_same_while_the_episode_is_played_and_after_it(model_folder):
    critic, episodes = critic_of(model_folder), whole_game()
    ReAd(critic_epochs=10).fit(episodes, critic)
    done = episodes[-1]
    asyncio.run(critic.annotate([done]))
    for place, one in enumerate(done.turns):
        under_way = episode(99, done.turns[:place], {})
        before, after = asyncio.run(critic.before_and_after(one, under_way))
        assert after - before == pytest.approx(one.training.estimate, abs=1e-5)
        assert abs(after - before) > 1e-4


def test_what_is_said_at_the_same_time_is_not_known_before():
    made = {
        name: turn(name, path=path)
        for name, path in {"first": (0,), "left": (1, 0), "right": (2, 0), "last": (3,)}.items()
    }
    made["last"].parents = (made["left"].id,)
    under_way = episode(0, list(made.values()), {})

    def names(of: str) -> list[str]:
        return [t.agent for t in turns_known_before(made[of], under_way)]

    assert names("right") == ["first"]
    assert names("last") == ["first", "left"]
    made["first"].chosen = False
    assert names("last") == ["left"]
    assert prefixes(under_way)[0] == [made["left"]]
    assert prefixes(under_way)[-1] == []


def test_known_weights():
    read = ReAd(beta=0.5, train=True)
    episodes = [episode(i, [turn(episode=str(i))], {}) for i in range(3)]
    for made, estimate in zip(episodes, (0.35, -2.1, 1e9), strict=True):
        made.turns[0].training.estimate = estimate
    read.credit(episodes)
    weights = [float(made.turns[0].advantages[0]) for made in episodes]
    assert weights == pytest.approx([2.013753, 0.014996, 20.0], abs=1e-6)


def test_turns_count_by_their_weight_and_the_loss_is_a_mean_over_tokens():
    """Two turns of log-probs -1, -2 and -3 with weights 2 and .5: (2 * 3 + .5 * 3) / 3."""
    one, other = turn(tokens=[7, 8]), turn(episode="e2", tokens=[9])
    one.training.estimate, other.training.estimate = math.log(2.0), math.log(0.5)
    read = ReAd(train=True)
    read.credit([episode(0, [one], {"team": 0.0}), episode(1, [other], {"team": 1.0})])
    batch = join([[one], [other]])
    said = {7: -1.0, 8: -2.0, 9: -3.0}
    logprobs = torch.tensor([said.get(token, 99.0) for token in batch.tokens.tolist()])
    loss = read.loss(batch, Outputs(logprobs))
    assert loss.total.item() / loss.count == pytest.approx(2.5)
    ReAd().credit([episode(0, [one], {"team": 0.0})])
    assert one.advantages is None, "the model is frozen"


def test_the_return_is_the_outcome_and_what_was_paid_for_played_turns_alone():
    done = game(0, 0, 1, reward=2.0)
    done.rewards["left"] = 1.0
    done.turns[0].rewards, done.turns[0].training.estimate = {"invalid": -0.25}, 7.0
    refused = turn("right", path=(5,), rewards={"invalid": -9.0})
    refused.chosen = False
    done.turns.append(refused)
    assert episode_return(done) == pytest.approx(2.5 - 0.25)
    assert episode_return(episode(0, [], {"team": 1.0})) == 0.0


class Lengths:
    """A critic that expects one more for each letter of a proposal above three."""

    async def before_and_after(self, turn: Turn, episode: Episode) -> tuple[float, float]:
        assert turn in episode.turns
        return 1.0, 1.0 + len(turn.text) - 3

    def learn(self, episodes, returns, *, epochs):
        return {}


@workflow
async def two(team, task, world):
    first = await team.first(task.prompt)
    return await team.second(task.prompt, first)


def refined(folder, says: list[str], **options) -> Episode:
    judge = Refiner(ReAd(**options), Lengths())
    return play_team(
        folder, two, {"first": says, "second": ["seven"]}, agents={"first": {"judge": judge}}
    )


def test_a_proposal_that_adds_too_little_is_sent_back_with_its_score(model_folder):
    done = refined(model_folder, ["a", "bb", "four"])
    proposals, [second] = turns_of(done, "first"), turns_of(done, "second")
    assert [t.text for t in proposals] == ["a", "bb", "four"]
    assert [t.chosen for t in proposals] == [False, False, True]
    assert [t.training.estimate for t in proposals] == [-2.0, -1.0, 1.0]
    assert [t.index for t in proposals] == [0, 0, 0]
    assert [m.role for m in proposals[1].messages] == ["user", "assistant", "user"]
    assert proposals[1].messages[1].content == "a"
    assert "-2.00" in proposals[1].messages[2].content
    assert "four" in shown(second)
    assert "-2.00" not in shown(second)
    assert second.parents == (proposals[2].id,)


def test_the_last_proposal_is_played_whatever_it_adds(model_folder):
    done = refined(model_folder, ["a", "b", "c", "d", "e"], max_refine=3)
    assert [t.text for t in turns_of(done, "first")] == ["a", "b", "c", "d"]
    assert [t.chosen for t in turns_of(done, "first")] == [False, False, False, True]
    assert done.answer == "seven"


def test_what_adds_enough_is_played_at_once(model_folder):
    assert len(turns_of(refined(model_folder, ["abc"]), "first")) == 1
    assert len(turns_of(refined(model_folder, ["abc", "abcd"], epsilon=0.5), "first")) == 2


@pytest.mark.evidence
def test_weights_stay_while_the_critic_learns_whom_to_send_back(model_folder, tmp_path):
    """A whole run: it is not stopped for want of updates, and evaluations refine too."""
    config = case(model_folder, "read", trainer={"steps": 4, "idle_steps": 2})
    config["algorithm"] = {"name": "read", "epsilon": 0.001}
    config["evaluation"] = {"tasks": 2, "samples": 2, "k": 2}
    last = train(config, tmp_path / "run").last
    assert last["step"] == 4
    assert np.isfinite(last["critic/loss"])
    assert not any(name.endswith("/grad_norm") for name in last)


def test_the_command_ends_well_where_the_critic_alone_has_learned(model_folder, tmp_path):
    config = case(model_folder, "read", trainer={"steps": 1})
    config["algorithm"] = "read"
    assert command("train", write(tmp_path / "c.yaml", config), "--output", tmp_path / "run") == 0


def test_an_agent_with_tools_is_not_judged(model_folder, tmp_path):
    config = case(model_folder, "read")
    config["team"]["last"]["tools"] = {"use": ["calculator"]}
    with pytest.raises(ConfigError, match="read judges whole answers; remove them"):
        validate(load(write(tmp_path / "run.yaml", config)))
