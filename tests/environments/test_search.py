"""A world answers searches with documents and scores the answer of the workflow's last text."""

from __future__ import annotations

import asyncio
import json

import pytest

from rolecall.agents.agent import Policy
from rolecall.core.interfaces.engine import Sampling
from rolecall.core.interfaces.tool import ToolError
from rolecall.core.types import Episode, Task
from rolecall.engines.scripted import ScriptedEngine
from rolecall.environments.search.environment import NOTICE, SearchEnvironment
from rolecall.models.loading import load_tokenizer
from rolecall.retrieval.base import SearchError
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.rollout.group_player import collect
from rolecall.runtime.call_tree import task_factory
from rolecall.workflows.base import workflow
from tests.retrieval.foreign import echo, nobody, serving
from tests.toy import agent


@pytest.fixture(scope="module")
def environment():
    return SearchEnvironment()


def steps(environment, task, *actions):
    async def main():
        world = environment.open(task, seed=0)
        await world.reset()
        return world, [await world.step("searcher", action) for action in actions]

    return asyncio.run(main())


def score(environment, task, answer, **notes):
    episode = Episode("e", task, 0, 0, answer=answer, **notes)
    return asyncio.run(environment.open(task, seed=0).score(episode))["team"]


def test_a_demonstrator_reaches_every_kind_of_answer_through_searches(environment):
    for hops in ("1 hop", "2 hops", "3 hops"):
        task = next(t for t in environment.tasks("train") if t.info["source"] == hops)
        actions = [f"<search>{query}</search>" for query in task.info["queries"]]
        _, seen = steps(environment, task, *actions, f"<answer>{task.answer}</answer>")
        for observation, step in zip(seen, task.info["steps"], strict=False):
            assert step in observation.text
            assert not observation.done
        assert (seen[-1].done, seen[-1].team) == (True, 1.0)


def test_an_agent_with_the_worlds_tools_finds_what_a_search_finds(environment):
    task = environment.tasks("train")[0]
    [query, *_] = task.info["queries"]
    _, [seen] = steps(environment, task, f"<search>{query}</search>")
    [search] = environment.open(task, seed=0).tools()
    assert asyncio.run(search.call(query=query)) == seen.text
    with pytest.raises(ToolError):
        asyncio.run(search.call(query=" "))


def test_a_search_shows_topk_documents_between_tags(environment):
    task = environment.tasks("train")[0]
    query = task.info["queries"][0]
    _, [seen] = steps(environment, task, f"I look.\n<search> {query}\n</search>")
    lines = seen.text.splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("<information>", "</information>", 5)
    assert lines[1].startswith(f"Doc 1 (Title: {query}) ")
    assert seen.info["query"] == query
    assert seen.info["passages"][0] == task.info["passages"][0]


@pytest.mark.parametrize(
    "action",
    ["", "zel", "<search></search>", "<search> \n</search>", "<search>a", "</search>a<search>",
     "<think><search>a</search></think>"],
)  # fmt: skip
def test_an_action_without_words_to_search_for_is_answered_with_a_notice_and_counted(
    environment, action
):
    task = environment.tasks("train")[0]
    world, [seen] = steps(environment, task, action)
    assert (seen.text, seen.done) == (NOTICE, False)
    episode = Episode("e", task, 0, 0)
    asyncio.run(world.score(episode))
    assert episode.metrics == {"count/search_queries": 0.0, "count/search_refused": 1.0}


def test_a_search_that_finds_nothing_is_a_normal_observation(environment):
    task = environment.tasks("train")[0]
    world, [seen] = steps(environment, task, "<search>zebra</search>")
    assert seen.text == "<information>\nNo document was found.\n</information>"
    assert (world.num_queries, world.num_refused) == (1, 0)


def test_the_last_complete_answer_of_the_final_text_is_scored():
    environment = SearchEnvironment()
    task = Task("t", "Who wrote Emma?", ["Jane Austen", "Austen"])
    for text, value in (
        ("<answer>Jane Austen</answer>", 1.0),
        ("<ANSWER> the austen. </ANSWER>", 1.0),
        ("<answer>Bronte</answer> no: <answer>Austen</answer>", 1.0),
        ("<answer>Austen</answer> no: <answer>Bronte</answer>", 0.0),
        ("<answer>Austen", 0.0),
        ("Austen", 0.0),
        ("", 0.0),
        ("<answer></answer>", 0.0),
        ("<answer>Miss Austen</answer>", 0.0),
    ):
        assert score(environment, task, text) == value, text
    assert score(environment, task, "<answer>Austen</answer>", is_truncated=True) == 0.0


def test_f1_is_a_metric_by_option():
    task = Task("t", "Who wrote Emma?", "Jane Austen")
    assert score(SearchEnvironment(metric="f1"), task, "<answer>Austen</answer>") == pytest.approx(
        2 / 3
    )


