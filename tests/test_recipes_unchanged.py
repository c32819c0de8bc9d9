"""Recipes for real models are built as they stand: only their models are replaced, by tiny ones."""

from __future__ import annotations

import asyncio
import json

import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rolecall.config.load import find, load
from rolecall.engines.scripted import ScriptedEngine
from rolecall.rollout.episodes import play
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from tests.rewards.coach.server import serving
from tests.test_recipes import REAL

COACHED = ["mathchat_coach", "data_science_coach"]
HUB = {  # what recipes name, and the file of it that they read
    "openai/gsm8k": "main/{split}-00000-of-00001.parquet",
    "HuggingFaceH4/MATH-500": "test.jsonl",
    "Maxwell-Jia/AIME_2024": "aime_2024_problems.parquet",
    "math-ai/aime25": "test.jsonl",
}
SEARCHED = [
    "nq-hotpotqa", "nq", "hotpotqa", "triviaqa", "popqa", "2wikimultihopqa", "musique", "bamboogle",
]  # fmt: skip
PREPARED = {  # what `rolecall data` makes
    **{name: {"id": "1", "question": "Who?", "golden_answers": ["a"]} for name in SEARCHED},
    "mbpp": {"task_id": 1, "text": "Add.", "code": "def f(a): return a",
             "test_list": ["assert f(1) == 1", "assert f(2) == 2"]},
    "humaneval": {"task_id": "H/0", "prompt": "def f(a):\n    \"Same.\"\n", "entry_point": "f",
                  "canonical_solution": "    return a\n",
                  "test": "def check(candidate):\n    assert candidate(1) == 1\n"},
}  # fmt: skip
ROWS = 140  # of each set: more than a step takes
TABLE = {"train.csv": "id,x,target\n1,1,2\n2,2,4\n", "test.csv": "id,x\n3,3\n"}


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """A folder with all data that the recipes name, in the places where they look for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for number, (name, file) in enumerate(HUB.items()):
        repo = tmp_path / "hub" / f"datasets--{name.replace('/', '--')}"
        (repo / "refs").mkdir(parents=True)
        (repo / "refs" / "main").write_text("a" * 40)
        for split in ("train", "test"):
            rows = [{"question": f"{number}{split} + {n}?", "answer": str(n)} for n in range(ROWS)]
            path = repo / "snapshots" / ("a" * 40) / file.format(split=split)
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".parquet":
                pq.write_table(pa.Table.from_pylist(rows), path)
            else:
                path.write_text("\n".join(map(json.dumps, rows)))
    for name, row in PREPARED.items():
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        for split in ("train", "test"):
            rows = [row | {next(iter(row)): f"{split}/{n}"} for n in range(ROWS)]
            (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    _tables(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key-1")
    return tmp_path


def _tables(folder):
    """One modelling task as DSBench has them."""
    (folder / "answers").mkdir()
    (folder / "answers" / "answer.csv").write_text("id,target\n3,6\n")
    for name, text in TABLE.items():
        (folder / name).write_text(text)
    files = {"train_file": "train.csv", "test_file": "test.csv", "answer_dir": "answers"}
    names = [f"t{n}" for n in range(ROWS)]
    rows = [{"prompt": "Predict.", "metadata": {"task_id": name} | files} for name in names]
    (folder / "rows.json").write_text(json.dumps(rows))
    record = {"metric": "rmse", "target_column": "target", "id_column": "id"}
    (folder / "a_cleaned_prompts.json").write_text(json.dumps(dict.fromkeys(names, record)))


def built(name, model_folder, folder):
    """All parts of a recipe. What it leaves open is given, as its first lines say."""
    plain = load(find(name), ["environment.train=x", "environment.test=x", "environment.root=x"]
                 if name == "data_science_coach" else [])  # fmt: skip
    changes = [f"policies.{policy}.base={model_folder}" for policy in plain.policies]
    if name == "data_science_coach":
        rows = folder / "rows.json"
        changes += [f"environment.{key}={rows}" for key in ("train", "test")]
        changes.append(f"environment.root={folder}")
    return build(validate(load(find(name), changes)))


@pytest.mark.parametrize("name", REAL)
def test_every_part_of_a_recipe_is_built(name, model_folder, at_home):
    run = built(name, model_folder, at_home)
    assert set(run.context.agents) == set(run.config.team)
    assert set(run.learners) == set(run.config.trained)
    assert all(run.sampler.sample(0))


def scores_8(asked):
    """A verdict on the answer too, where the coach is shown the truth."""
    return asked.json(8, **({"answer_correct": 0} if "ground truth\n" in asked.user else {}))


@pytest.mark.parametrize("name", COACHED)
def test_a_recipe_with_a_coach_gets_to_its_first_scores(name, model_folder, at_home, monkeypatch):
    async def scenario():
        async with serving(scores_8) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.url("openai"))
            run = built(name, model_folder, at_home)
            for agent in run.context.agents.values():
                agent.policy.engine = ScriptedEngine(agent.policy.tokenizer, lambda request: "4.")
            [task] = run.sampler.sample(0)[:1]
            episode = await play(run.context, task, step=0)
            await run.context.environment.close()
            return run, episode, server.asked

    run, episode, asked = asyncio.run(scenario())
    assert episode.error is None
    assert len(asked) == len(episode.turns) == 3
    assert {one.body["model"] for one in asked} == {"gpt-5-mini"}
    assert {one.headers["authorization"] for one in asked} == {"Bearer secret-key-1"}
    for turn in episode.turns:
        assert turn.rewards["coach"] == pytest.approx(0.5 * 0.8), turn.info
    coach, _ = run.context.rewards["coach"]
    cost = (600 * 0.25 + 400 * 0.025 + 50 * 2.0) / 1e6  # of the server's answers
    assert coach.ledger.run.usd == pytest.approx(3 * cost)
