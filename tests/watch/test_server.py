"""What the server of the watch page answers of runs whose contents are known."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rolecall.core.types import Message
from rolecall.storage.episode_io import read_parquet, write_parquet
from rolecall.storage.run_folder import RunFolder
from rolecall.watch.runs import Runs
from rolecall.watch.server import Watch, make_app
from tests.watch.small_runs import (
    CONFIG,
    HOSTILE,
    append_line,
    make_episode,
    make_record,
    write_run,
    write_step,
)


@pytest.fixture
def run(tmp_path) -> Path:
    return write_run(tmp_path / "runs" / "mine")


@pytest.fixture
def ask(run):
    client = TestClient(make_app(Watch(Runs([run.parent]))))

    def ask(question: str, **query: object) -> dict:
        answer = client.get(f"/api/{question}", params={"run": "mine", **query})
        assert answer.status_code == 200, answer.text
        return answer.json()

    ask.client = client
    return ask


def find(ask, q: str, **query: object) -> tuple[list[dict], dict]:
    text = ask.client.get("/api/find", params={"run": "mine", "q": q, **query}).text
    lines = [json.loads(line) for line in text.splitlines()]
    return [line["hit"] for line in lines if line["hit"]], lines[-1]


def test_all_runs_are_listed_with_their_newest_numbers(ask, run):
    write_run(run.parent / "deep" / "other", steps=1)
    [mine] = [row for row in ask("runs")["runs"] if row["run"] == "mine"]
    assert (mine["step"], mine["steps"], mine["score"]) == (3, 4, 0.75)
    assert mine["scores"] == [0.25, 0.5, 0.75]
    assert (mine["algorithm"], mine["environment"], mine["status"]) == ("drmas", "math", "stopped")
    assert mine["agents"] == ["solver", "judge"]
    fresh = TestClient(make_app(Watch(Runs([run.parent])))).get("/api/runs").json()
    assert [row["run"] for row in fresh["runs"]] == ["deep/other", "mine"]


def test_runs_whose_configs_differ_in_a_key_are_a_sweep(tmp_path):
    for size in (2, 4):
        config = CONFIG | {"rollout": CONFIG["rollout"] | {"group_size": size}}
        write_run(tmp_path / f"size-{size}", steps=1, config=config)
    runs = TestClient(make_app(Watch(Runs([tmp_path])))).get("/api/runs").json()
    [sweep] = runs["sweeps"]
    assert sweep["keys"] == ["rollout.group_size"]
    assert [row["differs"] for row in runs["runs"]] == [
        {"rollout.group_size": "2"}, {"rollout.group_size": "4"},
    ]  # fmt: skip


def test_a_run_has_its_series_team_and_advice(ask, run):
    append_line(run, make_record(4) | {"agent/solver/truncated": 0.5})
    answer = ask("run")
    assert answer["steps"] == [1, 2, 3, 4]
    assert answer["series"]["score"] == [0.25, 0.5, 0.75, 1.0]
    assert [agent["agent"] for agent in answer["team"]] == ["solver", "judge"]
    [advice] = answer["advice"]
    assert advice["key"].startswith("team.solver.sampling.max_tokens=")
    assert "q=agent%3Asolver+finish%3Alength+step%3A4" in advice["links"][0]["href"]


def test_a_step_has_its_groups_norms_and_reasons(ask):
    step = ask("step", step=2)
    assert [(g["task"], g["sign"], g["scores"]) for g in step["groups"]] == [
        ("add", "signal", [0.0, 1.0]), ("sub", "signal", [0.0, 1.0]),
    ]  # fmt: skip
    gain = 0.5 / (0.5 + 1e-6)
    assert step["groups"][0]["advantages"]["solver"] == pytest.approx([-gain, gain])
    [norm] = step["norms"]
    assert (norm["grad_norm"], norm["agents"]) == (0.5, {"solver": 0.4, "judge": 0.1})
    assert step["steps"] == [1, 2, 3]
    assert step["missing"] == []


def test_the_board_marks_where_attempts_part(ask):
    board = ask("group", step=1, task="sub")
    assert [row["is_parting"] for row in board["rows"]] == [False, True]
    assert [[cell["is_new"] for cell in row["cells"]] for row in board["rows"]] == [
        [True, False], [True, True],
    ]  # fmt: skip
    other = ask("group", step=1, task="add")
    assert [row["is_parting"] for row in other["rows"]] == [True, False]
    [solver, judge] = sorted(board["arithmetic"], key=lambda one: one["agent"], reverse=True)
    assert solver["samples"] == [["1:sub:0/0", 0.0], ["1:sub:1/0", 1.0]]
    assert judge["agent"] == "judge"


def test_a_conversation_explains_each_turn(ask):
    talk = ask("talk", step=1, episode="1:add:1")
    solver, judge = talk["turns"]
    assert (solver["lane"], solver["column"], judge["lane"], judge["column"]) == (0, 0, 1, 1)
    assert judge["parents"] == ["1:add:1/0"]
    assert solver["text"] == f"add 1 {HOSTILE}"
    assert solver["why"]["terms"][0]["formula"] == "(1 - 0.5) / (0.5 + 1e-06) = +1"
    assert [sample[0] for sample in solver["why"]["samples"]] == ["1:add:0/0", "1:add:1/0"]
    assert (judge["began_s"], judge["ended_s"]) == (1.0, 1.5)
    assert judge["tools"][0]["name"] == "calculator"
    assert solver["coach"][0]["score"] == 8.0
    assert [attempt["episode"] for attempt in talk["attempts"]] == ["1:add:0", "1:add:1"]
    assert talk["metrics"]["wall_s"] == 1.0


def test_tokens_have_what_sampler_and_learner_recorded(ask):
    tokens = ask("tokens", step=1, turn="1:add:1/0")
    assert tokens["ids"] == [3, 4]
    assert tokens["texts"] == ["3", "4"]
    assert "tokenizer" in tokens["text_note"]
    assert tokens["learner_logprobs"] == pytest.approx([-0.4, -1.9], abs=1e-6)
    assert (tokens["clipped"], tokens["entropies"]) == ([False, True], [1.0, 1.0])


def test_spikes_are_estimated_from_weight_ratio_advantage_and_probability(ask):
    spikes = ask("spikes", step=1)
    advantage = 0.5 / (0.5 + 1e-6)
    first = math.exp(0.1) * advantage * (1 - math.exp(-0.4))
    assert spikes["of_tokens"] == 16
    assert spikes["tokens"][0]["estimate"] == pytest.approx(first, rel=1e-5)
    assert spikes["tokens"][0]["ratio"] == pytest.approx(math.exp(0.1), rel=1e-5)
    assert [token["estimate"] for token in spikes["tokens"][8:]] == [0.0] * 8  # are clipped
    shares = {agent["agent"]: agent["share"] for agent in spikes["agents"]}
    assert shares == pytest.approx({"solver": 0.5, "judge": 0.5})
    assert spikes["turns"][0]["share"] == pytest.approx(1 / 8)
    assert spikes["median"] == {"small": None}
    assert ask("spikes", step=3)["median"] == {"small": 0.5}


def test_spikes_rank_demonstrations_which_nobody_sampled(tmp_path):
    run = RunFolder(write_run(tmp_path / "mine", steps=1))
    episodes = read_parquet(run.episode_file(1))
    for turn in (turn for episode in episodes for turn in episode.turns):
        turn.logprobs = None
    write_parquet(run.episode_file(1), episodes, step=1)
    client = TestClient(make_app(Watch(Runs([tmp_path]))))
    first = client.get("/api/spikes", params={"run": "mine"}).json()["tokens"][0]
    assert first["ratio"] == 1.0
    assert first["estimate"] == pytest.approx(1 - math.exp(-0.4), rel=1e-5)


def test_advice_names_the_first_failure_and_what_is_usual(ask, run):
    failed = {"rollout/failures": 2.0, "failures/OSError": 2.0, "error": "OSError: no space"}
    append_line(run, make_record(4) | failed | {"policy/small/grad_norm": 5.0})
    append_line(run, make_record(5))
    by_kind = {one["kind"]: one["text"] for one in ask("step", step=3)["advice"]}
    assert by_kind == {}
    write_parquet(RunFolder(run).episode_file(4), [make_episode(4, "add", 0)], step=4)
    by_kind = {one["kind"]: one["text"] for one in ask("step", step=4)["advice"]}
    assert by_kind["failed"].endswith("(OSError 2); the first: OSError: no space")
    assert by_kind["spike"].endswith("is 5, 10 times the median of the steps before")


@pytest.mark.parametrize(
    ("query", "turns"),
    [
        ("agent:solver step:3 task:add", ["3:add:0/0", "3:add:1/0"]),
        ("adv>0.5 step:2..2 agent:judge", ["2:add:1/1", "2:sub:1/1"]),
        ("score<1 step:1 task:sub", ["1:sub:0/0", "1:sub:0/1"]),
        ("alike step:1", ["1:sub:0/0", "1:sub:1/0"]),
        ('"add 2 plain"', ["2:add:0/0"]),
        ("step:3 -agent:judge -alike", ["3:add:0/0", "3:add:1/0"]),
        ("valid:no", []),
    ],
)
def test_a_query_finds_exactly_these_turns(ask, query, turns):
    hits, end = find(ask, query)
    assert sorted(hit["turn"] for hit in hits) == turns
    assert (end["matches"], end["is_end"]) == (len(turns), True)


def test_the_newest_step_is_found_first_and_no_limit_is_silent(ask):
    hits, end = find(ask, "agent:solver", limit=2)
    assert [hit["step"] for hit in hits] == [3, 3]
    assert end["matches"] == 12
    assert end["facets"]["agent"] == {"solver": 12}
    _, wrong = find(ask, "agnet:solver")
    assert "agnet" in wrong["error"]


def test_a_task_is_shown_through_the_training(ask):
    history = ask("task", task="add")
    assert [each["step"] for each in history["steps"]] == [1, 2, 3]
    assert history["steps"][0]["mean"] == 0.5
    assert history["steps"][1]["turns"][0][0]["text"] == "add 2 plain"
    assert [each["step"] for each in ask("task", task="add", steps="1,3")["steps"]] == [1, 3]


def test_coaches_tools_verdicts_and_prompts(ask):
    coach = ask("coach", step=1)
    assert coach["correlation"] == {"solver": 1.0}
    assert [row["score"] for row in coach["rows"]] == [2.0, 2.0, 8.0, 8.0]
    [tool] = ask("tools", step=1)["rows"]
    assert (tool["agent"], tool["tool"], tool["calls"]) == ("judge", "calculator", 4)
    cells = {c["verdict"]: (c["right"], c["wrong"]) for c in ask("roles", step=1)["cells"]}
    assert cells == {"approve": (2, 0), "reject": (0, 2)}
    prompts = ask("prompts")
    system = {p["agent"]: p["versions"] for p in prompts["agents"] if p["role"] == "system"}
    assert [version["text"] for version in system["judge"]] == ["You are judge."]


def test_two_runs_are_compared_key_by_key(ask, run):
    write_run(run.parent / "other", config=CONFIG | {"algorithm": {"name": "grpo"}})
    client = TestClient(make_app(Watch(Runs([run.parent]))))
    answer = client.get("/api/compare", params={"first": "mine", "second": "other"}).json()
    assert answer["differs"] == [["algorithm.name", "drmas", "grpo"]]
    assert [values for _, values in answer["series"]["score"]] == [[0.25, 0.5, 0.75]] * 2


def test_changes_bring_whole_lines_and_a_rewound_run_begins_anew(ask, run):
    cursor = ask("run")["cursor"]
    assert ask("changes", after=cursor)["steps"] == []
    line = json.dumps(make_record(4))
    append_line(run, line[:20])
    assert ask("changes", after=cursor)["steps"] == []
    append_line(run, line[20:] + "\n")
    changes = ask("changes", after=cursor)
    assert (changes["steps"], changes["series"]["score"], changes["is_new"]) == ([4], [1.0], False)
    RunFolder(run).forget_after(2)
    write_step(RunFolder(run), 3)
    again = ask("changes", after=changes["cursor"])
    assert (again["is_new"], again["steps"]) == (True, [1, 2, 3])


def test_what_is_missing_is_said_and_the_rest_shown(ask, run):
    (run / "config.yaml").write_text("{{{")
    (run / "updates" / "step-000002.parquet").unlink()
    file = run / "episodes" / "step-000003.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    append_line(run, "half a line that is no JSON\n")
    append_line(run, '{"kind": "step", "step": 4, "score": NaN}\n')
    whole = ask("run")
    assert {each["what"] for each in whole["missing"]} == {"config.yaml", "metrics.jsonl"}
    assert whole["series"]["score"] == [0.25, 0.5, 0.75, None]
    step = ask("step", step=2)
    assert [each["what"] for each in step["missing"]] == ["updates of step 2"]
    assert step["norms"][0]["optimizer_step"] == 0
    damaged = ask("step", step=3)
    assert damaged["groups"] == []
    assert any("step-000003" in each["what"] for each in damaged["missing"])
    hits, _ = find(ask, "agent:solver")
    assert {hit["step"] for hit in hits} == {1, 2}


def test_a_run_of_version_0_1_opens():
    folder = Path(__file__).parents[1] / "runs" / "run_of_0_1"
    client = TestClient(make_app(Watch(Runs([folder]))))
    [row] = client.get("/api/runs").json()["runs"]
    step = client.get("/api/step", params={"run": row["run"]}).json()
    task = step["groups"][0]["task"]
    group = client.get("/api/group", params={"run": row["run"], "task": task}).json()
    episode = group["columns"][0]["episode"]
    talk = client.get("/api/talk", params={"run": row["run"], "episode": episode})
    assert talk.status_code == 200
    assert talk.json()["turns"]


@pytest.mark.parametrize(
    ("question", "status", "detail"),
    [
        ("run?run=../mine", 404, "there is no run"),
        ("run?run=/etc", 404, "there is no run"),
        ("step?run=mine&step=9", 404, "no episodes of step 9"),
        ("step?run=mine&step=x", 400, "step"),
        ("group?run=mine&step=1&task=none", 404, "no attempts at task"),
        ("talk?run=mine&step=1&episode=none", 404, "none"),
        ("nothing", 404, "nothing at this address"),
        ("jobs?job=1", 403, "--what-if"),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(ask, question, status, detail):
    answer = ask.client.get(f"/api/{question}")
    assert answer.status_code == status
    assert detail in answer.json()["detail"]


WITHOUT_TORCH = """
import sys
from pathlib import Path
from fastapi.testclient import TestClient
from rolecall.watch.runs import Runs
from rolecall.watch.server import Watch, make_app
client = TestClient(make_app(Watch(Runs([Path(sys.argv[1])]))))
for question in sys.argv[2:]:
    assert client.get(f"/api/{question}").status_code == 200, question
