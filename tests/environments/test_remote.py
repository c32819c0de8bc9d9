"""Teams act in environments that servers hold; a server that fails is never a reward."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import grpc
import pytest
import uvicorn
from fastapi import FastAPI, WebSocket
from starlette.websockets import WebSocketDisconnect

from rolecall.core.errors import ConfigError, InfrastructureError, RunEndingError
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Message, Task
from rolecall.environments.gymnasium.returns import Scale
from rolecall.environments.openenv.client import Form, socket_address
from rolecall.environments.openenv.environment import OpenEnvEnvironment
from rolecall.environments.remote.environment import RemoteEnvironment
from rolecall.environments.remote.grpc_client import join_messages
from rolecall.environments.remote.messages import CLASSES, METHODS, SERVICE
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.runs.serve_environments import open_environment
from rolecall.workflows.multi_turn import multi_turn
from rolecall.workflows.remote import remote
from tests.environment_server.serving import free_port, run, serve_grpc, serve_openenv
from tests.environments.contexts import said_by

pytestmark = pytest.mark.slow

KINDS = {
    "grpc": (serve_grpc, lambda address, name: RemoteEnvironment(address, name, test_size=5)),
    "openenv": (
        serve_openenv,
        lambda address, name: OpenEnvEnvironment(f"{address}/{name}", test_size=5),
    ),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def context_of(environment, team, workflow=remote, **options) -> RolloutContext:
    return RolloutContext(team, workflow, options, environment, rewards={}, retries=0)


@kinds
def test_a_team_plays_the_agents_of_the_server(kind, model_folder):
    """The third call shows the solver's own tokens again, not a new spelling of its words."""
    serve, make = KINDS[kind]

    async def test():
        async with serve("math", "math_alone") as address:
            environment = make(address, "math")
            await environment.check()
            task = environment.tasks("test")[3]
            truth = open_environment("math").tasks("test")[3].answer
            team = said_by(
                model_folder,
                solver=["\\boxed{1}", f"\\boxed{{{truth}}}"],
                verifier=["no <verify>reject</verify>"],
            )
            episode = await play(context_of(environment, team), task)
            assert episode.error is None, episode.error
            assert [turn.agent for turn in episode.turns] == ["solver", "verifier", "solver"]
            first, verdict, last = episode.turns
            said = [*first.prompt, *first.tokens]
            assert last.prompt[: len(said)].tolist() == said
            assert last.parents == (first.id,)
            assert verdict.messages[0].content.startswith("Check the solution.")
            assert episode.scores == {"solver": 1.0, "verifier": 1.0}
            assert not episode.is_truncated
            assert last.observation is None or "reject" in last.observation
            await close(environment)

    run(test)


async def close(environment):
    if hasattr(environment, "close"):
        await environment.close()


@kinds
def test_an_agent_of_another_name_plays_alone(kind, model_folder):
    serve, make = KINDS[kind]

    async def test():
        async with serve("math_alone") as address:
            environment = make(address, "math_alone")
            task = environment.tasks("test")[0]
            truth = open_environment("math_alone").tasks("test")[0].answer
            for workflow in (remote, multi_turn):
                team = said_by(model_folder, actor=[f"\\boxed{{{truth}}}"])
                episode = await play(context_of(environment, team, workflow), task)
                assert episode.error is None, episode.error
                assert episode.scores == {"team": 1.0}
            two = said_by(model_folder, actor=["x"], critic=["x"])
            episode = await play(context_of(environment, two), task)
            assert episode.error.startswith(
                "ValueError: the server asks agent 'solver', and the team has actor, critic; name"
            )
            await close(environment)

    run(test)


def test_a_question_that_the_server_has_not_posed_is_refused(model_folder):
    async def test():
        environment = OpenEnvEnvironment("http://localhost:1")
        team = said_by(model_folder, solver=["x"])
        episode = await play(context_of(environment, team), Task("q", "What is 2+2?"))
        assert episode.error.startswith("ValueError: the server of the environment poses the task")

    run(test)


