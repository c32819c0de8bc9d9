"""Environments are served in MRLM's protocol, byte for byte, and a step is taken once."""

from __future__ import annotations

import asyncio
import gc
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rolecall.core.errors import InfrastructureError
from rolecall.environment_server import grpc_service
from rolecall.environment_server.session import Session
from rolecall.environments.remote.messages import CLASSES, METHODS, SERVICE
from rolecall.runs.serve_environments import open_environment
from rolecall.workflows.base import workflow
from tests.environment_server.serving import run, serve_grpc, serve_service

pytestmark = pytest.mark.slow
Code = grpc.StatusCode


def call(channel, name, metadata=None, **fields):
    request, response = METHODS[name]
    method = channel.unary_unary(
        f"/{SERVICE}/{name}",
        request_serializer=CLASSES[request].SerializeToString,
        response_deserializer=CLASSES[response].FromString,
    )
    return method(CLASSES[request](**fields), metadata=metadata, timeout=30)


def served(*names, **options):
    """A decorator: run the test with a channel to a server of these recipes."""

    def wrap(test):
        def whole():
            async def inside():
                async with (
                    serve_grpc(*names, **options) as address,
                    grpc.aio.insecure_channel(address) as channel,
                ):
                    await test(channel)

            run(inside)

        whole.__name__, whole.__doc__ = test.__name__, test.__doc__
        return whole

    return wrap


async def refused(awaited, code, details=""):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await awaited
    assert error.value.code() == code, error.value.details()
    assert details in error.value.details()


def action(text, **metadata):
    return {"role": "assistant", "content": text, "metadata": metadata}


def test_messages_have_the_bytes_of_the_proto():
    """A tag is the field's number times 8, plus 2 for what has a length and 1 for a double."""
    step = CLASSES["StepRequest"](session_id="s", action=action("hi", a="b"))
    inner = b"\x0a\x09assistant\x12\x02hi\x1a\x06\x0a\x01a\x12\x01b"
    assert step.SerializeToString() == b"\x0a\x01s\x12" + bytes([len(inner)]) + inner
    reward = CLASSES["RewardProto"](value=1.0, components={"x": 0.5})
    assert reward.SerializeToString() == (
        b"\x09" + b"\0\0\0\0\0\0\xf0\x3f" + b"\x12\x0c\x0a\x01x\x11" + b"\0\0\0\0\0\0\xe0\x3f"
    )
    health = CLASSES["HealthCheckResponse"](status="healthy", timestamp=300)
    assert health.SerializeToString() == b"\x0a\x07healthy\x18\xac\x02"
    assert CLASSES["ObservationProto"](done=True).SerializeToString() == b"\x18\x01"


@served("math_alone")
async def test_an_agent_answers_and_is_rewarded(channel):
    reset = await call(channel, "Reset", environment_id="math_alone", config={"seed": "3"})
    assert reset.status == "success"
    system, user = reset.observation.messages
    assert (system.role, user.role) == ("system", "user")
    assert not reset.observation.done
    step = await call(channel, "Step", session_id=reset.session_id, action=action("\\boxed{39}"))
    assert user.content.startswith("Ann has 22 books. Ann gives 9 away. Ann then has 3 times")
    assert (step.status, step.reward.value, step.observation.done) == ("success", 1.0, True)


@served("debate")
async def test_every_agent_has_its_turn_and_its_reward(channel):
    reset = await call(channel, "Reset", environment_id="debate", config={"seed": "3"})
    info, names = reset.observation.info, []
    for text in ("It is so.", "It is not.", "<winner>a</winner>"):
        names.append(info["agent"])
        metadata = {"agent": names[-1]}
        step = await call(
            channel, "Step", session_id=reset.session_id, action=action(text, **metadata)
        )
        info = step.observation.info
    assert names == ["debater_2", "debater_1", "judge"]
    assert dict(step.reward.components) == {"debater_1": 1.0, "debater_2": -1.0, "judge": 1.0}
    assert step.reward.value == 1.0
    assert step.observation.done