print(sorted({"torch", "transformers", "matplotlib"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_the_server_never_imports_torch(run):
    names = ("step", "spikes", "prompts", "coach", "tools", "roles", "matrix", "run", "changes")
    questions = ["runs", "session", *(f"{name}?run=mine" for name in names)]
    questions += ["find?run=mine&q=plain", "tokens?run=mine&step=1&turn=1:add:1/0"]
    questions += ["talk?run=mine&step=1&episode=1:add:1", "group?run=mine&step=1&task=add"]
    questions += ["task?run=mine&task=add", "compare?first=mine&second=mine"]
    command = [sys.executable, "-c", WITHOUT_TORCH, str(run.parent), *questions]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_what_a_teammate_said_is_no_change_of_a_prompt(tmp_path):
    """A judge is shown the solver's words, which differ in every episode."""
    run = RunFolder(write_run(tmp_path / "mine", steps=0))
    episodes = [make_episode(1, task, attempt) for task in ("add", "sub") for attempt in (0, 1)]
    for episode in episodes:
        solver, judge = episode.turns
        judge.messages = [Message("user", f"{episode.task.prompt}\n[solver]\n{solver.text}")]
    write_parquet(run.episode_file(1), episodes, step=1)
    client = TestClient(make_app(Watch(Runs([tmp_path]))))
    agents = client.get("/api/prompts", params={"run": "mine"}).json()["agents"]
    [version] = next(one["versions"] for one in agents if one["agent"] == "judge")
    assert version["text"] == "{question}\n[solver]\n{solver}"
    assert version["count"] == 4


LEAVES = """
import gc
import sys
import threading
from pathlib import Path
from rolecall.watch.find import find_turns
from rolecall.watch.index import TurnIndex
from rolecall.watch.runs import Runs
run = Runs([Path(sys.argv[1])]).find("mine")
index = TurnIndex(run.path / "episodes")
index.read_all()
gc.disable()
search = find_turns(run, index, "plain", limit=100)
next(line for line in search if line.hit)
holder = [search]
holder.append(holder)
del search, holder
with threading._shutdown_locks_lock:  # as a thread that begins holds it
    gc.collect()
print("ended")
"""


@pytest.mark.slow
def test_a_search_whose_reader_leaves_holds_up_nobody(run):
    """The garbage collector ends it, also where a new thread holds the lock of threads."""
    command = [sys.executable, "-c", LEAVES, str(run.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "ended\n"