@kinds
def test_a_conversation_that_does_not_end_is_cut(kind, model_folder):
    serve, make = KINDS[kind]

    async def test():
        async with serve("math") as address:
            environment = make(address, "math")
            team = said_by(model_folder, solver=["x"] * 9, verifier=["<verify>reject</verify>"] * 9)
            episode = await play(
                context_of(environment, team, max_turns=2), environment.tasks("train")[0]
            )
            assert len(episode.turns) == 2
            assert episode.is_truncated
            await close(environment)

    run(test)


@kinds
def test_a_server_that_dies_in_the_middle_is_an_error_and_another_one_is_used(kind, model_folder):
    """The port is the same, and so is the environment: training only has to play again."""
    serve, make = KINDS[kind]
    port = free_port()

    async def test():
        task = None
        async with serve("math", port=port) as address:
            environment = make(address, "math")
            task = environment.tasks("test")[0]
            world = environment.open(task, seed=0)
            await world.reset()
            await world.step("solver", "\\boxed{1}")
        with pytest.raises(InfrastructureError):
            await asyncio.wait_for(world.step("verifier", "<verify>approve</verify>"), 20)
        await world.close()
        team = said_by(model_folder, solver=["\\boxed{1}"], verifier=["<verify>approve</verify>"])
        playing = asyncio.create_task(play(context_of(make(address, "math"), team), task))
        await asyncio.sleep(1.0)  # there is no server, which is waited for
        assert not playing.done()
        async with serve("math", port=port):
            episode = await playing
            assert episode.error is None, episode.error
            assert episode.scores == {"solver": 0.0, "verifier": 0.0}
        await close(environment)

    run(test)


def test_a_server_that_is_not_there_is_no_reward(model_folder):
    async def test():
        port = free_port()
        for environment in (
            RemoteEnvironment(f"127.0.0.1:{port}", "math", timeout_s=0.5),
            OpenEnvEnvironment(f"http://127.0.0.1:{port}", timeout_s=0.5),
        ):
            with pytest.raises(InfrastructureError, match=str(port)):
                await environment.check()
            team = said_by(model_folder, solver=["x"])
            episode = await play(context_of(environment, team), environment.tasks("train")[0])
            assert episode.error.startswith("InfrastructureError: ") or "LostCall" in episode.error
            assert not episode.is_mistake
            assert episode.scores == {}
            await close(environment)

    run(test)


def test_what_the_server_lacks_is_said_before_training():
    async def test():
        async with serve_grpc("math_alone", "debate") as address:
            with pytest.raises(
                ConfigError, match=r"environment.environment: .* has no 'maths'; it has debate, mat"
            ):
                await RemoteEnvironment(address, "maths").check()
            with pytest.raises(
                ConfigError,
                match=r"environment.test_size is 601, and the server's test split has",
            ):
                await RemoteEnvironment(address, "math_alone", test_size=601).check()
        async with serve_grpc("math_alone", token="secret") as address:
            with pytest.raises(RunEndingError, match="UNAUTHENTICATED"):
                await RemoteEnvironment(address, "math_alone").check()

    run(test)


def test_a_token_is_sent(monkeypatch, model_folder):
    monkeypatch.setenv("ENVIRONMENTS_TOKEN", "secret")

    async def test():
        async with (
            serve_grpc("math_alone", token="secret") as address,
            serve_openenv("math_alone", token="secret") as url,
        ):
            for environment in (
                RemoteEnvironment(address, "math_alone", token_env="ENVIRONMENTS_TOKEN"),
                OpenEnvEnvironment(url, token_env="ENVIRONMENTS_TOKEN"),
            ):
                await environment.check()
                team = said_by(model_folder, solver=["x"])
                episode = await play(context_of(environment, team), environment.tasks("train")[0])
                assert episode.error is None, episode.error
                await close(environment)
            open_one = OpenEnvEnvironment(url)
            episode = await play(context_of(open_one, {}), open_one.tasks("train")[0])
            assert "403" in episode.error

    with pytest.raises(RunEndingError, match="403"):
        run(test)


