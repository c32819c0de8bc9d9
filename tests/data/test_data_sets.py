"""Public data sets become folders that environments read; nothing bad gets into one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from rolecall.data.files import read_rows
from rolecall.data.finding import collect_files, fetch, in_folder
from rolecall.data.known import DATA_SETS, LISTED, get_data_set
from rolecall.environments.code.environment import CodeEnvironment
from rolecall.environments.data_science.rows import modelling_tasks
from rolecall.environments.math.environment import MathEnvironment
from rolecall.environments.math.rows import math_tasks
from rolecall.environments.search.rows import search_tasks
from rolecall.retrieval.corpus import read_corpus
from rolecall.runs.prepare_data import prepare
from tests.toy import command

COMMIT = "0" * 40


def write(path: Path, rows: list[dict]) -> Path:
    """JSON Lines, or parquet by the name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def sums(*numbers: int) -> list[dict]:
    return [{"question": f"{n} + 1?", "answer": f"so\n#### {n + 1}"} for n in numbers]


def test_real_rows_become_what_the_environment_reads(shared, tmp_path, capsys):
    data = shared / "data"
    status = command(
        "data", "gsm8k", "--from", f"train={data}/gsm8k_train_1000.jsonl",
        "--from", f"{data}/gsm8k_test.jsonl", "--output", tmp_path / "gsm8k",
    )  # fmt: skip
    out = capsys.readouterr().out
    assert status == 0
    assert "train.jsonl: 1000 rows" in out
    assert "test.jsonl: 1319 rows" in out
    folder = str(tmp_path / "gsm8k")
    assert f"environment.train={folder} environment.test={folder}" in out
    environment = MathEnvironment(train=folder, test=folder)
    assert environment.tasks("train")[0].answer == "72"
    assert len(environment.tasks("test")) == 1319


@pytest.mark.parametrize(
    ("name", "file", "rows"),
    [
        ("math500", "math_500.json", 500),
        ("aime25", "aime_2025.json", 30),
        ("aime-1983-2024", "aime_1983_2024.json", 933),
        ("amc-eval-32", "amc_34.json", 34),
        ("amc", "amc_34.json", 34),
        ("dapo-math", "drmas_math_300.parquet", 300),
        pytest.param("humaneval", "HumanEval.jsonl.gz", 164, marks=pytest.mark.evidence),
        ("wiki-18", "search_r1_corpus.jsonl", 10),
        ("dsbench", "dsbench_modeling_eval.json", 8),
    ],
)
def test_files_of_every_kind_are_read_and_written_row_for_row(shared, tmp_path, name, file, rows):
    data_set = DATA_SETS[name]
    found = prepare(data_set, collect_files(data_set, [str(shared / "data" / file)]), tmp_path)
    [(split, number)] = found.rows.items()
    assert number == rows
    assert len((tmp_path / f"{split}.jsonl").read_text().splitlines()) == rows
    if name == "humaneval":
        assert len(CodeEnvironment(test=str(tmp_path)).tasks("test")) == rows
    if name == "dsbench":
        assert len(modelling_tasks(tmp_path / "test.jsonl")) == rows
        assert found.lines()[-1].endswith(f"environment.test={tmp_path} environment.root=FOLDER")
    if name == "wiki-18":
        assert len(list(read_corpus(tmp_path / "corpus.jsonl"))) == rows


AIME_CSV = (
    "\ufeffID,Year,Problem Number,Question,Answer,Part\r\n"
    '1983-1,1983,1,"Let $x$, $y$\n""exceed"" 1.\nFind $z$.",060,\r\n'
    "2000-I-2,2000,2,Two?,2,I\r\n"
)


def test_a_set_that_the_hub_has_as_csv_is_read_with_its_line_breaks_and_quotes(tmp_path):
    data_set = DATA_SETS["aime-1983-2024"]
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/AIME_Dataset_1983_2024.csv").write_text(AIME_CSV, newline="")
    (tmp_path / "hub/README.json").write_text("{}")
    found = prepare(data_set, collect_files(data_set, [str(tmp_path / "hub")]), tmp_path / "out")
    assert found.rows == {"train": 2}
    first, second = math_tasks(tmp_path / "out/train.jsonl")
    assert (first.id, first.prompt) == ("1983-1", 'Let $x$, $y$\n"exceed" 1.\nFind $z$.')
    assert (first.answer, first.info["Year"]) == ("060", "1983")
    assert (second.id, second.answer, second.info["Part"]) == ("2000-I-2", "2", "I")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,b\n1,2\n3\n", ":3: 1 values under 2 columns"),
        ('a,b\n1,"2\n', ":3: not readable as CSV: unexpected end of data"),
        ("a,b\n", ":1: the file holds no rows"),
    ],
)
def test_a_csv_file_that_cannot_be_read_is_named_with_the_line(tmp_path, text, told):
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(ValueError, match=told):
        list(read_rows(tmp_path / "rows.csv"))


def test_questions_in_both_splits_are_counted_however_they_are_spelt(tmp_path):
    train = write(tmp_path / "train.jsonl", [*sums(1, 2), {"question": "3+1 ?", "answer": "4"}])
    test = write(tmp_path / "test.jsonl", sums(3, 4))
    found = prepare(DATA_SETS["gsm8k"], {"train": [train], "test": [test]}, tmp_path / "out")
    assert (found.repeated, found.first_repeated) == (1, ["train-3", "test-1"])


def test_references_that_are_compared_as_text_are_told(tmp_path):
    rows = [{"question": "a?", "answer": "4"}, {"question": "b?", "answer": "t(0,4]"}]
    file = write(tmp_path / "test.jsonl", rows)
    found = prepare(get_data_set("aime24"), {"test": [file]}, tmp_path / "out")
    assert found.as_text == {"test": ["t(0,4]"]}
    told = "1 references of test are compared as text, because no parser reads them: t(0,4]"
    assert told in found.lines()


