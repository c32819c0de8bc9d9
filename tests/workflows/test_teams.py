"""Each team: who speaks, who sees what, what it earns, and what a bad word of one does."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest

from rolecall.algorithms.dapo import Dapo
from rolecall.algorithms.leader_only import LeaderOnly
from rolecall.core.interfaces.environment import Observation, World
from rolecall.grading.math.answers import extract
from rolecall.rewards.correct import correct
from rolecall.tools.functions import tool
from rolecall.tools.use import Stateless, ToolUse
from rolecall.workflows.actor_critic import actor_critic
from rolecall.workflows.base import workflow
from rolecall.workflows.chain import chain
from rolecall.workflows.debate import debate
from rolecall.workflows.graph import Sees, graph
from rolecall.workflows.leader_and_peers import leader_and_peers
from rolecall.workflows.majority_vote import majority_vote
from rolecall.workflows.mathchat import mathchat
from rolecall.workflows.mixture import mixture
from rolecall.workflows.multi_turn import multi_turn
from rolecall.workflows.pioneer_observer import pioneer_observer
from rolecall.workflows.planner_workers import planner_workers
from rolecall.workflows.search_team import search_team
from tests.workflows.teams import SumWorld, play_team, shown, turns_of

RIGHT, WRONG = "\\boxed{7}", "\\boxed{8}"
APPROVED = "<verify>approve</verify>"


# --- search team ---


def search(folder, verdicts, queries, **options):
    says = {"verifier": verdicts, "searcher": queries, "answerer": ["<answer>x</answer>"]}
    return play_team(folder, search_team, says, options=options)


def test_the_verifier_sends_to_the_searcher_until_it_knows_enough(model_folder):
    no, yes = "<verify>no</verify>", "<think>sure</think><verify>YES</verify>"
    episode = search(model_folder, [f"Need more. {no}", yes], ["<search>q1</search>"])
    assert [turn.agent for turn in episode.turns] == [
        "verifier",
        "searcher",
        "verifier",
        "answerer",
    ]
    first, query, second, answer = episode.turns
    assert "Step 1 of 4" in shown(first)
    assert "Need more." in shown(query)
    for seen in (second, answer):
        assert "<search>q1</search>" in shown(seen)
        assert "seen: <search>q1</search>" in shown(seen), "what was found"
    assert "Need more." not in shown(answer), "the answerer does not see the verifier"
    assert episode.answer == "<answer>x</answer>"


def test_at_the_last_step_the_answerer_speaks_whatever_the_verifier_thinks(model_folder):
    queries = [f"<search>q{n}</search>" for n in range(3)]
    episode = search(model_folder, ["<verify>no</verify>"] * 3, queries, history=2)
    assert [turn.agent for turn in episode.turns[-2:]] == ["searcher", "answerer"]
    assert "q0" not in shown(episode.turns[-1]), "only the last two searches are shown"
    assert "q1" in shown(episode.turns[-1])


@pytest.mark.parametrize(("last", "agent"), [("no", "verifier"), ("yes", "answerer")])
def test_a_verdict_at_the_last_step_may_leave_the_question_unanswered(model_folder, last, agent):
    verdicts = [f"<verify>{word}</verify>" for word in ("no", "no", last)]
    queries = [f"<search>q{n}</search>" for n in range(2)]
    episode = search(model_folder, verdicts, queries, max_steps=3, last_step="verdict")
    assert [turn.agent for turn in turns_of(episode, "verifier")] == ["verifier"] * 3
    assert "Step 3 of 3" in shown(turns_of(episode, "verifier")[-1])
    assert episode.turns[-1].agent == agent
    assert ("<answer>" in episode.answer) == (last == "yes")


def test_without_a_history_no_search_is_shown(model_folder):
    verdicts, queries = ["<verify>no</verify>"] * 3, [f"<search>q{n}</search>" for n in range(3)]
    episode = search(model_folder, verdicts, queries, history=0)
    assert len(episode.turns) == 7
    assert not any("<search>" in shown(turn) for turn in episode.turns)


@pytest.mark.parametrize(("on_unparsable", "calls"), [("no", 5), ("yes", 2)])
def test_an_unreadable_verdict_counts_as_the_option_says(model_folder, on_unparsable, calls):
    episode = search(
        model_folder, ["<think><verify>yes</verify></think>hm", "<verify>yes</verify>"],
        ["no tag", "<search>q</search>"], on_unparsable=on_unparsable,
    )  # fmt: skip
    assert len(episode.turns) == calls, "a query without its tag is asked for once more"
    assert not episode.turns[0].valid


# --- mathchat ---


@pytest.mark.parametrize("show_solver", [False, True])
def test_the_verifier_sees_what_was_computed_and_not_the_solver(model_folder, show_solver):
    @tool
    async def python(code: str) -> str:
        """Runs code."""
        return f"ran {code.strip()}"

    code = "I compute.\n```python\nprint(3+4)\n```"
    episode = play_team(
        model_folder, mathchat,
        {"solver": ["Add them."], "executor": [code, "It gives 7."], "verifier": [RIGHT]},
        agents={"executor": {"tools": ToolUse((Stateless(python),), format="code", max_calls=1)}},
        options={"show_solver": show_solver},
    )  # fmt: skip
    [verifier] = turns_of(episode, "verifier")
    assert "It gives 7." in shown(verifier)
    assert "ran print(3+4)" in shown(verifier)
    assert ("Add them." in shown(verifier)) == show_solver
    assert episode.scores["team"] == 1.0


def test_without_code_the_verifier_is_told_so(model_folder):
    says = {"solver": ["a"], "executor": ["no code"], "verifier": [RIGHT]}
    [verifier] = turns_of(play_team(model_folder, mathchat, says), "verifier")
    assert "No code was run." in shown(verifier)


# --- chain, actor and critic ---


def test_a_thought_that_the_template_opened_and_the_limit_cut_is_seen_by_nobody(
    model_folder, tmp_path
):
    folder = shutil.copytree(model_folder, tmp_path / "thinks")
    template = folder / "chat_template.jinja"
    asks = "{%- if add_generation_prompt %}{{- '<think>\n' }}{%- endif %}"
    template.write_text(template.read_text() + asks)
    says = {
        "generator": [f"SECRET {RIGHT} thought that is far too long"],
        "verifier": ["hm</think>Look again."],
        "refiner": [f"hm</think>{RIGHT}"],
    }
    episode = play_team(folder, chain, says, max_tokens=20)
    first, critique, refined = episode.turns
    assert first.finish == "length"
    assert first.text.startswith("<think>SECRET")
    assert "SECRET" not in shown(critique) + shown(refined)
    assert "[verifier]\nLook again." in shown(refined)
    assert episode.answer == RIGHT


def test_the_refiner_reads_solution_and_critique_and_has_the_last_word(model_folder):
    says = {"generator": [WRONG], "verifier": ["Look again."], "refiner": [RIGHT]}
    episode = play_team(model_folder, chain, says)
    _, critique, refined = episode.turns
    assert WRONG in shown(critique)
    assert "Look again." in shown(refined)
    assert WRONG in shown(refined)
    assert episode.answer == RIGHT


@pytest.mark.parametrize(
    ("review", "answers"),
    [
        ("Good.\nAPPROVE", 1),
        ("**APPROVE.**", 1),
        ("I APPROVE of the start", 2),
        ("APPROVE\nnot yet", 2),
        ("<think>APPROVE</think>no", 2),
    ],
)
def test_only_approve_on_the_last_line_ends_the_reviews(model_folder, review, answers):
    says = {"actor": ["one", "two"], "critic": [review]}
    episode = play_team(model_folder, actor_critic, says, options={"rounds": 2})
    assert len(turns_of(episode, "actor")) == answers


# --- majority vote and mixture ---

THREE = {"a": "debater", "b": "debater", "c": "debater"}


def vote(folder, says, **options):
    return play_team(folder, majority_vote, says, roles=THREE, options=options)


def test_the_answer_of_most_wins_and_equal_answers_are_one(model_folder):
    says = {"a": [WRONG], "b": [RIGHT], "c": ["\\boxed{7.0}"]}
    episode = vote(model_folder, says, rounds=1)
    assert episode.answer == RIGHT
    assert [turn.payments["own"] for turn in episode.turns] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("texts", "answer"),
    [
        (["\\boxed{1}", "\\boxed{2}", "none"], "\\boxed{1}"),
        (["none", "\\boxed{2}", "\\boxed{1}"], "\\boxed{2}"),
        (["none", "none", "none"], ""),
    ],
)
def test_ties_go_to_who_stands_first_and_no_answer_is_an_abstention(model_folder, texts, answer):
    says = {name: [text] for name, text in zip("abc", texts, strict=True)}
    episode = vote(model_folder, says, rounds=1, earns="outcome")
    assert episode.answer == answer
    abstained = [t.info.get("abstained", False) for t in episode.turns]
    assert abstained == [text == "none" for text in texts]


@pytest.mark.parametrize("contain_self", [True, False])
def test_later_rounds_show_the_others_latest_answers(model_folder, contain_self):
    says = {name: [f"{name}1 {RIGHT}", f"{name}2 {RIGHT}", f"{name}3 {RIGHT}"] for name in "abc"}
    episode = vote(model_folder, says, rounds=3, max_others=1, contain_self=contain_self)
    for name in "abc":
        first, second, third = turns_of(episode, name)
        assert "1" not in shown(first).replace("What is 3+4?", "")
        others = [o for o in "abc" if o != name and f"{o}1" in shown(second)]
        assert len(others) == 1
        assert (f"{name}1" in shown(second)) == contain_self
        assert not any(f"{o}1" in shown(third) for o in "abc")


def test_debaters_are_told_something_else_in_each_round(model_folder):
    says = {name: [RIGHT] * 3 for name in "abc"}
    episode = vote(model_folder, says, rounds=3, asks=("Box it.", "Read the others."))
    last_words = [turn.messages[-1].content for turn in turns_of(episode, "a")]
    assert [words.rpartition("\n")[2] for words in last_words] == [
        "Box it.", "Read the others.", "Read the others.",
    ]  # fmt: skip


def test_the_order_of_others_is_the_episodes_own_and_the_same_again(model_folder):
    says = {name: [f"{name}1 {RIGHT}", RIGHT] for name in "abcd"}
    roles = dict.fromkeys("abcd", "debater")

    def order(attempt):
        episode = play_team(model_folder, majority_vote, says, roles=roles, attempt=attempt)
        text = shown(turns_of(episode, "a")[1])
        return tuple(sorted("bcd", key=lambda o: text.index(f"{o}1")))

    assert order(3) == order(3)
    assert len({order(attempt) for attempt in range(12)}) > 2


def test_the_aggregator_reads_all_proposals_and_proposers_read_the_layer_before(model_folder):
    says = {"a": [f"a1 {WRONG}", f"a2 {RIGHT}"], "b": ["b1", "b2"], "aggregator": [RIGHT]}
    roles = {"a": "proposer", "b": "proposer"}
    episode = play_team(model_folder, mixture, says, roles=roles, options={"layers": 2})
    assert "b1" not in shown(turns_of(episode, "a")[0])
    assert "b1" in shown(turns_of(episode, "a")[1])
    [last] = turns_of(episode, "aggregator")
    assert "a2" in shown(last)
    assert "b2" in shown(last)
    assert "a1" not in shown(last)


# --- answers that are judged by themselves ---


class VerdictWorld(SumWorld):
    """As the world of maths: a verdict on the newest answer leaves the team with what it had."""

    solved = 0.0

    async def fork(self) -> World:
        fork = VerdictWorld()
        fork.solved = self.solved
        return fork

    async def step(self, agent: str, action: str) -> Observation:
        if "<verify>" not in action:
            self.solved = float(extract(action) == "7")
        return Observation(action, team=self.solved)


def test_a_verdict_is_not_paid_as_the_answer_that_stood_before_it(model_folder):
    """An observer that only approved earned the pioneer's score, and learned to answer nothing."""
    says = {"ann": [RIGHT], "ben": [APPROVED]}
    episode = play_team(
        model_folder, pioneer_observer, says, roles=dict.fromkeys(says, "player"),
        world=VerdictWorld,
    )  # fmt: skip
    assert [turn.payments["pair"] for turn in episode.turns] == [1.0, 1.0]
    says = {"a": [RIGHT], "b": [APPROVED], "c": [WRONG]}
    episode = play_team(
        model_folder, majority_vote, says, roles=THREE, options={"rounds": 1}, world=VerdictWorld
    )
    assert [turn.payments["own"] for turn in episode.turns] == [1.0, 0.0, 0.0]


