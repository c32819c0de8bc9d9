"""Policies are given GPUs of pools: together where they say so, apart otherwise."""

from __future__ import annotations

import pytest

from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.memory.estimate import estimate_memory, peaks
from rolecall.models.weight_transfer import Direct
from rolecall.placement.devices import direct_transfer, learner_devices, takes_turns
from rolecall.placement.gpu_assignment import Seats, assign_gpus, num_gpus
from rolecall.runs.plan import plan
from rolecall.setup.plan import validate
from tests.toy import relay_config, write

FSDP = {"name": "fsdp", "ranks": 2}
VLLM = {"name": "vllm", "replicas": 2, "tensor_parallel": 2}


def config_of(folder, pools, *, a=None, b=None, **changes) -> Config:
    data = relay_config(
        folder,
        cluster={"name": "ray", "pools": {name: {"gpus": n} for name, n in pools.items()}},
        learner=FSDP,
        engine=VLLM,
        **changes,
    )
    data["policies"]["a"] |= a or {}
    data["policies"]["b"] |= b or {}
    return Config.model_validate(data)


def test_policies_that_are_colocated_begin_at_one_gpu_and_others_come_after_them(model_folder):
    together = {"colocate": True}
    found = assign_gpus(config_of(model_folder, {"main": 4}, a=together, b=together))
    engines = ((0, 1), (2, 3))
    assert found == {name: Seats("main", (0, 1), engines) for name in ("a", "b")}
    found = assign_gpus(config_of(model_folder, {"main": 10}, a=together))
    assert found["a"] == Seats("main", (0, 1), engines)
    assert found["b"] == Seats("main", (4, 5), ((6, 7), (8, 9)))


def test_a_pool_each_and_no_pool_at_all(model_folder):
    apart = config_of(model_folder, {"x": 6, "y": 7}, a={"pool": "x"}, b={"pool": "y"})
    own = Seats("x", (0, 1), ((2, 3), (4, 5)))
    assert assign_gpus(apart) == {"a": own, "b": Seats("y", own.ranks, own.engines)}
    assert num_gpus(apart) == {"x": 6, "y": 7}
    assert num_gpus(config_of(model_folder, {})) == {"own": 12}


def test_adapters_of_one_base_have_the_same_ranks_and_engines(model_folder):
    adapter = {"adapter": {"rank": 2}}
    found = assign_gpus(config_of(model_folder, {"main": 6}, a=adapter, b=adapter))
    assert found["a"] == found["b"] == Seats("main", (0, 1), ((2, 3), (4, 5)))


def test_engines_sleep_where_something_is_trained_on_their_gpus(model_folder):
    together = {"colocate": True}
    config = config_of(model_folder, {"main": 10}, a=together)
    assert takes_turns(config, "a", auto="cuda")
    assert not takes_turns(config, "b", auto="cuda")
    assert learner_devices(config, "b", auto="cuda") == ["cuda:main/4", "cuda:main/5"]


def test_weights_are_broadcast_to_other_gpus_and_shared_on_the_same_ones(model_folder):
    direct = {"engine": VLLM | {"transfer": "direct"}}
    config = config_of(model_folder, {"main": 12}, a=direct)
    assert direct_transfer(config, "a", auto="cuda") == Direct(receivers=2, shares_device=False)
    assert direct_transfer(config, "b", auto="cuda") is None
    config = config_of(model_folder, {"main": 10}, a=direct | {"colocate": True})
    with pytest.raises(ConfigError, match=r"^policies\.a: its engines share cuda:main/0 with"):
        direct_transfer(config, "a", auto="cuda")
    four = {"learner": {"ranks": 4}}
    config = config_of(model_folder, {"main": 10}, a=direct | four | {"colocate": True})
    assert direct_transfer(config, "a", auto="cuda") == Direct(receivers=2, shares_device=True)