def test_all_bad_rows_are_told_by_file_and_line_and_nothing_is_left(tmp_path):
    rows = [*sums(1), {"question": "?"}, {"answer": "4"}]
    bad = write(tmp_path / "train.jsonl", rows)
    folder = tmp_path / "out"
    with pytest.raises(ValueError, match=r"train.jsonl:2: no truth .*train.jsonl:3: no question"):
        prepare(DATA_SETS["gsm8k"], {"train": [bad]}, folder)
    assert not folder.exists()
    many = write(tmp_path / "train.jsonl", [{"question": "?"}] * 25)
    with pytest.raises(ValueError, match="and 15 more"):
        prepare(DATA_SETS["gsm8k"], {"train": [many]}, folder)


def test_a_bad_passage_is_told_by_its_line(tmp_path):
    corpus = tmp_path / "wiki.jsonl.gz"
    rows = [{"id": "1", "contents": '"A"\nb'}, {"contents": "x"}]
    corpus.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    with pytest.raises(ValueError, match=r"wiki.jsonl.gz:2: no `id`"):
        prepare(DATA_SETS["wiki-18"], {"corpus": [corpus]}, tmp_path / "out")


def test_columns_that_are_called_otherwise_are_renamed(tmp_path):
    file = write(tmp_path / "a.jsonl", [{"question": "1 + 1?", "final_answer": "2"}])
    prepare(DATA_SETS["deepmath"], {"train": [file]}, tmp_path / "out")
    assert MathEnvironment(train=str(tmp_path / "out")).tasks("train")[0].answer == "2"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A hub cache with files of some data sets, and no network."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    files = {
        "openai/gsm8k": {"main/train-00000-of-00001.parquet": sums(1, 2),
                         "main/test-00000-of-00001.parquet": sums(3)},
        "EleutherAI/hendrycks_math": {
            f"{topic}/{split}-00000-of-00001.parquet":
            [{"problem": f"{topic} {split}", "solution": "It is \\boxed{5}."}]
            for topic in ("algebra", "geometry") for split in ("train", "test")},
        "RUC-NLPIR/FlashRAG_datasets": {
            "nq/train.jsonl": [{"id": "1", "question": "who", "golden_answers": ["a", "b"]}],
            "nq/test.jsonl": [{"id": "2", "question": "when", "golden_answers": ["c"]}],
            "popqa/test.jsonl": [{"id": "3", "question": "where", "golden_answers": ["d"]}]},
        "HuggingFaceH4/MATH-500": {"README.md": [{}]},
    }  # fmt: skip
    for hub, parts in files.items():
        repo = tmp_path / "hub" / f"datasets--{hub.replace('/', '--')}"
        (repo / "refs").mkdir(parents=True)
        (repo / "refs" / "main").write_text(COMMIT)
        for name, rows in parts.items():
            write(repo / "snapshots" / COMMIT / name, rows)
    return tmp_path / "hub"


@pytest.mark.parametrize(
    ("name", "rows"),
    [("gsm8k", {"train": 2, "test": 1}), ("math", {"train": 2, "test": 2}),
     ("nq", {"train": 1, "test": 1}), ("popqa", {"test": 1})],
)  # fmt: skip
def test_what_the_hub_s_cache_holds_is_prepared(cache, tmp_path, name, rows):
    data_set = DATA_SETS[name]
    found = prepare(data_set, fetch(data_set, cache_dir=cache), tmp_path / "out")
    assert found.rows == rows
    if name == "nq":
        assert search_tasks(tmp_path / "out/train.jsonl")[0].answer == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("bamboogle", "has no files of bamboogle: test"),
        ("math500", "has no files of math500: test"),
        ("aime24", "cannot fetch aime24 .*rolecall data aime24 --from FILE"),
        ("dsbench", "give --from and its rows, with the .*cleaned_prompts.json"),
    ],
)
def test_what_cannot_be_fetched_says_how_to_do_without_the_hub(cache, name, told):
    with pytest.raises(ValueError, match=told) as caught:
        fetch(DATA_SETS[name], cache_dir=cache)
    assert "\n" not in str(caught.value)


def test_a_folder_is_read_as_the_repository_or_by_the_names_of_splits(tmp_path):
    data_set = DATA_SETS["nq"]
    write(tmp_path / "hub/nq/train.jsonl", sums(1))
    write(tmp_path / "hub/nq/test.jsonl", sums(2))
    write(tmp_path / "mine/my-train.json", sums(1))
    assert set(in_folder(data_set, tmp_path / "hub")) == {"train", "test"}
    assert set(in_folder(data_set, tmp_path / "mine")) == {"train"}
    with pytest.raises(ValueError, match="holds no files of popqa"):
        in_folder(DATA_SETS["popqa"], tmp_path / "mine")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gsm8"], "no data set 'gsm8'; nearest: gsm8k"),
        (["gsm8k", "--from", "no.jsonl"], "--from: there is no file or folder no.jsonl"),
        (["gsm8k", "--from", "dev=x"], "SPLIT=FILE takes train, test"),
        (["gsm8k", "--from", "rows.jsonl"], "tells no split; write train=rows.jsonl or test="),
        (["--output", "x"], "need the name of a data set"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(arguments, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.jsonl", sums(1))
    assert command("data", *arguments) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.strip().splitlines()) == 1


def test_without_a_name_all_are_listed(capsys):
    assert command("data", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found] == [one.name for one in LISTED]
    assert get_data_set("Wiki 18").name == "wiki-18"
    assert command("data") == 0
    assert len(capsys.readouterr().out.splitlines()) == len(LISTED)
