"""Data sets from episodes: what is kept, what is read back, and the command that writes them."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rolecall.agents.agent import Policy
from rolecall.config.data_set_export import CollectConfig
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.types import Message, Task
from rolecall.data.files import read_rows
from rolecall.data.writing import write_rows
from rolecall.demonstrations.data_set import COLUMNS, WHAT_NEXT, make_rows
from rolecall.demonstrations.offline_data import demonstrations, fingerprint, preferences
from rolecall.engines.scripted import ScriptedEngine
from rolecall.models.loading import load_tokenizer
from rolecall.runs.export_data_set import read_episodes
from rolecall.storage.episode_io import read_parquet, write_parquet
from rolecall.storage.run_folder import RunFolder
from tests.algorithms.test_every_algorithm import Display, trainer_of
from tests.toy import agent, command, episode, relay_config, solo_config, turn, write

pytestmark = pytest.mark.slow

PRINTS = {"p": "print"}


def attempts(*rewards, prompt=(5, 6), task="x", name="solver"):
    """An attempt for each reward, whose one turn says its own number."""
    return [
        episode(
            i,
            [turn(name, task=task, episode=f"{task}:{i}", prompt=prompt, tokens=[10 + i])],
            {"team": reward},
            task=task,
        )
        for i, reward in enumerate(rewards)
    ]


def kept(episodes, **options):
    rows = make_rows(episodes, CollectConfig(**options), tokenizers=PRINTS)
    return [row["completion_ids"][0] - 10 for row in rows]


def paired(episodes, **options):
    rows = make_rows(episodes, CollectConfig(pairs=True, **options), tokenizers=PRINTS)
    return [(row["chosen_ids"][0] - 10, row["rejected_ids"][0] - 10) for row in rows]


def test_turns_are_kept_that_earned_at_least_so_much():
    assert kept(attempts(1.0, 0.5, 0.0)) == [0, 1, 2]
    assert kept(attempts(1.0, 0.5, 0.0), least=0.5) == [0, 1]
    assert kept(attempts(0.2, 0.3), least=0.5) == []


def test_a_wrong_step_becomes_no_row_and_the_outcome_is_read_apart_from_it():
    """Two agents; own rewards of their steps, ragged, in an attempt that was won and one lost."""

    def played(number, outcome):
        own = {
            "solver": [{"step": -1.0}, {}, {"coach": 0.4, "invalid": -0.5}],
            "verifier": [{"coach": 0.2}, {"invalid": -0.1}],
        }
        turns = [
            turn(name, episode=f"{number}", path=(i,), tokens=[i] * (i + 1), rewards=rewards)
            for name, steps in own.items()
            for i, rewards in enumerate(steps)
        ]
        return episode(number, turns, {"team": outcome})

    def kept_of(**options):
        episodes = [played(0, 1.0), played(1, 0.0)]
        rows = make_rows(episodes, CollectConfig(**options), tokenizers=PRINTS)
        found = defaultdict(list)
        for row in rows:
            found[row["id"].partition("/")[0], row["agent"]].append(len(row["completion_ids"]) - 1)
        return dict(found)

    right = {"solver": [1], "verifier": [0]}
    assert kept_of(step_least=0.0) == {
        (str(n), a): kept for n in range(2) for a, kept in right.items()
    }
    assert kept_of(step_least=0.0, least=1.0) == {("0", a): kept for a, kept in right.items()}
    assert kept_of(step_least=0.3, least=1.0) == {("0", "solver"): [1]}
    assert kept_of(step_least=-0.1, agents=["verifier"], least=0.5) == {("0", "verifier"): [0, 1]}
    assert kept_of(least=1.0) == {("0", "solver"): [1], ("0", "verifier"): [0]}
    assert kept_of(least=0.85) == {("0", "solver"): [1, 2], ("0", "verifier"): [0, 1]}


def test_the_best_attempts_at_each_task_are_kept_and_of_equal_ones_the_first():
    two = [*attempts(0.0, 1.0, 1.0), *attempts(0.3, 0.1, task="y")]
    assert kept(two, best_of=1) == [1, 0]
    assert kept(two, best_of=2) == [1, 2, 0, 1]
    assert kept(two, best_of=1, least=0.5) == [1]


def test_the_best_attempt_is_chosen_for_each_agent_by_what_it_earned_itself():
    played = []
    for i, (one, other) in enumerate([(1.0, 0.0), (0.0, 1.0)]):
        turns = [turn(name, episode=f"{i}", tokens=[10 + i]) for name in ("solver", "verifier")]
        played.append(episode(i, turns, {"solver": one, "verifier": other}))
    rows = make_rows(played, CollectConfig(best_of=1), tokenizers=PRINTS)
    assert [(row["agent"], row["completion_ids"]) for row in rows] == [
        ("solver", [10]),
        ("verifier", [11]),
    ]
    rows = make_rows(played, CollectConfig(agents=["verifier"]), tokenizers=PRINTS)
    assert {row["agent"] for row in rows} == {"verifier"}


def test_pairs_are_of_identical_prompt_tokens_and_of_different_answers():
    assert paired(attempts(0.5, 1.0, 0.0)) == [(1, 2)]
    assert paired(attempts(1.0, 1.0)) == []
    other = attempts(0.0, prompt=(5, 7))
    assert paired([*attempts(1.0), *other]) == []
    same = attempts(1.0, 0.0)
    same[1].turns[0].tokens = same[0].turns[0].tokens
    assert paired(same) == []
    assert paired(attempts(0.5, 0.0), least=0.6) == []


def test_what_nobody_trains_and_what_failed_gives_no_row():
    played = attempts(1.0, 1.0, 1.0, 1.0, 1.0)
    played[0].error = "TypeError: x"
    played[1].turns[0].trained = False
    played[2].turns[0].tokens = None
    played[3].turns[0].chosen = False
    assert kept(played) == [4]


def test_what_the_world_showed_next_is_a_row_too():
    """Of three actions two were followed by another one, which was told what came of them."""
    turns = [turn("actor", episode="e", path=(i,), tokens=[10 + i]) for i in range(3)]
    for i, one in enumerate(turns):
        before = [Message("assistant", f"go {i - 1}")] if i else []
        one.text, one.messages = f"go {i}", [*before, Message("user", f"seen {i}")]
        one.parents = tuple(before.id for before in turns[:i])
        one.observation = f"seen {i}"
    played = [episode(0, turns, {"team": 0.0})]

    def rows(**options):
        return make_rows(played, CollectConfig(**options), tokenizers=PRINTS)

    world = rows(imitate="world", least=1.0)
    assert [row["completion"] for row in world] == ["seen 1", "seen 2"]
    assert [m["content"] for m in world[1]["prompt"]] == ["go 0", "seen 1", "go 1", WHAT_NEXT]
    assert [m["role"] for m in world[1]["prompt"]] == ["assistant", "user", "assistant", "user"]
    assert rows(imitate="both") == [*rows(), *world]
    assert rows(imitate="both", least=1.0) == world


def test_what_the_world_showed_before_an_agent_spoke_is_not_what_came_of_it():
    """A verifier is told what the solver was told, and then what it said."""
    solver, verifier = turn("solver", episode="e"), turn("verifier", episode="e", path=(1,))
    solver.text = "go"
    verifier.parents, verifier.observation = (solver.id,), "seen"
    played = [episode(0, [solver, verifier], {"team": 0.0})]
    options = CollectConfig(imitate="world")
    for told, number in (("seen\n\n[solver]\ngo", 0), ("[solver]\ngo\n\nseen", 1)):
        verifier.messages = [Message("user", told)]
        assert len(make_rows(played, options, tokenizers=PRINTS)) == number


def test_rows_about_the_world_can_be_read_beside_those_of_agents(solver, tmp_path):
    turns = [turn(episode="e", path=(i,), tokens=[10 + i]) for i in range(2)]
    turns[0].text, turns[1].messages = "go", [Message("user", "go, seen")]
    turns[1].parents, turns[1].observation = (turns[0].id,), "seen"
    prints = {"p": fingerprint(solver["solver"].policy.tokenizer)}
    options = CollectConfig(imitate="both")
    rows = make_rows([episode(0, turns, {"team": 1.0})], options, tokenizers=prints)
    for name in ("r.jsonl", "r.parquet"):
        write_rows(tmp_path / name, rows, columns=COLUMNS["demonstrations"])
        found = [one.turns[0] for [one] in demonstrations(tmp_path / name, solver)]
        assert [t.text for t in found] == ["go", "", "seen"]
        assert [t.tokens.tolist() for t in found[:2]] == [[10], [11]]
        assert WHAT_NEXT in solver["solver"].policy.tokenizer.decode(found[2].prompt)


def test_options_of_pairs_contradict_those_of_demonstrations():
    with pytest.raises(ValueError, match="best_of has no effect on pairs"):
        CollectConfig(pairs=True, best_of=2)
    with pytest.raises(ValueError, match="step_least has no effect on pairs"):
        CollectConfig(pairs=True, step_least=0.0)
    with pytest.raises(ValueError, match="imitate has no effect on pairs"):
        CollectConfig(pairs=True, imitate="world")


@pytest.fixture
def solver(model_folder):
    tokenizer = load_tokenizer(str(model_folder))
    policy = Policy("p", tokenizer, ScriptedEngine(tokenizer, lambda _: ""))
    return {"solver": agent("solver", policy, system="Say it.")}


def sampled(prompt, tokens, reward, number):
    """A turn whose text, tokenised again, gives other tokens than those that were sampled."""
    made = turn(episode=f"{number}", prompt=prompt, tokens=tokens, finish="length")
    made.text = "aa"
    made.messages = [Message("system", "Say it."), Message("user", "?")]
    return episode(number, [made], {"team": reward})


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_tokens_are_read_back_as_they_were_sampled(solver, tmp_path, suffix):
    prints = {"p": fingerprint(solver["solver"].policy.tokenizer)}
    played = [sampled([9, 8, 7], [5, 5, 6], 1.0, 0), sampled([9, 8, 7], [4], 0.0, 1)]
    for kind, read in (("demonstrations", demonstrations), ("preferences", preferences)):
        rows = make_rows(played, CollectConfig(pairs=kind == "preferences"), tokenizers=prints)
        write_rows(tmp_path / f"{kind}.{suffix}", rows, columns=COLUMNS[kind])
        groups = read(tmp_path / f"{kind}.{suffix}", solver)
        turns = [one.turns[0] for group in groups for one in group]
        assert [t.prompt.tolist() for t in turns] == [[9, 8, 7]] * 2
        assert [t.tokens.tolist() for t in turns] == [[5, 5, 6], [4]]
        assert [t.tokens.dtype for t in turns] == [np.int32] * 2
        assert [m.content for m in turns[0].messages] == ["Say it.", "?"]
    assert [t.finish for t in turns] == ["stop"] * 2


def test_rows_keep_that_an_answer_was_cut(solver, tmp_path):
    prints = {"p": fingerprint(solver["solver"].policy.tokenizer)}
    rows = make_rows([sampled([9], [5], 1.0, 0)], CollectConfig(), tokenizers=prints)
    write_rows(tmp_path / "r.jsonl", rows, columns=COLUMNS["demonstrations"])
    [[one]] = demonstrations(tmp_path / "r.jsonl", solver)
    assert one.turns[0].finish == "length"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer": "other"}, "its tokens are of another tokenizer than that of 'solver'"),
        ({"completion_ids": [999_999]}, "completion_ids is no list of tokens below"),
        ({"completion_ids": []}, "completion_ids is no list of tokens below"),
        ({"prompt_ids": ["a"]}, "prompt_ids is no list of tokens below"),
        ({"prompt_ids": [-1]}, "prompt_ids is no list of tokens below"),
    ],
)
def test_tokens_that_the_model_cannot_read_are_named_by_file_and_line(
    solver, tmp_path, changes, said
):
    prints = {"p": fingerprint(solver["solver"].policy.tokenizer)}
    rows = make_rows([sampled([9], [5], 1.0, 0)], CollectConfig(), tokenizers=prints)
    (tmp_path / "r.jsonl").write_text(json.dumps(rows[0] | changes) + "\n")
    with pytest.raises(ValueError, match=r"r\.jsonl:1: ") as error:
        demonstrations(tmp_path / "r.jsonl", solver)
    assert said in str(error.value)


def test_a_system_message_of_a_row_stands_instead_of_the_agents_own(solver, tmp_path):
    row = {"prompt": [{"role": "system", "content": "Other."}, {"role": "user", "content": "?"}]}
    (tmp_path / "r.jsonl").write_text(json.dumps(row | {"completion": "a"}) + "\n")
    [[one]] = demonstrations(tmp_path / "r.jsonl", solver)
    text = solver["solver"].policy.tokenizer.decode(one.turns[0].prompt)
    assert "Other." in text
    assert "Say it." not in text


def test_episodes_of_a_parquet_file_give_the_rows_that_they_gave_before(model_folder, tmp_path):
    trainer = trainer_of(
        relay_config(model_folder, trainer={"steps": 1}), tmp_path / "r", Display()
    )
    from rolecall.runs.export_data_set import play_now

    played = asyncio.run(play_now(trainer.run, tmp_path)).episodes
    write_parquet(tmp_path / "e.parquet", played, step=1)
    again = read_parquet(tmp_path / "e.parquet")
    prints = defaultdict(lambda: "print")
    assert len(played) == 12
    for options in (CollectConfig(), CollectConfig(best_of=1), CollectConfig(pairs=True)):
        rows = make_rows(played, options, tokenizers=prints)
        assert rows
        assert rows == make_rows(again, options, tokenizers=prints)


def stored_run(tmp_path, files: dict[str, list]) -> RunFolder:
    """A run folder that holds these episodes, by the names of its files."""
    folder = RunFolder(tmp_path / "run")
    (folder.path / "episodes").mkdir(parents=True)
    for name, episodes in files.items():
        write_parquet(folder.path / f"{name}.parquet", episodes, step=1)
    return folder


def test_the_best_attempt_of_two_stored_evaluations_is_the_better_one(tmp_path):
    """Evaluations give the same ids after every step; the later one was right."""
    before, after = attempts(0.0), attempts(1.0)
    after[0].turns[0].tokens = np.array([77], dtype=np.int32)
    folder = stored_run(tmp_path, {"evaluation-000000": before, "evaluation-000010": after})
    found = read_episodes(folder, "test")
    assert len({e.id for e in found}) == 2
    assert kept(found, best_of=1) == [67]
    for options in (CollectConfig(), CollectConfig(pairs=True)):
        rows = make_rows(found, options, tokenizers=PRINTS)
        assert len({row["id"] for row in rows}) == len(rows)
    assert paired(found) == [(67, 0)]


def test_a_stored_candidate_that_failed_in_its_world_is_no_side_of_a_pair(tmp_path):
    best, fair, failed = (turn(path=(0, k), tokens=[10 + k]) for k in range(3))
    for number, one in enumerate((best, fair, failed)):
        one.candidate, one.chosen, one.rewards = number, number == 0, {"own": 1.0 - number / 2}
    failed.candidate_error = "ValueError: no such door"
    played = [episode(0, [best, fair, failed], {})]
    folder = stored_run(tmp_path, {"episodes/step-000001": played})
    assert paired(played) == paired(read_episodes(folder, "train")) == [(0, 1)]


def test_a_run_is_collected_and_trained_on(model_folder, tmp_path, capsys):
    config = write(tmp_path / "c.yaml", solo_config(model_folder, trainer={"steps": 1}))
    assert command("train", config, "--output", tmp_path / "run") == 0
    capsys.readouterr()
    for name, options in {
        "demos.jsonl": ["--best-of", "2"],
        "pairs.parquet": ["--pairs"],
        "played.jsonl": ["--played", "train", "--agent", "solver"],
    }.items():
        file = tmp_path / name
        assert command("collect", tmp_path / "run", "-o", file, *options, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        rows = [row for _, row in read_rows(file)]
        assert found["rows"] == len(rows) > 0
        assert found["data"] == ("preferences" if "--pairs" in options else "demonstrations")
        assert (found["episodes"], found["agents"]) == (12, {"solver": len(rows)})
    pairs = pq.read_table(tmp_path / "pairs.parquet")
    assert all(
        a > b
        for a, b in zip(
            pairs["chosen_reward"].to_pylist(), pairs["rejected_reward"].to_pylist(), strict=True
        )
    )
    status = command(
        "train", config, "--output", tmp_path / "sft", "algorithm=sft", "rollout.groups=4",
        f"rollout.data={tmp_path / 'demos.jsonl'}",
    )  # fmt: skip
    assert status == 0
    status = command(
        "train", config, "--output", tmp_path / "dpo", "algorithm=dpo", "rollout.groups=1",
        "policies.a.reference=initial", f"rollout.data={tmp_path / 'pairs.parquet'}",
    )  # fmt: skip
    assert status == 0


class Parity:
    """An action of an odd number of characters is a wrong step; a task has four."""

    def tasks(self, split):
        return [Task(f"{split}-{i}", "abcd"[i % 4], None, {"source": "parity"}) for i in range(16)]

    def open(self, task, *, seed):
        return ParityWorld()


class ParityWorld(World):
    def __init__(self):
        self.steps = 0

    async def step(self, agent, action):
        self.steps += 1
        right = len(action) % 2 == 0
        said = "right" if right else "wrong"
        return Observation(said, reward=1.0 if right else -1.0, done=self.steps == 4)

    async def score(self, episode):
        return {"team": float(episode.turns[-1].world_rewards["step"] > 0)}


def parity_config(folder):
    config = solo_config(folder, trainer={"steps": 1, "save_every": 1}, evaluation={"tasks": 0})
    config["team"] = {"actor": config["team"]["solver"]}
    config["environment"] = {"name": f"{Path(__file__).resolve()}:Parity"}
    config["workflow"] = "multi_turn"
    return config


def check_steps(file, episodes):
    """Every right step of a won attempt is a row, and shows all steps before it; no other is."""
    rows = {row["id"]: row for _, row in read_rows(file)}
    right, after_wrong = set(), 0
    for one in episodes:
        for number, made in enumerate(one.turns):
            if made.score < 0 or one.rewards["team"] < 1:
                assert made.id not in rows
                continue
            right.add(made.id)
            shown = rows[made.id]["prompt_ids"]
            for earlier in one.turns[:number]:
                after_wrong += earlier.score < 0
                ids = earlier.tokens.tolist()
                assert any(shown[i : i + len(ids)] == ids for i in range(len(shown)))
    assert rows.keys() == right
    assert after_wrong > 0
    return rows


def test_steps_that_the_world_marked_wrong_are_shown_and_not_trained(
    model_folder, tmp_path, capsys
):
    config = write(tmp_path / "c.yaml", parity_config(model_folder))
    assert command("train", config, "--output", tmp_path / "run") == 0
    file = tmp_path / "steps.jsonl"
    asked = ("collect", tmp_path / "run", "-o", file, "--step-least", "0", "--least", "1")
    assert command(*asked, "--played", "train") == 0
    check_steps(file, read_parquet(tmp_path / "run/episodes/step-000001.parquet"))
    capsys.readouterr()
    assert command(
        "train", config, "--output", tmp_path / "sft", "algorithm=sft", "rollout.groups=2",
        f"rollout.data={file}",
    ) == 0  # fmt: skip


def test_a_stage_trains_on_right_steps_alone(model_folder, tmp_path):
    config = parity_config(model_folder)
    config["stages"] = [
        {"name": "demos", "collect": {"step_least": 0.0, "least": 1.0}},
        {"name": "warm", "from": "demos", "algorithm": "sft", "rollout": {"groups": 2}},
    ]
    assert command("train", write(tmp_path / "c.yaml", config), "--output", tmp_path / "run") == 0
    [file] = (tmp_path / "run/demos/episodes").glob("*.parquet")
    rows = check_steps(tmp_path / "run/demos/data.jsonl", read_parquet(file))
    [trained] = [read_parquet(path) for path in (tmp_path / "run/warm/episodes").glob("*.parquet")]
    assert {row["id"] for row in rows.values()} >= {e.task.id for e in trained}
    assert all(np.all(t.advantages == 1.0) for e in trained for t in e.turns)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_an_empty_data_set_can_be_written_and_not_trained_on(
    model_folder, tmp_path, capsys, suffix
):
    config = write(tmp_path / "c.yaml", solo_config(model_folder))
    file = tmp_path / f"none.{suffix}"
    assert command("collect", config, "-o", file, "--least", "99") == 0
    said = capsys.readouterr().out.strip()
    assert len(said.splitlines()) == 1
    assert "no demonstrations" in said
    text = file.read_text() if suffix == "jsonl" else pq.read_table(file).to_pylist()
    assert len(text) == 0
    options = ("algorithm=sft", f"rollout.data={file}")
    assert command("train", config, *options, "--output", tmp_path / "r") == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert "rollout.data: " in error
    assert "no rows" in error
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "x.csv"], "--output: x.csv: write a file name that ends with .jsonl or .parquet"),
        (["-o", "x.jsonl", "--best-of", "0"], "--best-of: "),
        (["-o", "x.jsonl", "--pairs", "--best-of", "2"], "--pairs: best_of has no effect"),
        (["-o", "x.jsonl", "--pairs", "--step-least", "0"], "--pairs: step_least has no effect"),
        (["-o", "x.jsonl", "--step-least", "nan"], "--step-least: Input should be"),
        (["-o", "x.jsonl", "--imitate", "all"], "--imitate: Input should be 'agent', 'world'"),
        (["-o", "x.jsonl", "--agent", "nobody"], "--agent: no trained agent 'nobody'"),
        (["-o", "x.jsonl", "--played", "train"], "has played nothing; name a run folder"),
        (["-o", "x.jsonl", "--played", "all"], "--played: no split 'all'"),
    ],
)
def test_what_does_not_fit_is_one_line(model_folder, tmp_path, capsys, arguments, said):
    config = write(tmp_path / "c.yaml", solo_config(model_folder))
    assert command("collect", config, *arguments) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert said in error