# --- a leader and its peers ---


class ForkedSum(SumWorld):
    async def fork(self) -> World:
        return ForkedSum()


def led(folder, **options):
    says = {
        "leader": [f"l{n} {RIGHT if n % 2 else WRONG}" for n in range(8)],
        "ann": [f"a1 {RIGHT}", f"a2 {RIGHT}"], "ben": [f"b1 {WRONG}", f"b2 {RIGHT}"],
    }  # fmt: skip
    roles = {"ann": "peer", "ben": "peer"}
    agents = {name: {"trainable": False} for name in roles}
    return play_team(
        folder, leader_and_peers, says, roles=roles, agents=agents, options=options,
        world=ForkedSum,
    )  # fmt: skip


def test_the_leaders_answers_read_the_same_words_of_its_peers_and_the_best_is_played(model_folder):
    episode = led(model_folder, candidates=4)
    answers = turns_of(episode, "leader")
    assert len({t.prompt.tobytes() for t in answers}) == 1
    assert "a1" in shown(answers[0])
    assert "b1" in shown(answers[0])
    assert [t.score for t in answers] == [0.0, 1.0, 0.0, 1.0]
    assert [t.chosen for t in answers] == [False, True, False, False]
    assert episode.answer == answers[1].visible
    rule = LeaderOnly(turn_length=10)
    rule.credit([episode])
    assert [float(t.advantages[0]) for t in answers] == [-0.5, 0.5, -0.5, 0.5]
    assert all(t.advantages is None for name in ("ann", "ben") for t in turns_of(episode, name))


