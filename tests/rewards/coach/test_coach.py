"""Episodes scored through the providers' own SDKs against a local server."""

import asyncio
import json

import pytest

from rolecall.algorithms.grpo import Grpo
from rolecall.config import registry
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.environment import World
from rolecall.rewards.coach.checked_steps import CheckedSteps
from rolecall.rewards.coach.coach import Coach
from rolecall.rewards.coach.rendering import Action
from rolecall.rewards.coach.scores import (
    CoachError,
    CoachStopError,
)
from tests.chat_models import chat_model, judge_config
from tests.rewards.coach.server import (
    HANG,
    HANG_UP,
    TRUTH,
    Refused,
    Said,
    Server,
    coach_of,
    eight,
    play,
    said,
    serving,
)

pytestmark = pytest.mark.slow

PROVIDERS = ["openai", "anthropic", "google", "vertex"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_each_provider_is_asked_for_a_schema_and_its_score_and_tokens_are_read(provider):
    episode = said("6 * 7 = 42")
    prices = {"prompt": 2.0, "cached": 0.5, "completion": 10.0}
    options = {"provider": provider, "replies": {"temperature": 0.5}, "prices": prices}
    server, coach = play(eight, episode, **options)
    [turn], [asked] = episode.turns, server.asked
    assert turn.rewards == {"coach": pytest.approx(0.8)}
    written = turn.coach.note
    assert (written.score, written.reasoning) == (8.0, "because")
    usage = written.usage
    assert usage.pop("latency_s") > 0
    assert usage == {
        "model": "m",
        "prompt_tokens": 1000,
        "cached_tokens": 400,
        "completion_tokens": 50,
        "reasoning_tokens": 20,
        "cost_usd": pytest.approx((600 * 2.0 + 400 * 0.5 + 50 * 10.0) / 1e6),
        "tries": 1,
    }
    assert '"additionalProperties": false' in json.dumps(asked.body)  # the schema
    assert 0.5 in (asked.body.get("temperature"), _google(asked, "temperature"))
    assert "secret-key-1" not in asked.path
    assert "secret-key-1" in json.dumps(asked.headers)
    assert asked.block("task") == "What is 6 * 7?"
    assert coach.totals["agent0"].mean == 8.0


def _google(asked, name: str):
    return asked.body.get("generationConfig", {}).get(name)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_passes_is_asked_again_and_what_is_nonsense_is_no_score(provider):
    nonsense = ["[]", "{}", '"x"', "5", '{"choices": 5, "content": 5, "candidates": 5}', '{"choi']
    troubles = [Refused(200, text=text) for text in nonsense]
    troubles += [
        Refused(200, text="<html>", kind="text/html"),
        Refused(429, {"Retry-After": "0.01"}),
        Refused(429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        Refused(503, {"Retry-After": "nan"}),
        Refused(500, text="boom", kind="text/plain"),
        Refused(529),
        HANG_UP,
        HANG,
    ]

    def rule(asked):
        return troubles[asked.number] if asked.number < len(troubles) else asked.json(7)

    episode = said("an action")
    options = {"answers": {"retries": 20}, "engine": {"request_s": 0.5, "pause_s": 0.0001}}
    server, coach = play(rule, episode, provider=provider, **options)
    assert episode.turns[0].rewards == {"coach": pytest.approx(0.7)}
    assert len(server.asked) == len(troubles) + 1
    assert coach.totals["agent0"].requests == episode.turns[0].coach.requests >= 1


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refused_request_stops_all_requests_and_does_not_tell_the_key(provider, status):
    said_back = json.dumps({"error": {"message": "bad key secret-key-1", "code": status}})

    async def go():
        async with serving(lambda _: Refused(status, text=said_back)) as server:
            coach = coach_of(server, provider=provider)
            for _ in range(2):
                with pytest.raises(CoachStopError, match=r"refuses|knows no such model") as raised:
                    await coach(said("an action"), World())
                assert "secret-key-1" not in str(raised.value)
                assert "(key)" in str(raised.value)
            return len(server.asked)

    assert asyncio.run(go()) == 1


TOO_LONG = '{"error": {"message": "maximum context length is 8 tokens", "code": 400}}'


@pytest.mark.parametrize("refused", [Refused(413), Refused(400, text=TOO_LONG)])
def test_another_refusal_fails_that_action_at_once(refused):
    def rule(asked):
        return refused if asked.block("action") == "huge" else asked.json(5)

    episode = said("huge", "fine")
    server, _ = play(rule, episode)
    assert len(server.asked) == 2
    assert episode.turns[0].coach.error
    assert episode.turns[1].rewards == {"coach": 0.5}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_truncated_answer_is_never_read(provider):
    def rule(asked):
        return Said(asked.json(1).text, truncated=True)

    episode = said("an action")
    server, _ = play(rule, episode, provider=provider)
    assert len(server.asked) == 3
    assert "length limit" in episode.turns[0].coach.error


def test_an_unreadable_answer_is_asked_for_again_with_the_whole_question_and_a_new_code():
    def rule(asked):
        return Said("I like it. 9 of 10!") if asked.number < 2 else asked.json(4)

    episode = said("an action")
    server, _ = play(rule, episode)
    assert episode.turns[0].rewards == {"coach": 0.4}
    assert len({asked.nonce for asked in server.asked}) == 3
    for asked in server.asked:
        assert asked.block("task") == "What is 6 * 7?"
    assert ["could not be read" in asked.user for asked in server.asked] == [False, True, True]
    assert episode.turns[0].coach.note.usage["tries"] == 3
    assert episode.turns[0].coach.note.usage["completion_tokens"] == 150


def test_an_old_code_does_not_answer_a_new_request():
    old = []

    def rule(asked):
        old.append(asked.json(9))
        return old[0] if asked.number else Said("?")

    episode = said("an action")
    play(rule, episode)
    assert "request code" in episode.turns[0].coach.error


def test_servers_without_schemas_are_asked_for_text():
    episode = said("an action")
    text = {"structured": False}
    server, _ = play(lambda asked: asked.text("**6/10**"), episode, answers=text)
    assert episode.turns[0].rewards == {"coach": pytest.approx(0.6)}
    assert "response_format" not in server.asked[0].body
    assert "PROCESS_SCORE:" in server.asked[0].system


def test_the_deadline_bounds_all_requests_for_a_score():
    episode = said("an action")
    took = asyncio.run(_clock(episode))
    assert 0.9 < took < 10.0
    assert "no result within 1 s" in episode.turns[0].coach.error


async def _clock(episode) -> float:
    async with serving(lambda _: HANG) as server:
        coach = coach_of(server, engine={"timeout_s": 1.0, "request_s": 0.3})
        began = asyncio.get_running_loop().time()
        await coach(episode, World())
        return asyncio.get_running_loop().time() - began


def test_a_wait_beyond_the_deadline_is_not_waited_for():
    episode = said("an action")
    server, _ = play(lambda _: Refused(429, {"Retry-After": "3600"}), episode)
    assert len(server.asked) == 1
    assert "HTTP 429" in episode.turns[0].coach.error


def test_retry_after_is_honoured():
    times = []

    def rule(asked):
        times.append(asyncio.get_running_loop().time())
        return asked.json(8) if asked.number else Refused(503, {"Retry-After": "0.5"})

    play(rule, said("an action"))
    assert 0.5 <= times[1] - times[0] < 3.0


def test_no_more_requests_are_under_way_than_allowed():
    episode = said(*(f"action {number}" for number in range(12)))
    server, _ = play(eight, episode, engine={"concurrency": 3})
    assert len(server.asked) == 12
    assert 1 < server.most_under_way <= 3


def test_one_coach_serves_several_event_loops():
    async def go():
        async with serving(eight) as server:
            coach = coach_of(server)
            await asyncio.to_thread(asyncio.run, _score(coach, said("one")))
            await _score(coach, said("two"))
            return len(server.asked)

    assert asyncio.run(go()) == 2


async def _score(coach: Coach, episode) -> None:
    await coach(episode, World())
    assert episode.turns[0].rewards == {"coach": 0.8}


# --- what an action without a score means ---


def fails_on_bad(asked):
    return Said("no idea") if asked.block("action") == "bad" else asked.json(8)


def test_an_action_without_a_score_is_left_out_and_the_others_stay():
    episode = said("good", "bad")
    play(fails_on_bad, episode)
    good, bad = episode.turns
    assert (good.trained, good.weight, good.rewards) == (True, 1.0, {"coach": 0.8})
    assert (bad.trained, bad.weight, bad.rewards) == (False, 0.0, {})
    assert bad.coach.note is None
    assert "no readable score" in bad.coach.error
    assert episode.metrics["count/coach_errors"] == 1
    assert episode.metrics["count/coach_calls"] == 4
    assert episode.metrics["coach/agent0"] == 8.0
    assert "coach/agent1" not in episode.metrics


def test_credit_compares_only_actions_that_have_a_score():
    episode = said("good", "bad")
    play(fails_on_bad, episode)
    assert [turn.text for _, turn in Grpo().credited_turns([episode])] == ["good"]


def test_an_action_without_a_score_may_drop_its_episode():
    with pytest.raises(CoachError, match="no readable score"):
        play(fails_on_bad, said("good", "bad"), on_error="drop_episode")


def test_an_action_without_a_score_may_earn_its_outcome_alone():
    episode = said("good", "bad")
    play(fails_on_bad, episode, on_error="outcome_only", w_process=0.5, w_outcome=0.5)
    assert [turn.rewards["coach"] for turn in episode.turns] == pytest.approx([0.9, 0.5])
    assert episode.turns[1].trained


def test_an_action_without_a_score_may_count_as_half_of_the_scale():
    """.5 * .5 of the scale and .5 * 1 of the outcome."""
    episode = said("good", "bad")
    play(fails_on_bad, episode, on_error="neutral", w_process=0.5, w_outcome=0.5)
    assert [turn.rewards["coach"] for turn in episode.turns] == pytest.approx([0.9, 0.75])
    assert episode.turns[1].trained
    assert "no readable score" in episode.turns[1].coach.error
    assert "coach/agent1" not in episode.metrics, "no number is shown as the coach's own"


def test_the_reward_is_the_declared_mix_of_score_and_outcome():
    episode = said("a", "b")
    episode.scores = {"team": 0.5, "agent1": 1.0}
    play(eight, episode, w_process=0.25, w_outcome=0.5)
    assert [turn.rewards["coach"] for turn in episode.turns] == pytest.approx([0.45, 0.7])
    last = said("a", "b")
    play(eight, last, w_process=0.25, w_outcome=0.5, outcome_on="last")
    assert [turn.rewards["coach"] for turn in last.turns] == pytest.approx([0.2, 0.7])


@pytest.mark.parametrize("score", [None, 7.0, float("nan")])
def test_an_outcome_that_is_no_share_is_an_error_before_any_request(score):
    episode = said("a")
    episode.scores = {} if score is None else {"team": score}
    with pytest.raises(ValueError, match="outcome"):
        play(eight, episode, w_outcome=1.0)


def test_frozen_agents_are_context_and_not_scored():
    episode = said("a", "b")
    episode.turns[0].trained = False
    server, _ = play(eight, episode)
    assert [asked.block("action") for asked in server.asked] == ["b"]
    assert episode.turns[0].rewards == {}


def test_evaluation_asks_no_coach_unless_told():
    server, _ = play(eight, said("a", name="evaluation:t:0"))
    assert server.asked == []
    server, _ = play(eight, said("a", name="evaluation:t:0"), in_evaluation=True)
    assert len(server.asked) == 1


def test_the_second_pass_sees_the_outcome_and_both_scores_are_kept():
    def rule(asked):
        if "<<<" + asked.nonce + " outcome" in asked.user:
            assert asked.block("outcome") == "score: 0"
            return asked.json(2)
        return asked.json(9)

    episode = said("a")
    episode.scores["team"] = 0.0
    server, _ = play(rule, episode, hindsight=True)
    written = episode.turns[0].coach.note
    assert (written.score, written.final.score) == (9.0, 2.0)
    assert episode.turns[0].rewards == {"coach": pytest.approx(0.2)}
    assert len(server.asked) == 2


def test_hindsight_without_an_outcome_is_an_error():
    episode = said("a")
    episode.scores = {}
    with pytest.raises(ValueError, match="hindsight"):
        play(eight, episode, hindsight=True)


def test_a_workflow_can_ask_for_feedback_and_the_episode_does_not_ask_again():
    episode = said("a", "b")

    async def go():
        async with serving(eight) as server:
            coach = coach_of(server)
            score = await coach.score(Action(episode.turns[0], episode.task))
            assert (score.verdict.score, score.verdict.reasoning) == (8.0, "because")
            await coach(episode, World())
            return server

    server = asyncio.run(go())
    assert [asked.block("action") for asked in server.asked] == ["a", "b"]
    assert [turn.rewards["coach"] for turn in episode.turns] == [0.8, 0.8]
    assert episode.metrics["count/coach_calls"] == 2


def test_only_the_named_roles_are_judged_with_the_truth_in_view():
    def rule(asked):
        sees = "ground truth" in asked.user
        assert (TRUTH in asked.user) == sees
        return asked.json(8, answer_correct=1) if sees else asked.json(8)

    episode = said("a", "b", agents=("solver", "verifier"))
    play(rule, episode, view={"ground_truth_roles": ["verifier"]})
    solver, verifier = (turn.coach.note.answer_correct for turn in episode.turns)
    assert (solver, verifier) == (None, True)


# --- money ---


def test_a_spent_budget_stops_requests_and_says_so():
    episodes = [said("a"), said("b"), said("c")]
    told = "policies.judge.engine: the budget of 2000 tokens is spent; .* larger budget_tokens"
    with pytest.raises(CoachStopError, match=told):
        play(eight, *episodes, engine={"budget_tokens": 2000})
    assert [("coach" in episode.turns[0].rewards) for episode in episodes] == [True, True, False]


def test_a_budget_in_money_counts_answers_that_could_not_be_read():
    options = {"engine": {"budget_usd": 0.003}, "prices": {"prompt": 1.0, "completion": 10.0}}
    with pytest.raises(CoachStopError, match=r"0\.003 USD"):
        play(lambda _: Said("?"), said("a"), answers={"retries": 9}, **options)


def test_too_many_failures_stop_the_coach():
    async def go():
        async with serving(lambda _: Said("?")) as server:
            few = {"error_window": 4, "max_error_rate": 0.5, "retries": 0}
            coach = coach_of(server, answers=few)
            await coach(said("a", "b", "c", "d"), World())
            with pytest.raises(CoachStopError, match="4 of the last 4"):
                await coach(said("e"), World())
            return len(server.asked)

    assert asyncio.run(go()) == 4


# --- options ---


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({"name": "anthropic"}, "engine.key_env: the environment variable ANTHROPIC_API_KEY is"),
        (
            {"name": "google"},
            "engine.key_env: the environment variable GEMINI_API_KEY is not set, nor is "
            "GOOGLE_API_KEY$",
        ),
        ({"name": "openai"}, "engine.key_env: the environment variable OPENAI_API_KEY is not set"),
        ({"name": "openai", "key_env": "NO_SUCH_KEY"}, "engine.key_env: .* NO_SUCH_KEY is not set"),
        ({"name": "google", "vertex": True}, "engine.vertex: .* GOOGLE_CLOUD_PROJECT"),
    ],
)
def test_a_missing_key_is_named_before_any_request(monkeypatch, engine, told):
    for name in ("ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY",
                 "GOOGLE_CLOUD_PROJECT"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    config = judge_config("http://127.0.0.1:1").model_dump()
    config["policies"]["judge"] = {"engine": {"model": "m"} | engine}
    with pytest.raises(ConfigError, match=f"^policies.judge.{told}"):
        chat_model(Config.model_validate(config))


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        ({"GEMINI_API_KEY": "secret-a"}, "secret-a"),
        ({"GOOGLE_API_KEY": "secret-b"}, "secret-b"),
        ({"GEMINI_API_KEY": " ", "GOOGLE_API_KEY": "secret-b"}, "secret-b"),
        ({"GEMINI_API_KEY": "secret-a", "GOOGLE_API_KEY": "secret-b"}, "secret-a"),
    ],
)
def test_the_first_of_googles_two_variables_that_is_set_holds_its_key(monkeypatch, keys, sent):
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, key in keys.items():
        monkeypatch.setenv(name, key)
    server, _ = play(eight, said("a"), provider="google", engine={"key_env": None})
    assert server.asked[0].headers["x-goog-api-key"] == sent