def test_without_gpus_only_what_is_on_one_machine_shares_its_memory(model_folder):
    engine = {"name": "local", "transfer": "direct", "replicas": 2}
    changes = {"learner": FSDP | {"device": "cpu"}, "cluster": {"name": "ray"}, "engine": engine}
    config = Config.model_validate(relay_config(model_folder, **changes))
    assert direct_transfer(config, "a", auto="cpu") == Direct(receivers=1, shares_device=False)
    del changes["cluster"]
    changes["engine"] = {"name": "vllm", "transfer": "direct"}
    config = Config.model_validate(relay_config(model_folder, **changes))
    assert direct_transfer(config, "a", auto="cpu") == Direct(receivers=1, shares_device=True)


def test_the_plan_of_a_cluster_has_a_peak_for_each_gpu(model_folder):
    together = {"colocate": True}
    needs = estimate_memory(config_of(model_folder, {"main": 10}, a=together), auto="cuda")
    found = {peak.device: peak for peak in peaks(needs) if peak.is_device}
    assert set(found) == {f"cuda:main/{number}" for number in range(10)}
    ranks = [n for n in needs if n.owner == "policy a" and n.part == "weights"]
    assert [need.device for need in ranks] == ["cuda:main/0", "cuda:main/1"]
    engines = [n for n in needs if n.owner == "engine of a" and n.part == "weights"]
    assert [need.device for need in engines] == [f"cuda:main/{number}" for number in range(4)]
    whole = sum(need.num_bytes for need in engines) / 2  # of two engines
    assert whole == pytest.approx(sum(need.num_bytes for need in ranks), abs=4)


@pytest.mark.parametrize(
    ("pools", "changes", "said"),
    [
        ({"main": 11}, {}, "cluster.pools.main.gpus: a, b need 12 GPUs and the pool has 11"),
        ({"x": 6, "y": 6}, {"a": {"pool": "x"}, "b": {"pool": "x"}}, "cluster.pools.y: no policy"),
        ({"x": 6, "y": 6}, {"a": {"pool": "x"}}, "policies.b.pool: say which of the pools"),
        ({"x": 12}, {"a": {"pool": "z"}}, "policies.a.pool: there is no pool 'z'; there are x"),
        (
            {"x": 4},
            {"a": {"colocate": True}, "b": {"colocate": True}, "trainer": {"max_staleness": 1}},
            "policies.a.colocate: engines that sleep during updates cannot sample ahead",
        ),
        (
            {"x": 12},
            {"a": {"adapter": {"rank": 2}, "colocate": True}, "b": {"adapter": {"rank": 2}}},
            "policies.b.colocate: adapters of one base share its weights",
        ),
    ],
)
def test_pools_that_cannot_serve_are_refused(pools, changes, said, model_folder):
    with pytest.raises(ConfigError, match=said):
        validate(config_of(model_folder, pools, **changes))


def test_a_pool_without_a_cluster_has_no_effect(model_folder):
    config = relay_config(model_folder)
    config["policies"]["a"]["colocate"] = True
    with pytest.raises(ConfigError, match=r"policies\.a\.colocate has no effect: neither"):
        validate(Config.model_validate(config))


def test_the_command_says_what_each_gpu_of_a_pool_holds(model_folder, tmp_path, capsys):
    """GPUs that hold the same are one row."""
    config = config_of(model_folder, {"main": 10}, a={"colocate": True})
    file = write(tmp_path / "team.yaml", config.model_dump(mode="json"))
    found = plan(str(file), [], gpus=16, memory_gb=80.0)
    said = capsys.readouterr().out
    assert "cuda:main/0-1" in said
    assert "cuda:main/6-9" in said
    assert set(found["devices"]) == {f"cuda:main/{number}" for number in range(10)}
    assert all(peak["fits"] for peak in found["peaks"] if peak["room"])
    with pytest.raises(ConfigError, match=r"^cluster: .* need 10 GPUs, and --gpus says 8"):
        plan(str(file), [], gpus=8, memory_gb=80.0)


def test_what_a_processor_holds_several_times_is_told_each_time(model_folder, tmp_path, capsys):
    config = relay_config(
        model_folder, cluster={"name": "ray"}, engine={"name": "local", "replicas": 2}
    )
    plan(str(write(tmp_path / "team.yaml", config)), [], gpus=None, memory_gb=None)
    said = capsys.readouterr().out
    assert "cpu, cpu" not in said
    assert said.count("keys and values") == 4