def test_peers_revise_after_the_leaders_answer(model_folder):
    episode = led(model_folder, candidates=2, rounds=2)
    first, second = turns_of(episode, "ann")
    assert "l1" not in shown(first)
    assert "l1" in shown(second), "the answer that was played"
    assert "b1" in shown(second)
    last = turns_of(episode, "leader")[-1]
    assert "a2" in shown(last)
    assert "a1" not in shown(last)


# --- debate ---


def judged(folder, verdicts, attempt=0, **options):
    says = {"ann": [f"ann says {n}" for n in range(3)], "bob": [f"bob says {n}" for n in range(3)]}
    roles = {"ann": "debater", "bob": "debater"}
    return play_team(
        folder, debate, says | {"judge": verdicts}, roles=roles, attempt=attempt, options=options
    )


def test_sides_and_names_are_drawn_and_the_judge_knows_neither_agent(model_folder):
    outcomes = set()
    for attempt in range(16):
        episode = judged(model_folder, ["<winner>A</winner>"], attempt=attempt)
        assert episode.error is None
        found = json.loads(episode.answer)
        outcomes.add((found["winner"], found["side"]))
        [judge] = turns_of(episode, "judge")
        assert "[ann]" not in shown(judge)
        assert judge.parents == tuple(t.id for t in episode.turns[:-1])
        speeches = [t for t in episode.turns if t.agent != "judge"]
        assert len(speeches) == 6
        assert "You argue for it." in shown(speeches[0])
        assert speeches[0].agent != speeches[1].agent
        assert speeches[0].visible in shown(speeches[1]), "each sees the whole debate so far"
        label = "A (for)" if found["side"] == "for" else "A (against)"
        assert f"{label}: {found['winner']} says 0" in shown(judge)
    assert len(outcomes) == 4


