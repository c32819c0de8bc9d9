"""Lists the public data sets that `rolecall data NAME` prepares, and what reads them."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Literal

from rolecall.data.data_locations import HUBS, KNOWN

Kind = Literal["math", "search", "code", "data_science", "corpus", "index"]
MAPPA = "of data/Bench of github.com/ltjed/multiagent-coaching"
FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
CORPUS = "corpus"  # the only "split" of a corpus


@dataclass(frozen=True, slots=True)
class DataSet:
    """Files of one repository on the hub."""

    name: str
    # The environment that reads it; a corpus is what searches look through, an index their vectors.
    kind: Kind
    hub: str | None  # None: only from files of your own
    # Split -> pattern of its files in the repository; of an index the files by their whole names.
    files: dict[str, str]
    renamed: dict[str, str] = field(default_factory=dict)  # their column -> one that is read
    needs: str = ""  # what the files must be, where there is no repository


def _of_places(name: str) -> DataSet:
    """Return a data set that environments also find by its name."""
    splits = KNOWN[name]
    [hub] = {hub for hub, _ in splits.values()}
    return DataSet(name, "math", hub, {split: file for split, (_, file) in splits.items()})


def _of_flashrag(name: str, **files: str) -> DataSet:
    return DataSet(name, "search", FLASHRAG, {s: f"{name}/{file}" for s, file in files.items()})


LISTED = [
    *map(_of_places, KNOWN),
    DataSet("math", "math", "EleutherAI/hendrycks_math",
            {"train": "*/train-*.parquet", "test": "*/test-*.parquet"}),
    DataSet("aime-1983-2024", "math", "di-zhang-fdu/AIME_1983_2024", {"train": "*.csv"}),
    DataSet("amc", "math", "knoveleng/AMC-23", {"test": "*train*"}),
    DataSet("amc-eval-32", "math", None, {"test": "*amc_eval_32.json"},
            needs=f"the file amc_eval_32.json {MAPPA}"),
    DataSet("aime-eval-32", "math", None, {"test": "*aime_eval_32.json"},
            needs=f"the file aime_eval_32.json {MAPPA}"),
    *(DataSet(name, "math", hub, {"test": "*test*"}) for name, hub in HUBS.items()),
    DataSet("dapo-math", "math", "BytedTsinghua-SIA/DAPO-Math-17k", {"train": "data/*.parquet"}),
    DataSet("dapo-filter", "math", "aaabiao/dapo_filter", {"train": "*.parquet"}),
    DataSet("deepscaler", "math", "agentica-org/DeepScaleR-Preview-Dataset",
            {"train": "deepscaler.json"}),
    DataSet("deepmath", "math", "zwhe99/DeepMath-103K", {"train": "data/train-*.parquet"},
            renamed={"final_answer": "answer"}),
    DataSet("nq-hotpotqa", "search", "PeterJinGo/nq_hotpotqa_train",
            {"train": "train.parquet", "test": "test.parquet"}),
    _of_flashrag("nq", train="train.jsonl", test="test.jsonl"),
    _of_flashrag("triviaqa", train="train.jsonl", test="test.jsonl"),
    _of_flashrag("popqa", test="test.jsonl"),
    _of_flashrag("hotpotqa", train="train.jsonl", test="dev.jsonl"),
    _of_flashrag("2wikimultihopqa", train="train.jsonl", test="dev.jsonl"),
    _of_flashrag("musique", train="train.jsonl", test="dev.jsonl"),
    _of_flashrag("bamboogle", test="test.jsonl"),
    DataSet("humaneval", "code", "openai/openai_humaneval", {"test": "*/test-*.parquet"}),
    DataSet("mbpp", "code", "google-research-datasets/mbpp",
            {"train": "full/train-*.parquet", "test": "full/test-*.parquet"}),
    DataSet("humaneval-plus", "code", "evalplus/humanevalplus", {"test": "data/test-*.parquet"}),
    DataSet("apps", "code", "codeparrot/apps", {"train": "train.jsonl", "test": "test.jsonl"}),
    DataSet("taco", "code", "BAAI/TACO",
            {"train": "ALL/train-*.parquet", "test": "ALL/test-*.parquet"}),
    DataSet("deepcoder", "code", "agentica-org/DeepCoder-Preview-Dataset",
            {"train": "*/train-*.parquet", "test": "*/test-*.parquet"}),
    DataSet("livecodebench", "code", "livecodebench/code_generation_lite",
            {"test": "test*.jsonl"}),
    DataSet("dsbench", "data_science", None,
            {"train": "*train.json*", "test": "*eval.json*"},
            needs="its rows, with the *cleaned_prompts.json file beside them"),
    DataSet("searchr1-index", "index", "PeterJinGo/wiki-18-e5-index",
            {"part_aa": "PeterJinGo/wiki-18-e5-index/part_aa",
             "part_ab": "PeterJinGo/wiki-18-e5-index/part_ab",
             CORPUS: "PeterJinGo/wiki-18-corpus/wiki-18.jsonl.gz"}),
    DataSet("wiki-18", "corpus", "PeterJinGo/wiki-18-corpus", {CORPUS: "*.jsonl*"}),
]  # fmt: skip
DATA_SETS = {data_set.name: data_set for data_set in LISTED}


def get_data_set(name: str) -> DataSet:
    """Return the data set of a name, however it is spelt. Raises ValueError with the nearest
    ones.
    """
    plain = {re.sub(r"[-_ ]", "", spelt): spelt for spelt in DATA_SETS}
    short = re.sub(r"[-_ ]", "", name.casefold())
    if short not in plain:
        near = difflib.get_close_matches(short, plain, n=3, cutoff=0.5)
        choices = [plain[one] for one in near] or list(DATA_SETS)
        raise ValueError(
            f"no data set {name!r}; {'nearest' if near else 'there are'}: {', '.join(choices)}"
        )
    return DATA_SETS[plain[short]]
