"""Small real models of the families that users bring, made once per test session."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

FAMILIES = {"qwen2.5": "Qwen2", "qwen3": "Qwen3", "llama3.2": "Llama"}  # in transformers
gc.disable()  # until all tests are collected, whose objects it would look through again and again
HERE = Path(__file__).resolve().parent
SHARED = Path(__file__).resolve().parents[2] / "shared"


def make_model(
    folder: Path, family: str, *, seed: int = 0, spread: float = 0.2, width: int = 32
) -> Path:
    """A random model of a family with a byte tokenizer; `spread` makes its softmax uneven."""
    # Slow to import, and the process that hands tests to the others needs none of it.
    import torch
    import transformers

    from rolecall_lab.tiny.tokenizer import fit

    torch.manual_seed(seed)
    tokenizer = fit([], size=300, tags=("<verify>", "</verify>"))
    config_class = getattr(transformers, f"{FAMILIES[family]}Config")
    model_class = getattr(transformers, f"{FAMILIES[family]}ForCausalLM")
    sizes = {"head_dim": 8} if family != "qwen2.5" else {}
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=2048,
        initializer_range=spread,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        **sizes,
    )
    model = model_class(config)
    model.generation_config = transformers.GenerationConfig(eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("qwen3"), "qwen3")


@pytest.fixture(scope="session", params=sorted(FAMILIES))
def any_model_folder(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("family"), request.param)


@pytest.fixture(autouse=True)
def nothing_goes_on_being_shown():
    """An activity ends with what it stands for, however that ends."""
    yield
    progress = sys.modules.get("rolecall.runtime.progress")
    if progress is not None and progress._board.running:
        gc.collect()  # of an event loop that a test has left
        assert [one.line() for one in progress._board.running] == []


@pytest.fixture(scope="session")
def hub_bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders as a cache of the hub has them, with tiny models that have the names of real ones."""
    from tests.hub import make_bases

    return make_bases(tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("no ../shared beside the project: real data rows are not at hand")
    return SHARED


# The longest files, the longest first.
LONGEST = (
    "recipes/test_learning",
    "lab/proofs/test_proofs",
    "training/test_gpu_path",
    "gpu/test_make_gpu",
    "learners/test_ranks",
    "algorithms/test_every_algorithm",
    "docs/test_readme",
    "models/cpu/test_warming",
    "training/test_equal_runs",
    "recipes/test_recipes",
    "lab/reproduce/test_published",
    "config/test_config_of_any_shape",
    "runs/test_command_kills",
    "runs/test_stages",
    "cli/test_cli",
    "memory/test_estimate",
    "rewards/test_equivalence",
    "real/test_turns",
    "real/test_tools",
)


def pytest_collection_modifyitems(items):
    # Long ones first: a process that begins one at the end keeps the others waiting.
    items.sort(key=_turn_of)


def _turn_of(item: pytest.Item) -> int:
    place = str(item.path.relative_to(HERE).with_suffix(""))
    if place in LONGEST:
        return LONGEST.index(place)
    return len(LONGEST) + (item.get_closest_marker("slow") is None)


def pytest_collection_finish():
    """What is there from now on to the end is not looked through again, which takes a second."""
    gc.collect()
    gc.freeze()
    gc.enable()