def test_a_judge_who_names_nobody_is_asked_again_and_then_it_is_an_error(model_folder):
    unclear = ["A was better", "<winner>C</winner>"]
    episode = judged(model_folder, [*unclear, "<winner>tie</winner>"])
    found = json.loads(episode.answer)
    assert found == {"winner": "tie", "side": "", "called": "tie", "debaters": ["ann", "bob"]}
    failed = judged(model_folder, unclear, judge_tries=2)
    assert failed.error == "ValueError: the judge named no winner in 2 tries"
    alone = play_team(model_folder, debate, {"ann": [], "judge": []}, roles={"ann": "debater"})
    assert "needs two agents" in alone.error


# --- planner and workers ---


def test_workers_see_their_subtask_alone_and_the_planner_sees_their_reports(model_folder):
    call = '<use_mcp_tool><server_name>w</server_name><arguments>{"subtask": "third"}</arguments>'
    says = {
        "planner": [
            "<subtask>first</subtask> and <subtask>second</subtask>",
            f"<think><subtask>no</subtask></think>{call}</use_mcp_tool>",
            RIGHT,
        ],
        "ann": ["report one", "report three"],
        "bob": ["report two"],
    }
    roles = {"ann": "worker", "bob": "worker"}
    episode = play_team(model_folder, planner_workers, says, roles=roles)
    assert episode.answer == RIGHT
    first, third = turns_of(episode, "ann")
    [second] = turns_of(episode, "bob")
    assert [shown(t) for t in (first, second, third)] == ["first", "second", "third"]
    plans = turns_of(episode, "planner")
    assert [t.parents for t in (first, third)] == [(plans[0].id,), (plans[1].id,)]
    last = shown(turns_of(episode, "planner")[-1])
    assert [f"report {n}" in last for n in ("one", "two", "three")] == [True] * 3


