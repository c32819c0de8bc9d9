"""A cache of the hub with what recipes name: tiny random models, and some rows of each data set.

So a recipe for real models runs as it stands: its models are found by their names, in the layout in
which the hub has them, with the families, tied heads and dtype of the real ones.
"""

from __future__ import annotations

import importlib.util
import json
from importlib.resources import files
from pathlib import Path

import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from tests.layouts import LAYOUTS, tokenizer_of

NARROW = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "initializer_range": 0.2, "dtype": "bfloat16",
}  # fmt: skip
UNNAMED = 3  # rows of a table of tokens that no token has, as the hub's Qwen have 267 and more
# Of these bases, the chat template in TRL's collection and what their generation_config.json says.
BASES = {
    "Qwen/Qwen3-4B": ("qwen3", {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
    "Qwen/Qwen3-4B-Thinking-2507": ("qwen3", {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
    "Qwen/Qwen3-1.7B": ("qwen3", {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
    "Qwen/Qwen3-0.6B": ("qwen3", {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
    "Qwen/Qwen3-8B": ("qwen3", {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
    "Qwen/Qwen2.5-1.5B-Instruct": (
        "qwen2_5",
        {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1},
    ),
    "Qwen/Qwen2.5-3B": ("qwen2_5", {}),
    "Qwen/Qwen2.5-7B": ("qwen2_5", {}),
    "meta-llama/Llama-3.2-3B-Instruct": ("llama3", {"temperature": 0.6, "top_p": 0.9}),
    "Qwen/Qwen2.5-3B-Instruct": (
        "qwen2_5",
        {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05},
    ),
}
# Of bases whose tokenizer is another one than Qwen's.
TOKENIZERS = {
    "meta-llama/Llama-3.2-3B-Instruct": {
        "layout": "llama3", "kind": "PreTrainedTokenizerFast", "reserved": 40,
        "bos": "<|begin_of_text|>",
    },
}  # fmt: skip
DATA = {  # what recipes name, and the file of it that they read
    "openai/gsm8k": "main/{split}-00000-of-00001.parquet",
    "HuggingFaceH4/MATH-500": "test.jsonl",
    "Maxwell-Jia/AIME_2024": "aime_2024_problems.parquet",
    "math-ai/aime25": "test.jsonl",
    "zwhe99/simplerl-minerva-math": "test.jsonl",
    "realtreetune/olympiadbench": "test.jsonl",
}
SEARCHED = [
    "nq-hotpotqa", "nq", "hotpotqa", "triviaqa", "popqa", "2wikimultihopqa", "musique", "bamboogle",
]  # fmt: skip
SUMS = ["dapo-filter", "amc", "aime-1983-2024", "amc-eval-32"]
PREPARED = {  # what `rolecall data` makes
    **{name: {"id": "1", "question": "Who?", "golden_answers": ["a"]} for name in SEARCHED},
    **{name: {"id": "1", "question": "1 + 1?", "answer": "2"} for name in SUMS},
    "mbpp": {"task_id": 1, "text": "Add.", "code": "def f(a): return a",
             "test_list": ["assert f(1) == 1", "assert f(2) == 2"]},
    "humaneval": {"task_id": "H/0", "prompt": "def f(a):\n    \"Same.\"\n", "entry_point": "f",
                  "canonical_solution": "    return a\n",
                  "test": "def check(candidate):\n    assert candidate(1) == 1\n"},
}  # fmt: skip
ROWS = 140  # of each set: more than a step takes
TABLE = {"train.csv": "id,x,target\n1,1,2\n2,2,4\n", "test.csv": "id,x\n3,3\n"}
COMMIT = "a" * 40


def make_bases(folder: Path) -> Path:
    """All `BASES`, each in a folder as the cache of the hub has it."""
    shapes = json.loads((files("rolecall.models") / "known_shapes.json").read_text())
    for base, (template, generation) in BASES.items():
        place = _snapshot(folder, "models", base)
        make_base(place, shapes[base], template, generation, **TOKENIZERS.get(base, {}))
    return folder


def make_base(
    folder: Path,
    shape: dict,
    template: str,
    generation: dict,
    *,
    layout: str = "qwen",
    kind: str = "Qwen2Tokenizer",
    reserved: int = 0,
    bos: str | None = None,
) -> Path:
    """config.json, generation_config.json, safetensors, tokenizer.json, tokenizer_config.json.

    `shape`: of the config, to be narrowed; `template`: of TRL's collection; `layout`, `reserved`,
    `bos`: of the tokenizer; `kind`: the class that its config names.
    """
    tokenizer = tokenizer_of(LAYOUTS[layout], reserved=reserved)
    tokenizer.bos_token = bos
    trl = Path(importlib.util.find_spec("trl").origin).parent
    tokenizer.chat_template = (trl / "chat_templates" / f"{template}.jinja").read_text()
    tokenizer.save_pretrained(folder, save_jinja_files=False)  # the hub's have it in the config
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(told | {"tokenizer_class": kind}))
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    head = {"head_dim": 8} if "head_dim" in shape else {}
    config = AutoConfig.for_model(
        **{**shape, **NARROW, **head, "vocab_size": len(tokenizer) + UNNAMED, **ends}
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    several = {**ends, "eos_token_id": [tokenizer.eos_token_id, tokenizer.pad_token_id]}
    model.generation_config = GenerationConfig(do_sample=True, **several, **generation)
    model.save_pretrained(folder)
    return folder


def make_home(folder: Path, bases: Path, monkeypatch) -> None:
    """Make `folder` the working folder, with a cache of the hub and the data that recipes name."""
    monkeypatch.chdir(folder)
    hub = folder / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(hub))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))  # of processes that are started
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key-1")
    monkeypatch.setenv("GEMINI_API_KEY", "secret-key-1")
    hub.mkdir()
    for base in bases.iterdir():
        (hub / base.name).symlink_to(base)
    for number, (name, file) in enumerate(DATA.items()):
        snapshot = _snapshot(hub, "datasets", name)
        for split in ("train", "test"):
            rows = [{"question": f"{number}{split} + {n}?", "answer": str(n)} for n in range(ROWS)]
            path = snapshot / file.format(split=split)
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".parquet":
                pq.write_table(pa.Table.from_pylist(rows), path)
            else:
                path.write_text("\n".join(map(json.dumps, rows)))
    for name, row in PREPARED.items():
        place = folder / "data" / name
        place.mkdir(parents=True)
        for split in ("train", "test"):
            rows = [row | {next(iter(row)): f"{split}/{n}"} for n in range(ROWS)]
            (place / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    _make_tables(folder)


def _snapshot(hub: Path, kind: str, name: str) -> Path:
    repo = hub / f"{kind}--{name.replace('/', '--')}"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    (repo / "snapshots" / COMMIT).mkdir(parents=True)
    return repo / "snapshots" / COMMIT


def _make_tables(folder: Path) -> None:
    """One table of DSBench, and prepared rows of tasks that all name it."""
    tables, prepared = folder / "data" / "DSBench", folder / "data" / "dsbench"
    (tables / "answers").mkdir(parents=True)
    prepared.mkdir()
    (tables / "answers" / "test_answer.csv").write_text("id,target\n3,6\n")
    for name, text in TABLE.items():
        (tables / name).write_text(text)
    places = {"train_file": "train.csv", "test_file": "test.csv", "answer_dir": "answers"}
    given = {key: f"./data/DSBench/{place}" for key, place in places.items()}
    names = [f"t{n}" for n in range(ROWS)]
    rows = [{"prompt": f"Predict {name}.", "metadata": {"task_id": name} | given} for name in names]
    for split in ("train", "test"):
        (prepared / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    kinds = ["classification" if n % 2 else "regression" for n in range(ROWS)]
    record = {"metric": "rmse", "target_column": "target", "id_column": "id"}
    records = {name: record | {"task_type": k} for name, k in zip(names, kinds, strict=True)}
    (prepared / "a_cleaned_prompts.json").write_text(json.dumps(records))