@served("math", "math_alone")
async def test_a_step_that_is_sent_again_is_taken_once(channel):
    reset = await call(channel, "Reset", environment_id="math", config={"seed": "3"})

    def step(number, text):
        words = action(text, step=str(number))
        return call(channel, "Step", session_id=reset.session_id, action=words)

    first = await step(0, "\\boxed{1}")
    again, twice = await asyncio.gather(step(0, "\\boxed{1}"), step(0, "other words"))
    assert first == again == twice
    assert first.observation.info["agent"] == "verifier"
    wrong = action("x", step="1", agent="solver")
    calling = call(channel, "Step", session_id=reset.session_id, action=wrong)
    await refused(calling, Code.FAILED_PRECONDITION, "'solver' is not to act now")
    assert await step(0, "\\boxed{1}") == first
    await refused(step(2, "x"), Code.FAILED_PRECONDITION, "step is 2; the next one of this sess")
    await refused(step("x", "x"), Code.INVALID_ARGUMENT, "step is 'x'; write a whole number")
    last = await step(1, "<verify>approve</verify>")
    assert last.observation.done
    assert await step(1, "<verify>approve</verify>") == last
    await refused(step(2, "x"), Code.FAILED_PRECONDITION, "the episode has ended; reset")


@served("math_alone")
async def test_what_cannot_be_answered_has_a_status(channel):
    await refused(
        call(channel, "Reset", environment_id="maths"),
        Code.NOT_FOUND,
        "no environment 'maths'; this server has math_alone",
    )
    for config, problem in (
        ({"level": "3"}, "config has 'level'; it may have split, index and seed"),
        ({"seed": "-1"}, "seed is '-1'; write a whole number of at least 0"),
        ({"split": "dev"}, "split is 'dev'; the splits are train, test"),
        ({"split": "test", "index": "600"}, "index is 600; the split 'test' has 600 tasks"),
    ):
        answer = call(channel, "Reset", environment_id="math_alone", config=config)
        await refused(answer, Code.INVALID_ARGUMENT, problem)
    await refused(
        call(channel, "Step", session_id="x", action=action("")), Code.NOT_FOUND, "no session 'x'"
    )


@served("math_alone", "debate")
async def test_batches_and_streams_and_lists(channel):
    resets = [
        await call(channel, "Reset", environment_id="math_alone", config={"seed": "3"})
        for _ in range(3)
    ]
    requests = [
        CLASSES["StepRequest"](session_id=reset.session_id, action=action(f"\\boxed{{{number}}}"))
        for number, reset in zip((39, 1, 39), resets, strict=True)
    ]
    requests.insert(1, CLASSES["StepRequest"](session_id="gone"))
    batch = await call(channel, "BatchStep", requests=requests)
    assert [one.reward.value for one in batch.responses] == [1.0, 0.0, 0.0, 1.0]
    statuses = [one.status for one in batch.responses]
    assert statuses == ["success", "error: no session 'gone'", "success", "success"]

    reset = await call(channel, "Reset", environment_id="debate")
    stream = channel.stream_stream(
        f"/{SERVICE}/StreamStep",
        request_serializer=CLASSES["StepRequest"].SerializeToString,
        response_deserializer=CLASSES["StepResponse"].FromString,
    )
    steps = [
        CLASSES["StepRequest"](session_id=reset.session_id, action=action("<winner>a</winner>"))
        for _ in range(3)
    ]
    assert [one.observation.done async for one in stream(iter(steps))] == [False, False, True]

    listed = (await call(channel, "ListEnvironments")).environments
    assert [one.environment_id for one in listed] == ["math_alone", "debate"]
    assert json.loads(listed[1].metadata["splits"]) == {"train": 1_000_000_000, "test": 200}
    [one] = (await call(channel, "ListEnvironments", environment_type="debate")).environments
    assert one.metadata["agents"] == "debater_1,debater_2,judge"
    health = await call(channel, "HealthCheck")
    assert (health.status, health.info["num_sessions"]) == ("healthy", "0")