@pytest.mark.parametrize(
    ("plan", "valid"),
    [
        ("It is 7.", True),
        ("<subtask>a</subtask> and <Subtask>b</subtask>", True),
        ("<think><subtask></think>It is 7.", True),
        ("<subtask>a", False),
        ("<subtask> </subtask>", False),
        ('<use_mcp_tool><arguments>{"subtask": "a"}</arguments></use_mcp_tool>', True),
        ('<use_mcp_tool><arguments>{"subtask": "a"</arguments></use_mcp_tool>', False),
        ('<use_mcp_tool><arguments>{"task": "a"}</arguments></use_mcp_tool>', False),
    ],
)
def test_a_plan_is_valid_if_every_call_in_it_can_be_read(model_folder, plan, valid):
    says = {"planner": [plan, "done"], "worker": ["r", "r"]}
    first, *_ = turns_of(play_team(model_folder, planner_workers, says), "planner")
    assert first.valid == valid


def test_a_call_that_cannot_be_read_is_asked_for_again_and_counts(model_folder):
    bad = "<use_mcp_tool><arguments>{bad</arguments></use_mcp_tool>"
    says = {"planner": [bad, "<subtask>s</subtask>", RIGHT], "worker": ["r"]}
    episode = play_team(model_folder, planner_workers, says)
    assert episode.answer == RIGHT
    assert "could not be read" in shown(turns_of(episode, "planner")[1])
    never = play_team(model_folder, planner_workers, says | {"planner": [bad] * 9},
                      options={"max_calls": 3})  # fmt: skip
    assert len(never.turns) == 4


def test_the_number_of_subtasks_is_limited(model_folder):
    says = {"planner": ["<subtask>s</subtask>" * 5] * 9, "worker": ["r"] * 9}
    options = {"max_calls": 5, "at_once": 2}
    episode = play_team(model_folder, planner_workers, says, options=options)
    assert len(turns_of(episode, "worker")) == 5
    assert len(turns_of(episode, "planner")) == 4
    cut = play_team(model_folder, planner_workers, says, max_tokens=30)
    assert [turn.agent for turn in cut.turns] == ["planner"], "a cut message hands out nothing"


