"""Weights that are sent from one process to several; here the sides are threads."""

import asyncio
import itertools
import json
import socket
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore

from rolecall.models import weight_transfer
from rolecall.models.weight_transfer import (
    Direct,
    MeetingPoint,
    Receiver,
    Sender,
    TransferError,
    make_buckets,
)

CPU = torch.device("cpu")


def weights(seed: int) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return {
        "small": torch.randn(3, generator=made),
        "half": torch.randn(5, 7, generator=made).bfloat16(),
        "larger than the buffer": torch.randn(40, 11, generator=made),
        "empty": torch.randn(0, 4, generator=made),
        "flag": torch.tensor(seed),
        "last": torch.randn(17, generator=made).half(),
    }


def shapes(found: dict[str, torch.Tensor]) -> weight_transfer.Shapes:
    return {name: (weight.dtype, weight.shape) for name, weight in found.items()}


def point_for(receivers: int, *, shared: bool) -> MeetingPoint:
    return MeetingPoint("127.0.0.1", Direct(receivers, shares_device=shared))


@pytest.fixture(autouse=True)
def small_and_soon(monkeypatch):
    monkeypatch.setattr(weight_transfer, "BUCKET", 256)
    monkeypatch.setattr(weight_transfer, "CONNECT_S", 1.0)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("number", [1, 3])
def test_every_receiver_gets_the_bits_of_every_publication(shared, number):
    point = point_for(number, shared=shared)
    got: list[list[dict[str, torch.Tensor]]] = [[] for _ in range(number)]

    def send() -> None:
        sender = Sender(CPU)
        for seed in range(3):
            sender.send(point.at, shapes(weights(0)), weights(seed).values())
        sender.close()

    def receive(k: int) -> None:
        receiver = Receiver(CPU)
        for _ in range(3):
            got[k].append({name: weight.clone() for name, weight in receiver.weights(point.at, k)})
        receiver.close()

    async def run() -> list[Exception | None]:
        sides = [asyncio.to_thread(receive, k) for k in range(number)]
        return await point.meet([asyncio.to_thread(send), *sides])

    assert asyncio.run(run()) == [None] * (number + 1)
    for mine in got:
        for seed, found in enumerate(mine):
            sent = weights(seed)
            assert list(found) == list(sent)
            for name, weight in found.items():
                assert weight.dtype == sent[name].dtype
                assert torch.equal(weight, sent[name])


def test_a_buffer_holds_what_fits_and_begins_each_weight_where_its_numbers_may():
    found = make_buckets(shapes(weights(0)), most=256)
    assert [[slot.name for slot in bucket] for bucket in found] == [
        ["small", "half"],
        ["larger than the buffer"],
        ["empty", "flag", "last"],
    ]
    for bucket in found:
        for before, slot in itertools.pairwise(bucket):
            assert slot.start >= before.end
            assert slot.start % 16 == 0
    assert make_buckets({}, most=256) == []


@pytest.mark.parametrize("shared", [False, True])
def test_when_a_receiver_fails_the_others_wait_no_longer(shared):
    point = point_for(3, shared=shared)
    before = set(Path("/dev/shm").glob("rolecall-*"))
    got: list[list[str]] = [[], [], []]
    large = {"first": torch.zeros(10), "second": torch.zeros(2**23)}  # more than sockets hold

    def send() -> None:
        sender = Sender(CPU)
        try:
            sender.send(point.at, shapes(large), large.values())
        finally:
            sender.close()

    def receive(k: int) -> None:
        receiver = Receiver(CPU)
        try:
            for name, _ in receiver.weights(point.at, k):
                got[k].append(name)
                if k == 1:
                    raise ZeroDivisionError
        finally:
            receiver.close()

    async def run() -> list[Exception | None]:
        sides = [asyncio.to_thread(receive, k) for k in range(3)]
        return await point.meet([asyncio.to_thread(send), *sides])

    begun = time.monotonic()
    sent, *received = asyncio.run(run())
    assert time.monotonic() - begun < 20
    assert isinstance(received[1], ZeroDivisionError)
    for error, names in zip([received[0], received[2]], [got[0], got[2]], strict=True):
        assert isinstance(error, TransferError) if names != list(large) else error is None
    if shared:  # a broadcast may be done with one of those that had theirs
        assert [type(e) for e in (sent, received[0], received[2])] == [TransferError] * 3
    assert set(Path("/dev/shm").glob("rolecall-*")) <= before


def test_whoever_waits_for_others_that_do_not_come_is_told():
    point = point_for(2, shared=False)

    def send() -> None:
        Sender(CPU).send(point.at, shapes(weights(0)), weights(0).values())

    async def close() -> None:
        await asyncio.sleep(0.5)
        raise ConnectionError("lost")

    async def run() -> list[Exception | None]:
        return await point.meet([asyncio.to_thread(send), close()])

    sent, _ = asyncio.run(run())
    assert isinstance(sent, TransferError)
    with pytest.raises(TransferError):
        list(Receiver(CPU).weights(point.at, 0))


@pytest.mark.parametrize("wrong", ["shape", "number"])
def test_weights_that_are_not_as_was_said_are_not_sent(wrong):
    point, sent = point_for(1, shared=True), weights(0)
    if wrong == "shape":
        sent["half"] = sent["half"].float()
    else:
        del sent["last"]

    def send() -> None:
        Sender(CPU).send(point.at, shapes(weights(0)), sent.values())

    def receive() -> None:
        list(Receiver(CPU).weights(point.at, 0))

    async def run() -> list[Exception | None]:
        return await point.meet([asyncio.to_thread(send), asyncio.to_thread(receive)])

    said, got = asyncio.run(run())
    assert isinstance(said, ValueError)
    assert isinstance(got, TransferError)


def test_a_stranger_at_the_store_cannot_say_where_the_weights_are(tmp_path):
    """Whoever reaches the store can list and change what stands there."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"kept" * 100)
    point = point_for(1, shared=True)
    stranger = TCPStore("127.0.0.1", point.at.port, wait_for_workers=False)

    def receive() -> None:
        for _ in Receiver(CPU).weights(point.at, 0):
            raise AssertionError("the stranger's weights came")

    def answer() -> None:
        ready = f"{point.at.secret}/ready 0"  # as `list_keys` shows it
        stranger.wait([ready], timedelta(seconds=10))
        signed = "0" * 64  # it cannot know a signature
        for name in ("shapes", f"{point.at.secret}/shapes"):
            stranger.set(name, signed + json.dumps({"a": ["torch.uint8", [400]]}))
        for name in ("memory", f"{point.at.secret}/memory"):
            stranger.set(name, signed + json.dumps([str(precious)]))

    async def run() -> list[Exception | None]:
        return await point.meet([asyncio.to_thread(receive), asyncio.to_thread(answer)])

    wrong, _ = asyncio.run(run())
    assert isinstance(wrong, TransferError)
    assert "was not written by this run" in str(wrong)
    assert precious.read_bytes() == b"kept" * 100


def test_the_store_listens_at_its_address_alone():
    point = point_for(1, shared=True)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", point.at.port), timeout=2)
    assert point.at.secret not in repr(point.at)