def test_a_server_of_ones_own_gets_no_key_that_was_meant_for_others(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key-2")
    server, _ = play(eight, said("a"), engine={"key_env": None})
    assert "secret-key-2" not in json.dumps(server.asked[0].headers)


@pytest.mark.parametrize(
    "options",
    [
        {"on_error": "outcome_only"},
        {"outcome_on": "last"},
        {"w_process": 0.0},
        {"w_process": -1.0},
        {"show_to": ("solver",)},
        {"engine": {"budget_tokens": 0}},
        {"engine": {"timeout_s": 0.0}},
        {"engine": {"concurrency": 0}},
        {"replies": {"max_tokens": 0}},
        {"answers": {"max_error_rate": 0.0}},
        {"answers": {"retries": -1}},
        {"view": {"tool_chars": 1}},
        {"prices": {"prompt": -1.0}},
    ],
)
def test_options_that_cannot_act_are_refused(options):
    with pytest.raises(ValueError, match=r"."):
        coach_of(Server(eight), **options)


def test_a_config_can_state_the_options():
    model = registry.options_model(Coach, skip=0)
    options = model(policy="judge", on_error="drop_episode", view={"ground_truth_roles": ["a"]})
    assert options.view.ground_truth_roles == {"a"}
    assert registry.list_chat_options(Coach) == ["policy"]
    with pytest.raises(ValueError, match="on_error"):
        model(policy="judge", on_error="ignore")
    with pytest.raises(ValueError, match="write the name of a policy"):
        model(policy=5)


# --- no LLM at all ---


def test_checked_steps_score_arithmetic_without_a_model():
    episode = said("3 * 4 = 12 and 12 + 5 = 18", "nothing to see")
    reward = CheckedSteps()
    for _ in range(2):  # texts without steps are no failure of a provider
        asyncio.run(reward(episode, World()))
    checked, empty = episode.turns
    assert checked.rewards == {"coach": 0.5}
    assert "12 + 5 = 18" in checked.coach.note.reasoning
    assert (empty.trained, empty.rewards) == (False, {})