# --- pioneer and observer ---


@pytest.mark.parametrize(
    ("step", "first"), [(0, "a"), (4, "a"), (5, "b"), (9, "b"), (10, "a"), ("test", "a")]
)
def test_roles_swap_every_five_steps(model_folder, step, first):
    says = {"a": [RIGHT], "b": [WRONG]}
    roles = {"a": "player", "b": "player"}
    episode = play_team(model_folder, pioneer_observer, says, roles=roles, step=step)
    assert [turn.agent for turn in episode.turns] == [first, "b" if first == "a" else "a"]
    assert [turn.payments["pair"] for turn in episode.turns] == [1.0, 1.0]
    assert says[first][0] in shown(episode.turns[1])


# --- multi-turn ---


class Stairs(World):
    """Each "up" is a step; two of them end it."""

    def __init__(self) -> None:
        self.height = 0

    async def reset(self) -> Observation:
        return Observation("height 0")

    async def step(self, agent: str, action: str) -> Observation:
        self.height += action == "up"
        paid = float(action == "up")
        return Observation(f"height {self.height}", reward=paid, done=self.height == 2)

    async def score(self, episode) -> dict[str, float]:
        return {"team": float(self.height == 2)}


def test_an_agent_acts_until_the_world_is_done(model_folder):
    says = {"actor": ["up", "down", "up", "up"]}
    episode = play_team(model_folder, multi_turn, says, world=Stairs)
    assert [turn.text for turn in episode.turns] == ["up", "down", "up"]
    assert [turn.world_rewards.get("step") for turn in episode.turns] == [1.0, None, 1.0]
    assert "height 0" in shown(episode.turns[0])
    assert "height 1" in shown(episode.turns[2])
    states = [turn.state for turn in episode.turns]
    assert states[1] == states[2] != states[0]
    few = play_team(model_folder, multi_turn, says, world=Stairs, options={"max_turns": 2})
    assert len(few.turns) == 2


def test_a_long_conversation_is_replaced_by_a_summary_of_the_agent(model_folder):
    says = {"actor": ["down 1", "down 2", "all is down", "down 3", "down 4", "still", "up"]}
    options = {"max_turns": 5, "summarize_every": 2}
    episode = play_team(model_folder, multi_turn, says, world=Stairs, options=options)
    assert [turn.text for turn in episode.turns] == says["actor"]
    summary, after, last = episode.turns[2], episode.turns[3], episode.turns[6]
    assert "down 1" in shown(summary)
    assert "Sum up in a few sentences" in shown(summary)
    assert "all is down" in shown(after)
    assert "height 0" in shown(after)
    assert not any(text in shown(after) for text in ("down 1", "down 2", "Sum up"))
    assert "all is down" not in shown(last)
    assert "still" in shown(last)
    assert summary.id in after.parents
    assert [turn.world_rewards.get("step") for turn in episode.turns] == [None] * 6 + [1.0]


def test_a_conversation_that_ends_first_has_no_summary(model_folder):
    says = {"actor": ["up", "up"]}
    options = {"summarize_every": 2}
    episode = play_team(model_folder, multi_turn, says, world=Stairs, options=options)
    assert [turn.text for turn in episode.turns] == ["up", "up"]


@workflow
async def two_drafts(team, task, world):
    """The solver speaks twice on one observation, and once more on a new one that looks alike."""
    seen = await world.reset()
    draft = await team.solver(seen)
    verdict = await team.verifier(draft)
    await team.solver(draft, verdict)
    return await team.solver(seen)


def test_a_second_turn_on_one_observation_is_not_another_visit_to_its_state(model_folder):
    says = {"solver": ["a", "b", "c"], "verifier": ["no"]}
    states = [turn.state for turn in play_team(model_folder, two_drafts, says, world=Stairs).turns]
    assert states == [states[0], states[0], "", states[0]]
    assert states[0]