class Foreign:
    """A server of MRLM's protocol that is not rolecall's: it counts steps and knows no `agents`."""

    def __init__(self):
        self.steps = 0

    async def answer(self, name, request):
        observation = {"messages": [{"role": "environment", "content": f"Step {self.steps}."}]}
        if name == "Reset":
            return {"observation": observation, "session_id": "one", "status": "success"}
        self.steps += 1
        echo = {"role": "assistant", "content": request.action.content}
        observation["messages"] = [echo, {"role": "user", "content": f"Step {self.steps}."}]
        observation["done"] = self.steps == 3
        status = "success" if request.action.content != "break" else "no such thing"
        return {"observation": observation, "reward": {"value": 0.25}, "status": status}

    async def serve(self, server):
        handlers = {}
        for name in ("Reset", "Step"):
            request, response = METHODS[name]

            async def handle(message, context, name=name, response=response):
                return CLASSES[response](**await self.answer(name, message))

            handlers[name] = grpc.unary_unary_rpc_method_handler(
                handle,
                request_deserializer=CLASSES[request].FromString,
                response_serializer=CLASSES[response].SerializeToString,
            )
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return f"127.0.0.1:{port}"


def test_a_server_of_mrlm_answers_with_what_is_new(model_folder):
    async def test():
        server = grpc.aio.server()
        address = await Foreign().serve(server)
        environment = RemoteEnvironment(address, "x", low=0.0, high=1.5)
        team = said_by(model_folder, actor=["one", "two", "three"])
        episode = await play(context_of(environment, team), environment.tasks("train")[0])
        assert episode.error is None, episode.error
        last = [(m.role, m.content) for m in episode.turns[-1].messages]
        assert last == [
            ("user", "Step 0."), ("assistant", "one"), ("user", "Step 1."),
            ("assistant", "two"), ("user", "Step 2."),
        ]  # fmt: skip
        assert episode.scores == {"team": 0.5}
        world = environment.open(environment.tasks("train")[0], seed=0)
        await world.reset()
        with pytest.raises(InfrastructureError, match="the status 'no such thing'"):
            await world.step("actor", "break")
        await server.stop(None)
        await environment.close()

    run(test)


def test_messages_that_a_server_repeats_are_shown_once():
    first, own, new = Message("user", "a"), Message("assistant", "b"), Message("user", "c")
    for answer in ([new], [own, new], [first, own, new]):
        assert join_messages([first], "b", answer) == [first, own, new]


