"""`rolecall worth` on small runs: which arms it plays, trains and refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.engine import Request, Sampling
from rolecall.core.types import Episode
from rolecall.engines.silent import SilentEngine
from rolecall.environments.math.environment import MathEnvironment
from rolecall.environments.search.environment import SearchEnvironment
from rolecall.environments.tool_use.environment import ToolUseEnvironment
from rolecall.explain.worth import Arm, Attempt
from rolecall.runs.worth.arms import (
    ArmPlayer,
    Arms,
    count_serial_tokens,
    measure_attempt,
    number_answers,
)
from rolecall.runs.worth.counterpart_configs import is_shared, make_alone, make_own, make_shared
from rolecall.runs.worth.counterparts import choose_folder
from rolecall.runs.worth.own_weights import find_best_alone
from rolecall.storage.run_folder import RunFolder
from tests.toy import command, relay_config, solo_config, turn, write


def test_serial_tokens_are_those_of_the_longest_chain():
    first = turn("planner", path=(0,), tokens=[1] * 4)
    left = turn("worker", path=(1, 0), tokens=[1] * 5)
    right = turn("worker", path=(2, 0), tokens=[1] * 7)
    last = turn("planner", path=(3,), tokens=[1] * 2)
    for one in (left, right):
        one.parents = (first.id,)
    assert count_serial_tokens([first, left, right, last]) == 4 + 7 + 2
    assert count_serial_tokens([first, left, right]) == 4 + 7
    assert count_serial_tokens([]) == 0


def test_a_coroutine_stands_behind_what_was_awaited_before_it_began():
    first = turn("planner", path=(0,), tokens=[1] * 4)
    left = turn("worker", path=(1, 0), tokens=[1] * 5)  # reads the task alone
    right = turn("worker", path=(2, 0), tokens=[1] * 7)
    again = turn("worker", path=(2, 1), tokens=[1] * 3)
    assert count_serial_tokens([first, left]) == 4 + 5
    assert count_serial_tokens([first, left, right]) == 4 + 7
    assert count_serial_tokens([first, left, right, again]) == 4 + 7 + 3


def test_candidates_of_one_call_are_sampled_side_by_side():
    drawn = [turn("solver", path=(0, n), tokens=[1] * size) for n, size in enumerate((3, 8))]
    for number, one in enumerate(drawn):
        one.candidate = number
    assert count_serial_tokens([*drawn, turn("solver", path=(1,), tokens=[1] * 2)]) == 8 + 2


def test_attempts_that_begin_alike_share_the_price_of_the_first_prompt_alone():
    episode = Episode("e", MathEnvironment().tasks("test")[0], attempt=0, seed=0)
    for number, size in enumerate((4, 40)):
        one = turn("solver", path=(number,), prompt=[1] * size, tokens=[1] * 2)
        episode.turns.append(one)
    measured = measure_attempt(episode, {})
    assert measured.shared_price == pytest.approx(0.25 * 4)
    assert measured.own_price == pytest.approx(0.25 * 40 + 2 + 2)


def test_prices_count_where_all_of_a_team_have_one():
    dear = {"prompt": 1.0, "completion": 4.0}
    some, both = config(prices={"a": dear}), config(prices={"a": dear, "b": dear})
    assert ArmPlayer.for_run(some, [], answers=1).prices == {}
    assert set(ArmPlayer.for_run(both, [], answers=1).prices) == {"a", "b"}


def test_the_agent_that_is_best_alone_is_trained_alone():
    def arm(name, score):
        return Arm(name, "single", {"a": [Attempt(score, 1, 1, 1, 1.0, 0.0)]})

    arms = Arms(arm("team", 1.0), [arm("planner alone", 0.2), arm("worker alone", 0.4)])
    assert find_best_alone(arms, ["planner", "worker", "failed"]) == "worker"
    assert find_best_alone(arms, ["failed", "other"]) == "failed"


@pytest.mark.parametrize(
    ("environment", "answers", "expected"),
    [
        (MathEnvironment(), ["\\boxed{0.5}", "no", "\\boxed{1/2}", "\\boxed{2}"], [0, None, 0, 1]),
        (
            ToolUseEnvironment(),
            ["<answer>1,240</answer>", "<answer>1240</answer>", "1240"],
            [0, 0, None],
        ),
        (
            SearchEnvironment(corpus_size=60),
            ["<answer>Ann</answer>", "<answer>ann </answer>", "<answer>Bo</answer>"],
            [0, 0, 1],
        ),
    ],
)
def test_equal_answers_have_one_number(environment, answers, expected):
    task = environment.tasks("test")[0]
    episodes = [
        Episode(str(number), task, attempt=number, seed=0, answer=text)
        for number, text in enumerate(answers)
    ]
    assert asyncio.run(number_answers(environment, episodes)) == expected
    episodes[0].is_truncated = True
    assert asyncio.run(number_answers(environment, episodes))[0] is None


def config(**changes) -> Config:
    return Config.model_validate(relay_config(Path("model"), **changes))


def test_counterparts_change_what_they_are_named_for_and_nothing_else():
    given = config()
    assert is_shared(given)
    own = make_own(given)
    assert {name: one.policy for name, one in own.team.items()} == {n: n for n in given.team}
    assert not is_shared(own)
    shared = make_shared(own)
    assert {one.policy for one in shared.team.values()} == {"team"}
    assert {one.trainer.steps for one in (own, shared)} == {given.trainer.steps}
    for one in (own, shared):
        assert one.environment == given.environment
        assert one.algorithm == given.algorithm
    alone = make_alone(given, "last", workflow="single", steps=7)
    assert list(alone.team) == ["solver"]
    assert list(alone.policies) == ["b"]
    assert (alone.algorithm.name, alone.trainer.steps) == ("grpo", 7)
    student = make_alone(given, "last", workflow="single", steps=7, rows=Path(__file__))
    assert (student.algorithm.name, student.rollout.data) == ("sft", str(Path(__file__).resolve()))


def test_counterparts_that_cannot_be_are_refused():
    frozen = config()
    frozen.team["last"].trainable = False
    with pytest.raises(ConfigError, match="nobody trains last's policy b"):
        make_alone(frozen, "last", workflow="single", steps=1)
    other = config()
    other.policies["b"].base = "another"
    with pytest.raises(ConfigError, match="policies a and b differ"):
        make_shared(other)
    with pytest.raises(ConfigError, match="a is the only policy that is trained"):
        make_shared(frozen)


def test_counterparts_keep_the_prices_of_their_weights():
    dear = {"prompt": 1.0, "completion": 4.0}
    given = config(prices={"a": dear, "b": dear})
    assert set(make_own(given).prices) == set(given.team)
    assert set(make_shared(make_own(given)).prices) == {"team"}


def test_a_counterpart_goes_on_with_the_same_training_alone(tmp_path):
    given = config()
    assert choose_folder(tmp_path / "alone", given).path == tmp_path / "alone"
    with RunFolder(tmp_path / "alone").hold_started(given):
        pass
    longer, other = given.model_copy(deep=True), given.model_copy(deep=True)
    longer.trainer.steps += 1
    assert choose_folder(tmp_path / "alone", longer).path == tmp_path / "alone"
    other.trainer.seed += 1
    assert choose_folder(tmp_path / "alone", other).path == tmp_path / "alone-2"
    RunFolder(tmp_path / "alone").append_metrics({"kind": "step", "step": longer.trainer.steps})
    assert choose_folder(tmp_path / "alone", given).path == tmp_path / "alone-2"


def test_a_silent_engine_samples_nothing():
    prompt = np.zeros(2, dtype=np.int32)
    request = Request("0", "a", prompt, Sampling(), seed=0, order=("t", 0, (0,)), n=3)
    completions = asyncio.run(SilentEngine().generate(request))
    assert [len(one.tokens) for one in completions] == [0, 0, 0]
    assert completions[0].usage == {"prompt_tokens": 0, "completion_tokens": 0}  # nobody reads it
    scoring = SilentEngine().score("a", prompt, prompt, temperature=1.0)
    with pytest.raises(TypeError, match="says nothing"):
        asyncio.run(scoring)


@pytest.mark.slow
def test_a_team_is_compared_with_all_that_could_take_its_place(model_folder, tmp_path, capsys):
    path = write(tmp_path / "c.yaml", relay_config(model_folder))
    run = tmp_path / "run"
    assert command("train", path, "--output", run) == 0
    capsys.readouterr()
    assert command("worth", run, "--answers", 3, "--json", "-") == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((run / "worth/worth.json").read_text())
    variants = {one["name"] for one in result["variants"]}
    names = ("left", "right", "last")
    assert variants >= {f"without {name}" for name in names}
    assert variants >= {f"{name} as it began" for name in names}
    assert "own weights for each" in variants
    singles = {one["arm"] for one in result["choices"]}
    assert singles >= {"left alone", "last alone"}
    assert "right alone" not in singles  # its settings are those of left
    assert singles >= {f"{name} in a silent team" for name in names}
    assert "one agent trained alone" in singles
    assert set(result["verdicts"]) == {"tokens", "latency", "price"}
    assert result["num_tasks"] == 2
    # What has been trained is not trained again, and the same seeds play the same episodes.
    before = (run / "worth/alone/metrics.jsonl").read_bytes()
    assert command("worth", run, "--answers", 3, "--json", "-") == 0
    again = json.loads(capsys.readouterr().out)
    assert (run / "worth/alone/metrics.jsonl").read_bytes() == before
    again["seconds"] = result["seconds"]
    assert again == result
    # More steps of the config are none of the team, so its counterparts have as many as before.
    assert command("worth", run, "trainer.steps=9", "--answers", 3) == 0
    assert json.loads((run / "worth/worth.json").read_text())["choices"] == result["choices"]
    assert all(one["price"] > 0 for one in result["variants"])
    assert (run / "worth/log.txt").is_file()
    demonstrations = run / "worth/demonstrations.jsonl"
    demonstrations.unlink(missing_ok=True)
    assert command("worth", run, "--no-train", "--answers", 3) == 0
    assert not demonstrations.exists()


@pytest.mark.slow
def test_runs_without_a_team_to_compare_are_refused(model_folder, tmp_path, capsys):
    alone = write(tmp_path / "alone.yaml", solo_config(model_folder, trainer={"steps": 1}))
    assert command("train", alone, "--output", tmp_path / "alone") == 0
    assert command("worth", tmp_path / "alone") == 2
    assert "is alone in its team" in capsys.readouterr().err
    assert command("worth", tmp_path) == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert command("worth", tmp_path / "alone", "evaluation.tasks=0") == 2