# --- graph ---


def drawn(folder, sees, says, **options):
    read = {name: Sees(**seen) for name, seen in sees.items()}
    return play_team(folder, graph, says, options={"sees": read, **options})


def test_a_graph_says_who_reads_whom_now_and_before(model_folder):
    sees = {
        "plan": {"before": ["judge"]}, "left": {"now": ["plan"]}, "right": {"now": ["plan"]},
        "judge": {"now": ["left", "right"], "before": ["judge"]},
    }  # fmt: skip
    says = {name: [f"{name}{number}" for number in (1, 2, 3)] for name in sees}
    episode = drawn(model_folder, sees, says, answer="judge", rounds=3)
    assert episode.answer == "judge3"
    words = {turn.text: shown(turn) for turn in episode.turns}

    def read(text):
        return [other for other in sorted(words) if other in words[text]]

    assert read("plan1") == []
    assert read("left1") == read("right1") == ["plan1"]
    assert read("judge1") == ["left1", "right1"]
    assert read("plan2") == ["judge1"]
    assert read("judge2") == ["judge1", "left2", "right2"]
    assert read("plan3") == ["judge1", "judge2"], "of all rounds before"


@pytest.mark.parametrize(
    ("sees", "answer", "told"),
    [
        ({"a": {"now": ["b"]}, "b": {"now": ["a"]}}, "a", "wait for one another"),
        ({"a": {"now": ["x"]}, "b": {}}, "a", "agent 'x' is not"),
        ({"a": {}, "b": {}}, "y", "agent 'y' is not"),
        ({"a": {}, "b": {}, "z": {}}, "a", "agent 'z' is not"),
        ({"a": {}}, "a", "agent 'b' is not"),
        ({"a": {"before": ["b"]}, "b": {}}, "a", "`before` has no effect"),
    ],
)
def test_a_graph_that_cannot_be_played_is_an_error(model_folder, sees, answer, told):
    episode = drawn(model_folder, sees, {"a": ["1"], "b": ["1"]}, answer=answer)
    assert told in episode.error


# --- who is paid by the workflow is not paid twice ---


@pytest.mark.parametrize(("first", "second"), [(RIGHT, WRONG), (WRONG, RIGHT), (RIGHT, RIGHT)])
def test_pioneer_and_observer_earn_the_sum_of_both_scores(model_folder, first, second):
    roles = {"a": "player", "b": "player"}
    says = {"a": [first], "b": [second]}
    episode = play_team(model_folder, pioneer_observer, says, roles=roles, step=0)
    asyncio.run(pay_correct(episode))
    both = float(first == RIGHT) + float(second == RIGHT)
    assert [episode.total(turn) for turn in episode.turns] == [both, both]
    assert episode.scores["team"] == float(second == RIGHT), "the team's score is still shown"


def test_a_debater_who_is_paid_for_its_own_answer_earns_no_share_of_the_vote(model_folder):
    says = {"a": [WRONG], "b": [RIGHT], "c": [RIGHT]}
    own = vote(model_folder, says, rounds=1)
    asyncio.run(pay_correct(own))
    assert [own.total(turn) for turn in own.turns] == [0.0, 1.0, 1.0]
    outcome = vote(model_folder, says, rounds=1, earns="outcome")
    asyncio.run(pay_correct(outcome))
    assert [outcome.total(turn) for turn in outcome.turns] == [1.0, 1.0, 1.0]


def test_groups_whose_turns_are_paid_by_the_workflow_have_a_signal(model_folder):
    groups = []
    for answers in ((RIGHT, WRONG), (RIGHT, RIGHT)):
        group = []
        for answer in answers:
            says = {"a": [answer], "b": [WRONG], "c": [RIGHT]}
            episode = vote(model_folder, says, rounds=1)
            asyncio.run(pay_correct(episode))
            group.append(episode)
        groups.append(group)
    assert [Dapo(longest=10).keep_group(group) for group in groups] == [True, False]


async def pay_correct(episode) -> None:
    episode.rewards = await correct(episode, World())