def test_forks_go_their_own_way(environment):
    async def main():
        task = environment.tasks("train")[0]
        world = environment.open(task, seed=0)
        await world.step("a", "<search>zel</search>")
        fork = await world.fork()
        seen = [await w.step("a", "<search>bor</search>") for w in (fork, world)]
        assert seen[0] == seen[1]
        await fork.step("a", "")
        assert (world.num_queries, world.num_refused) == (2, 0)
        assert (fork.num_queries, fork.num_refused) == (2, 1)
        await world.become(fork)
        assert world.num_refused == 1

    asyncio.run(main())


@workflow
async def search_once(team, task, world):
    said = await team.solver(task.prompt)
    seen = await world.step("solver", str(said))
    return await team.solver(task.prompt, said, seen)


def context(folder, environment, reply):
    tokenizer = load_tokenizer(str(folder))
    policy = Policy("p", tokenizer, ScriptedEngine(tokenizer, reply))
    agents = {"solver": agent("solver", policy, sampling=Sampling(max_tokens=200))}
    return RolloutContext(agents, search_once, {}, environment, rewards={}, retries=1)


def run(coroutine):
    async def main():
        asyncio.get_running_loop().set_task_factory(task_factory)
        return await coroutine

    return asyncio.run(main())


def test_a_failed_search_is_an_infrastructure_error_of_the_episode_and_no_reward(model_folder):
    environment = SearchEnvironment(url=nobody(), deadline_s=0.2)
    made = context(model_folder, environment, lambda request: "<search>zel</search>")
    tasks = list(environment.tasks("train"))[:2]
    rollout = run(collect(made, tasks, step=1, group_size=2))
    assert rollout.groups == []
    assert set(rollout.failures) <= {"SearchError", "SearchDownError"}
    assert rollout.failures["SearchError"] > 0
    for episode in rollout.unused:
        assert episode.error.startswith("Search")
        assert "team" not in episode.scores
        assert episode.rewards == {}


def test_paths_of_turns_do_not_depend_on_who_searches_first(model_folder):
    environment = SearchEnvironment()
    made = context(model_folder, environment, lambda request: "<search>zel</search>")
    rollout = run(collect(made, list(environment.tasks("train"))[:4], step=1, group_size=2))
    assert {tuple(t.path for t in e.turns) for e in rollout.episodes} == {((0,), (1,))}


def test_a_url_is_searched_and_a_4xx_is_no_reward_of_zero(model_folder):
    task = Task("t", "Who?", "x")
    with serving(echo) as server:
        environment = SearchEnvironment(url=[server.url], topk=2)
        _, [seen] = steps(environment, task, "<search>zel</search>")
        assert seen.text == "<information>\nDoc 1 (Title: zel) says zel\n</information>"
        assert server.bodies[0]["topk"] == 2
    with serving(lambda body, number: (422, "no")) as server:
        environment = SearchEnvironment(url=server.url)
        with pytest.raises(SearchError, match="422"):
            steps(environment, task, "<search>zel</search>")
        made = context(model_folder, environment, lambda request: "<search>bor</search>")
        assert run(play(made, task)).error.startswith("SearchError: ")


def test_files_of_questions_and_of_passages_are_the_user_s_own(tmp_path):
    (tmp_path / "train.jsonl").write_text(
        json.dumps({"question": "who wrote emma", "golden_answers": ["Jane Austen"]})
    )
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": "q", "answer": "a"}))
    (tmp_path / "c.jsonl").write_text(json.dumps({"id": "7", "contents": '"Emma"\nby Jane Austen'}))
    options = {
        "train": str(tmp_path), "test": [str(tmp_path), "generated"],
        "corpus": str(tmp_path / "c.jsonl"), "index": str(tmp_path / "index"),
    }  # fmt: skip
    for _ in range(2):  # the index is built, then opened
        environment = SearchEnvironment(**options, test_size=5)
        [task] = environment.tasks("train")
        assert (task.prompt, task.answer) == ("who wrote emma?", "Jane Austen")
        assert len({t.id for t in environment.tasks("test")}) == 6
        _, [seen] = steps(environment, task, "<search>Emma</search>")
        assert "Doc 1 (Title: Emma) by Jane Austen" in seen.text


def test_generated_options_choose_hops_and_sizes():
    environment = SearchEnvironment(hops=[2], corpus_size=60, test_size=7)
    assert {task.info["source"] for task in environment.tasks("train")} == {"2 hops"}
    assert len(environment.tasks("test")) == 7
    assert len(environment.generated.passages) == 60


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"train": "a.jsonl", "test": "b.jsonl", "hops": [1]}, "no effect"),
        ({"train": "a.jsonl", "test": "b.jsonl", "corpus_size": 100}, "no effect"),
        ({"train": "a.jsonl", "test": "b.jsonl"}, "nothing to search"),
        ({"test": "b.jsonl", "test_size": 5}, "no effect"),
        ({"hops": [4]}, "hops must be"),
        ({"corpus_size": 3}, "passages"),
        ({"topk": 0}, "topk"),
        ({"url": "http://h", "corpus": "c"}, "no effect"),
        ({"train": []}, "empty"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        SearchEnvironment(**options)