@served("math_alone")
async def test_sessions_are_bounded(channel):
    grpc_service_most, grpc_service.MOST_SESSIONS = grpc_service.MOST_SESSIONS, 2
    try:
        for _ in range(2):
            await call(channel, "Reset", environment_id="math_alone")
        more = call(channel, "Reset", environment_id="math_alone")
        await refused(more, Code.RESOURCE_EXHAUSTED, "2 sessions are open; end some")
    finally:
        grpc_service.MOST_SESSIONS = grpc_service_most


def count_sessions() -> int:
    gc.collect()
    return sum(isinstance(held, Session) for held in gc.get_objects())


def test_a_session_that_has_ended_is_not_kept():
    """One whose client has left, and one whose last answer nobody asks for again."""

    async def test():
        environment = open_environment("math_alone")
        environment.context = replace(environment.context, timeout_s=0.5)
        service = grpc_service.EnvironmentService([environment])
        request = CLASSES["ResetRequest"](environment_id="math_alone")
        await service.Reset(request)
        reset = await service.Reset(request)
        last = CLASSES["StepRequest"](session_id=reset.session_id, action=action("\\boxed{1}"))
        assert (await service.Step(last)).observation.done
        await asyncio.sleep(0.1)
        assert count_sessions() == 1
        await asyncio.sleep(0.6)
        assert count_sessions() == 0

    run(test)


def test_a_session_that_failed_is_not_kept():
    async def fail(episode, world):
        raise InfrastructureError("the sandbox is gone")

    async def test():
        environment = open_environment("math_alone")
        environment.context.rewards = {"correct": (fail, 1.0)}
        service = grpc_service.EnvironmentService([environment])
        reset = await service.Reset(CLASSES["ResetRequest"](environment_id="math_alone"))
        step = CLASSES["StepRequest"](session_id=reset.session_id, action=action("x", step="0"))
        for _ in range(2):
            with pytest.raises(grpc_service.StatusError, match="the sandbox is gone") as raised:
                await service.Step(step)
            assert raised.value.code == Code.UNAVAILABLE
            del raised
            assert count_sessions() == 0

    run(test)


@workflow
async def begin_late(team, task, world):
    await asyncio.sleep(60)
    return await team.solver("a")


def test_a_client_that_leaves_in_the_middle_of_a_reset_ends_its_episode():
    async def test():
        environment = open_environment("math_alone")
        environment.context = replace(environment.context, workflow=begin_late, options={})
        before = len(asyncio.all_tasks())
        async with (
            serve_service(environment) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            calling = call(channel, "Reset", environment_id="math_alone")
            await asyncio.sleep(0.3)
            assert count_sessions() == 1
            calling.cancel()
            await asyncio.sleep(0.3)
            assert count_sessions() == 0
        assert len(asyncio.all_tasks()) == before

    run(test)


@served("math_alone", token="secret")
async def test_a_token_is_demanded_of_every_method(channel):
    for name in METHODS:
        if name == "StreamStep":
            stream = channel.stream_stream(f"/{SERVICE}/{name}")
            await refused(anext(aiter(stream(iter(())))), Code.UNAUTHENTICATED)
            continue
        await refused(call(channel, name), Code.UNAUTHENTICATED, "authorization: Bearer TOKEN")
        wrong = call(channel, name, metadata=[("authorization", "Bearer secreT")])
        await refused(wrong, Code.UNAUTHENTICATED)
    right = [("authorization", "Bearer secret")]
    assert (await call(channel, "HealthCheck", metadata=right)).status == "healthy"


def make_certificate() -> tuple[bytes, bytes]:
    """A private key and a certificate of localhost, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    return (
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
        certificate.public_bytes(pem),
    )


def test_tls():
    pair = make_certificate()

    async def test():
        async with serve_grpc("math_alone", certificate=pair) as address:
            name = address.replace("127.0.0.1", "localhost")
            credentials = grpc.ssl_channel_credentials(pair[1])
            async with grpc.aio.secure_channel(name, credentials) as channel:
                assert (await call(channel, "HealthCheck")).status == "healthy"
            async with grpc.aio.insecure_channel(name) as channel:
                await refused(call(channel, "HealthCheck"), Code.UNAVAILABLE)

    run(test)
