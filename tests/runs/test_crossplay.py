"""Agents of one run's checkpoint play with those of another, and every team is scored."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from rolecall.config.evaluation import EvaluationConfig
from rolecall.config.schema import Config
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Task
from rolecall.rollout.evaluation_summary import Score, summarise
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.training.crossplay import TEAM, Scores, choose_agent, make_teams, matrices
from tests.conftest import make_model
from tests.toy import algorithm_cases, command, relay_config, solo_config, write

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve()
ASKED = ["evaluation.tasks=6", "evaluation.samples=2", "evaluation.k=1"]


class Duel:
    """Who says more different letters wins, so that each side has a score of its own."""

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{i}", f"Go {i}") for i in range(8)]

    def open(self, task: Task, *, seed: int) -> World:
        return DuelWorld()


class DuelWorld(World):
    async def pause(self) -> None:
        return None

    async def score(self, episode: Episode) -> dict[str, float]:
        said = {turn.agent: len(set(turn.text)) for turn in episode.turns}
        left, right = said["left"], said["right"]
        return {"left": float(left - right), "right": float(right - left)}


def trained(place: Path, config: dict) -> Path:
    """A run of one step with hardly a change, so that its agents are those of its model."""
    path = write(place.with_suffix(".yaml"), config)
    assert command("train", path, "--output", place) == 0
    return place


@pytest.fixture(scope="module")
def runs(model_folder, tmp_path_factory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("runs")
    other = make_model(place / "other", "qwen3", seed=1)
    options = {"trainer": {"steps": 1}, "evaluation": {"tasks": 0}}
    options["environment"] = {"name": f"{HERE}:Duel"}
    return tuple(
        trained(place / name, relay_config(folder, **options))
        for name, folder in (("one", model_folder), ("two", other))
    )


def played(capsys, *arguments: object) -> dict:
    status = command("crossplay", *arguments, "--json")
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return json.loads(captured.out)


@pytest.mark.evidence
def test_every_team_of_two_runs_is_played(runs, capsys):
    found = played(capsys, *runs, *ASKED)
    teams = {tuple(team["from"].values()): team["scores"] for team in found["teams"]}
    assert len(teams) == 8  # three agents of two runs
    for scores in teams.values():
        assert scores["left"]["mean"] == -scores["right"]["mean"]
        assert scores["left"]["num_tasks"] == 6
    left = next(matrix for matrix in found["matrices"] if matrix["agent"] == "left")
    assert left["of"] == "left"
    assert left["mean"][0][1] == teams["A", "B", "B"]["left"]["mean"]
    assert left["mean"][1][0] == teams["B", "A", "A"]["left"]["mean"]
    assert len({mean for line in left["mean"] for mean in line}) == 4
    assert json.loads((runs[0] / "evaluated/crossplay.json").read_text()) == found
    assert found["runs"]["B"] == {"path": str(runs[1]), "step": 1}


def test_a_run_with_itself_plays_as_it_is_evaluated(runs, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(runs[0], copy)
    found = played(capsys, runs[0], copy, *ASKED, "--output", tmp_path / "found.json")
    first, *others = [team["scores"] for team in found["teams"]]
    assert all(scores == first for scores in others)
    assert (tmp_path / "found.json").exists()


def test_the_trained_weights_play_where_earlier_ones_were_the_opponent(model_folder):
    given = relay_config(model_folder, **algorithm_cases(model_folder)["earlier opponents"])
    run = build(validate(Config.model_validate(given)))
    agents = run.context.agents
    assert choose_agent(run, "last").policy is agents["left"].policy
    assert choose_agent(run, "last").name == "last"
    assert choose_agent(run, "left") is agents["left"]
    asyncio.run(run.close())


def test_two_agents_with_one_score_make_one_matrix():
    agents, names = ["solver", "verifier"], ["A", "B"]
    teams = make_teams(agents, names)
    assert teams == [("A", "A"), ("A", "B"), ("B", "A"), ("B", "B")]
    found = {team: {TEAM: Score(number / 10, None, 3)} for number, team in enumerate(teams)}
    [matrix] = matrices(agents, names, found)
    assert (matrix["agent"], matrix["of"]) == ("solver", TEAM)
    assert matrix["mean"] == [[0.0, 0.1], [0.2, 0.3]]
    own = {
        team: scores | dict.fromkeys(agents, Score(1.0, 0.1, 3)) for team, scores in found.items()
    }
    assert [m["of"] for m in matrices(agents, names, own)] == agents


def test_wrong_runs_are_one_line(runs, model_folder, tmp_path, capsys):
    options = {"trainer": {"steps": 1}, "evaluation": {"tasks": 0}}
    alone = trained(tmp_path / "alone", solo_config(model_folder, **options))
    for arguments, said in (
        ([runs[0], alone, *ASKED], "its team (solver) has not the agents of A"),
        ([alone, alone, *ASKED], "'solver' is alone in its team"),
        ([runs[0], *ASKED], "1 runs are named"),
        ([runs[0], tmp_path / "no/where"], "there is no run folder"),
        ([*runs], "evaluation.tasks: 0 leaves nothing to play"),
        ([*runs, *ASKED, "--checkpoint", "step-9"], "has no checkpoint 'step-9'"),
    ):
        capsys.readouterr()
        assert command("crossplay", *arguments) == 2
        [line] = capsys.readouterr().err.strip().splitlines()
        assert said in line


def test_a_matrix_has_the_mean_over_tasks_that_evaluations_have():
    """Two sources whose tasks have the same ids: four tasks, each of which counts alike."""
    groups = []
    for source, number, score in (("s", 0, 1.0), ("s", 1, 0.0), ("t", 0, 0.5), ("s", 2, 0.5)):
        task = Task(f"{number}", "?", info={"source": source})
        groups.append([Episode(f"{source}{number}", task, 0, 0, scores={"team": score})])
    scores = Scores()
    for group in groups:
        scores.write(group)
    expected = summarise(groups, EvaluationConfig(samples=1, k=1))
    assert scores.means()[TEAM].mean == expected["avg@1"] == 0.5
    assert scores.means()[TEAM].num_tasks == expected["num_tasks"] == 4
