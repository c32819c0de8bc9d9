"""`rolecall doctor` says what holds on this machine; status 1 where results differ."""

from __future__ import annotations

import json
import time

import pytest
import torch

from rolecall.doctor import machine_check
from rolecall.engines.local.engine import LocalEngine
from tests.toy import command


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(machine_check, "COPIED", 2**20)
    monkeypatch.setattr(machine_check, "SIDES", (32, 64, 128))


def test_a_sound_machine_is_told(capsys, monkeypatch):
    monkeypatch.setattr(machine_check, "_is_there", lambda name: name == "bwrap")
    assert command("doctor", "--json") == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    cpu = found["devices"]["cpu"]
    assert cpu["agrees"]
    assert cpu["paths"] == {"fused attention": True, "plain decoding": True}
    assert min(cpu["copy_gb_per_s"], cpu["float32_tflops"], cpu["bfloat16_tflops"]) > 0
    assert len(cpu["products"]) == 4
    for ways in cpu["products"].values():
        assert ways["plain"] > 0
    told = " ".join(printed.err.split())
    assert "agree to" in told
    assert "product, bfloat16, 8 rows: plain " in told
    assert "pip install 'rolecall[vllm]'" in told
    assert "bubblewrap" not in told


def test_a_processor_slow_at_a_dtype_multiplies_no_larger_matrices_of_it(monkeypatch):
    sides = []

    def multiplying(device, dtype, side):
        sides.append((dtype, side))
        return lambda: time.sleep(0.02 if dtype == torch.bfloat16 else 0)

    monkeypatch.setattr(machine_check, "LONG_S", 0.01)
    monkeypatch.setattr(machine_check, "_multiplying", multiplying)
    cpu = machine_check.doctor()["devices"]["cpu"]
    assert sides == [*((torch.float32, side) for side in (32, 64, 128)), (torch.bfloat16, 32)]
    assert cpu["bfloat16_tflops"] == pytest.approx(2 * 32**3 / 0.02 / 1e12, rel=0.5)


@pytest.mark.parametrize("fault", ["differs", "fails"])
def test_a_machine_that_computes_wrongly_is_told(fault, capsys, monkeypatch):
    sound = LocalEngine.generate

    async def generate(self, request):
        if fault == "fails":
            raise RuntimeError("no kernel image is available\nfor this device")
        said = await sound(self, request)
        for one in said:
            one.logprobs = one.logprobs + 0.5
        return said

    monkeypatch.setattr(LocalEngine, "generate", generate)
    assert command("doctor") == 1
    told = " ".join(capsys.readouterr().out.split())
    assert ("DIFFER to 0.5 nats" if fault == "differs" else "no kernel image is available") in told
