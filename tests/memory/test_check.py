"""A run that does not fit is refused; what batches keep is measured only where it may not fit."""

from __future__ import annotations

import pytest

from rolecall.config.load import find, load
from rolecall.config.schema import Adapter
from rolecall.core.errors import ConfigError
from rolecall.memory.check import RESERVED_CPU, check_room
from rolecall.memory.estimate import estimate_memory, peaks
from rolecall.models import saved_activations
from rolecall.models.batch_memory import kept_by_last, kept_by_layer
from rolecall.models.sizes import get_size
from tests.families import make
from tests.support.evidence import leave_to_evidence

# Those that keep most for their size: norms, gates or experts of their own.
FAMILIES = [
    ("full", "BitNet"), ("full", "NanoChat"), ("full", "OPT"), ("full", "Persimmon"),
    ("full", "Llama"), ("ruled", "Laguna"),
]  # fmt: skip
WITHOUT_ADAPTERS = [("full", "Mixtral"), ("apart", "Llama4Text")]
CASES = [(*family, adapter) for family in FAMILIES for adapter in (None, Adapter(rank=8))]
CASES += [(*family, None) for family in WITHOUT_ADAPTERS]


@pytest.fixture
def measured(monkeypatch):
    """What has been measured since the test began."""
    found: dict[str, float | None] = {}
    monkeypatch.setattr(saved_activations, "_known", found)
    return found


def largest(*overrides: str) -> int:
    config = load(find("math"), list(overrides))
    return max(peak.num_bytes for peak in peaks(estimate_memory(config)) if peak.is_device)


def test_a_small_run_is_begun_without_measuring(measured):
    check_room(load(find("math")), machine={"cpu": int(24e9)})
    assert not measured


def test_what_may_not_fit_is_measured_and_begun_where_it_does(measured):
    many = "learner.tokens_per_batch=400000"
    needed = largest(many)
    measured.clear()
    config = load(find("math"), [many])
    check_room(config, machine={"cpu": needed + RESERVED_CPU})
    assert measured
    with pytest.raises(ConfigError, match=r"cpu would hold .* GB \(sampling, .*\) and has"):
        check_room(config, machine={"cpu": needed + RESERVED_CPU - 1})


def cache_of(*overrides: str) -> int:
    needs = estimate_memory(load(find("math"), list(overrides)), activations="none")
    return next(n.num_bytes for n in needs if n.part.startswith("keys and values"))


def test_a_cache_that_does_not_fit_is_refused():
    """Two caches of 256 rows, as many as are sampled at once, of 33 tasks: 2,048 bytes a token."""
    config = load(find("math"))
    caches = [need for need in estimate_memory(config) if need.part.startswith("keys and values")]
    held = (256 * 128 + 33 * 512) * 2048
    assert [cache.num_bytes for cache in caches] == 2 * [held]
    told = r"would hold 1\.\d GB \(sampling, with 0\.7 GB for libraries\) and has 1\.0"
    with pytest.raises(ConfigError, match=told):
        check_room(config, machine={"cpu": int(1.0e9)})


def test_a_cache_counts_as_what_rows_can_fill_and_never_more_than_it_may_take():
    assert cache_of("engine.cache_gb=0.01") == int(0.01e9)
    assert cache_of("engine.max_sequences=10") == (10 * 128 + 10 * 512) * 2048
    assert cache_of("rollout.concurrency=20") == (20 * 128 + 4 * 512) * 2048
    # As many as a step has, but of an evaluation, whose first task may be played in part.
    assert cache_of("rollout.concurrency=16", "rollout.groups=2") == (16 * 128 + 3 * 512) * 2048
    few = ("evaluation.tasks=0", "rollout.groups=2")
    assert cache_of(*few) == (16 * 128 + 2 * 512) * 2048


def test_prompts_are_shared_only_in_workflows_that_are_known(tmp_path):
    """Of a workflow of the user's, each row may begin in its own way."""
    file = tmp_path / "own.py"
    file.write_text(
        "from rolecall import workflow\n"
        "@workflow\n"
        "async def own(team, task, world):\n"
        "    await team.solver('a')\n"
        "    return await team.verifier('b')\n"
    )
    assert cache_of(f"workflow={file}:own") == 256 * 640 * 2048


@pytest.mark.parametrize("case", leave_to_evidence(CASES, keep=CASES[::4]))
def test_more_is_expected_than_any_family_keeps(case, tmp_path):
    kind, name, adapter = case
    size = get_size(str(make(tmp_path / "model", kind, name)))
    kept = kept_by_layer(size, "measured", dtype="float32", adapter=adapter)
    assert kept is not None
    assert kept < kept_by_layer(size, "at most", dtype="float32", adapter=adapter) < 5 * kept
    last = kept_by_last(size, "measured", dtype="float32")
    assert last is not None
    assert last < kept_by_last(size, "at most", dtype="float32")