class Guess:
    """A server of OpenEnv with an environment of its own, which takes {"number": N}."""

    def __init__(self):
        self.app, self.places = FastAPI(), 1
        self.app.add_api_websocket_route("/ws", self.play)
        self.app.add_api_route("/schema", self.schema)

    async def schema(self):
        return {
            "action": {"properties": {"number": {}, "metadata": {}}},
            "observation": {"properties": {"hint": {}, "turn": {}}},
        }

    async def play(self, socket: WebSocket):
        await socket.accept()
        if self.places == 0:
            problem = {"message": "full", "code": "CAPACITY_REACHED"}
            await socket.send_json({"type": "error", "data": problem})
            await socket.close()
            return
        self.places -= 1
        try:
            while True:
                message = await socket.receive_json()
                await socket.send_json(self.answer(message))
        except WebSocketDisconnect:
            self.places += 1

    def answer(self, message):
        number = message["data"].get("number")
        if message["type"] == "step" and not isinstance(number, int):
            errors = [{"loc": ["number"], "msg": "a whole number"}]
            problem = {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": errors}
            return {"type": "error", "data": problem}
        if number == 13:
            problem = {"message": "bad luck", "code": "EXECUTION_ERROR"}
            return {"type": "error", "data": problem}
        observation = {"hint": "Guess." if number is None else "No.", "turn": 1, "metadata": {}}
        answer = {"observation": observation, "reward": number and 2.0, "done": number == 7}
        return {"type": "observation", "data": answer}


@pytest.fixture
def guess():
    server = Guess()
    port = free_port()
    config = uvicorn.Config(server.app, port=port, log_level="warning")
    return uvicorn.Server(config), f"http://127.0.0.1:{port}"


def test_an_environment_of_openenv_is_played(guess, model_folder):
    serving, url = guess

    async def test():
        task = asyncio.create_task(serving.serve())
        while not serving.started:
            await asyncio.sleep(0.01)
        options = {"action": "json", "rules": "Write JSON.", "low": 0, "high": 4}
        environment = OpenEnvEnvironment(url, show="hint", step_rewards=True, **options)
        await environment.check()
        texts = ["seven", '{"number": "7"}', '{"number": 3}', '{"number": 7}']
        team = said_by(model_folder, actor=texts)
        episode = await play(context_of(environment, team), environment.tasks("train")[0])
        assert episode.error is None, episode.error
        shown = [m.content for m in episode.turns[-1].messages]
        assert shown == [
            "Write JSON.\n\nGuess.", "seven",
            "That was no valid action: write a JSON object and nothing else: Expecting value: "
            "line 1 column 1 (char 0)",
            texts[1],
            "That was no valid action: Invalid message: number: a whole number",
            texts[2], "No.",
        ]  # fmt: skip
        paid = [turn.world_rewards.get("step") for turn in episode.turns]
        assert paid == [None, None, 0.5, 0.5]
        assert episode.scores == {"team": 1.0}
        assert episode.metrics["count/illegal_actions"] == 2

        unlucky = said_by(model_folder, actor=['{"number": 13}'])
        episode = await play(context_of(environment, unlucky), environment.tasks("train")[0])
        assert "EXECUTION_ERROR: bad luck" in episode.error
        assert episode.scores == {}

        both = [said_by(model_folder, actor=['{"number": 7}']) for _ in range(2)]
        episodes = await asyncio.gather(
            *(play(context_of(environment, one), environment.tasks("train")[0]) for one in both)
        )
        assert [episode.error for episode in episodes] == [None, None]

        whole = replace(environment.form, show=None)
        assert json.loads(whole.write_observation({"hint": "a", "metadata": {}})) == {"hint": "a"}
        for wrong, problem in (
            ({"action": "text"}, "environment.action is 'text'; an action of .* has number"),
            ({"action": "number", "show": "x"}, "environment.show is 'x'; an observation of .* h"),
        ):
            with pytest.raises(ConfigError, match=problem):
                await OpenEnvEnvironment(url, **wrong).check()
        serving.should_exit = True
        await task

    run(test)


def test_an_observation_without_the_field_ends_the_run():
    with pytest.raises(RunEndingError, match="an observation has no 'hint'; it has text, turn"):
        Form("", "message", "hint").write_observation({"text": "", "turn": 1})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"low": 0.0}, "low and high belong together; write both or none"),
        ({"low": 1.0, "high": 1.0}, "low is 1 and high is 1; low must be below high"),
        ({"timeout_s": 0}, "timeout_s is 0; write a number above 0"),
        ({"token_env": "NOT_SET"}, "token_env: the environment variable NOT_SET is not set"),
    ],
)
def test_wrong_options_are_refused(options, problem):
    for make in (
        lambda: RemoteEnvironment("localhost:1", "math", **options),
        lambda: OpenEnvEnvironment("http://localhost:1", **options),
    ):
        with pytest.raises(ValueError, match=problem):
            make()


def test_addresses():
    assert socket_address("http://localhost:8000") == "ws://localhost:8000/ws"
    assert socket_address("https://a.org/math/") == "wss://a.org/math/ws"
    for wrong in ("localhost:8000", "ftp://a.org", ""):
        with pytest.raises(ValueError, match=r"url is .*; write an address such as http://localh"):
            socket_address(wrong)


def test_tasks_differ_and_a_sum_out_of_bounds_is_an_error():
    tasks = RemoteEnvironment("localhost:1", "math", test_size=3).tasks("test")
    assert len(tasks) == 3
    assert tasks[2].info["reset"] == {
        "split": "test", "index": 2, "seed": derive_seed("test", 2) % 2**31
    }  # fmt: skip
    assert Scale.make(None, None, pays_steps=False).score(7.5) == 7.5
    with pytest.raises(ValueError, match="paid 3, which is not between low 0 and high 2"):
        Scale.make(0, 2, pays_steps=False).score(3.0)
