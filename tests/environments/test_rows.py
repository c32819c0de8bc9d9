"""Rows of public files become tasks; names become files."""

import asyncio
import gzip
import json
import re
from pathlib import Path

import pytest

from rolecall.core.types import Episode, Task
from rolecall.data.data_locations import choose, locate
from rolecall.data.files import read_rows
from rolecall.environments.math.environment import MathEnvironment
from rolecall.environments.math.rows import duplicate_questions, math_tasks
from rolecall.environments.search.rows import search_tasks

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
COMMIT = "a" * 40


def shared(name):
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    return path


def write(path, *rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gsm8k_test.jsonl", 1319),
        ("gsm8k_train_1000.jsonl", 1000),
        ("aime_1983_2024.json", 933),
        ("aime_2025.json", 30),
        ("amc_34.json", 34),
        ("math_500.json", 500),
        ("drmas_math_300.parquet", 300),
    ],
)
def test_every_row_of_a_maths_file_becomes_a_task_with_its_own_id(name, count):
    tasks = math_tasks(shared(name))
    assert len(tasks) == len({task.id for task in tasks}) == count
    assert all(task.prompt.strip() and task.answer and task.info["source"] for task in tasks)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("HumanEval.jsonl.gz", 164),
        ("dsbench_modeling_eval.json", 8),
        ("search_r1_corpus.jsonl", 10),
    ],
)
def test_rows_of_any_file_are_read_by_content_and_not_by_name(name, count):
    assert [number for number, _ in read_rows(shared(name))] == list(range(1, count + 1))


def test_dr_mas_rows_take_question_and_truth_of_env_kwargs():
    tasks = math_tasks(shared("drmas_math_300.parquet"))
    assert tasks[0].answer == "72"
    assert tasks[0].prompt.startswith("Natalia sold clips")
    assert [tasks[n].info["source"] for n in (0, 250, 299)] == [
        "openai/gsm8k",
        "aime_1983_2024",
        "math500",
    ]
    assert tasks[0].info["prompt"][0]["role"] == "user"
    assert "env_kwargs" not in tasks[0].info


def test_truths_of_the_shared_files_are_read_as_the_table_says():
    gsm8k, amc = math_tasks(shared("gsm8k_test.jsonl")), math_tasks(shared("amc_34.json"))
    assert gsm8k[0].answer == "18"
    assert gsm8k[0].info["solution"].endswith("#### 18")
    assert gsm8k[0].id == "gsm8k_test-1"
    assert gsm8k[0].info["source"] == "gsm8k_test"
    assert amc[0].answer == "2"
    assert amc[0].id == "83"
    assert amc[0].info["source"] == "amc"
    aime = {task.id: task for task in math_tasks(shared("aime_1983_2024.json"), source="aime")}
    assert [task.answer for task in aime.values() if isinstance(task.answer, list)] == [
        ["080", "081"]
    ]
    assert aime["1983-1"].info == {
        "year": 1983,
        "problem_number": 1,
        "part": None,
        "source": "aime",
    }


@pytest.mark.parametrize(
    ("row", "prompt", "answer"),
    [
        ({"question": "q", "answer": "a #### 1,000"}, "q", "1000"),
        ({"problem": "q", "solution": r"so \boxed{7}"}, "q", "7"),
        ({"problem": "q", "solution": "s", "answer": "7", "url": "u"}, "q", "7"),
        ({"input": "q", "answer": 142.0}, "q", "142"),
        ({"ID": "I-1", "Problem": "q", "Answer": 33}, "q", "33"),
        ({"prompt": "q", "answer": ["1", "2"]}, "q", ["1", "2"]),
        (
            {
                "prompt": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": "old"},
                    {"role": "user", "content": "q"},
                ],
                "reward_model": {"style": "rule", "ground_truth": "5"},
                "extra_info": {"index": 3, "answer": "no"},
            },
            "q",
            "5",
        ),
    ],
)
def test_a_row_of_each_schema_becomes_a_task(tmp_path, row, prompt, answer):
    [task] = math_tasks(write(tmp_path / "rows.jsonl", row))
    assert (task.prompt, task.answer) == (prompt, answer)


def test_columns_that_are_no_question_truth_or_id_stay_in_info(tmp_path):
    row = {"id": 4, "prompt": "q", "answer": "1", "level": 5, "source": "s"}
    [task] = math_tasks(write(tmp_path / "rows.jsonl", row), source="given")
    assert task == Task("4", "q", "1", {"level": 5, "source": "s"})


def test_repeated_ids_are_made_unique(tmp_path):
    rows = [{"id": "a", "prompt": f"q{n}", "answer": "1"} for n in range(3)]
    tasks = math_tasks(write(tmp_path / "rows.jsonl", *rows))
    assert [task.id for task in tasks] == ["a", "a-2", "a-3"]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"answer": "1"}, "no question"),
        ({"prompt": "  ", "answer": "1"}, "no question"),
        ({"prompt": "q", "answer": None}, "no truth"),
        ({"prompt": "q", "answer": ""}, "no truth"),
        ({"prompt": "q", "answer": {"a": 1}}, "is dict"),
        ({"prompt": ["q"], "answer": "1"}, "no question"),
        ({"prompt": "q", "solution": "no box"}, "no truth"),
        ([1], "must be an object"),
    ],
)
def test_a_row_without_question_or_truth_is_reported_with_file_and_line(tmp_path, row, told):
    path = write(tmp_path / "rows.jsonl", {"prompt": "q", "answer": "1"}, row, row)
    with pytest.raises(ValueError, match=told) as caught:
        math_tasks(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("blank", ["", "  ", None, [], [""], float("nan")])
def test_rows_without_a_truth_are_left_out_and_counted_in_one_line(tmp_path, caplog, blank):
    rows = [{"prompt": f"q{n}", "answer": str(n)} for n in range(1, 4)]
    rows[1]["answer"] = blank
    path = write(tmp_path / "rows.jsonl", *rows, {"prompt": " ", "answer": "5"})
    tasks = math_tasks(path)
    assert [(task.id, task.answer) for task in tasks] == [("rows-1", "1"), ("rows-3", "3")]
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{path}:2: no truth in ")
    assert line.endswith("rows without a question or a truth are left out (2 of 4)")


def test_a_file_without_rows_says_so_whatever_its_form(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"question": pyarrow.array([], pyarrow.string())}), path)
    (tmp_path / "rows.json").write_text("[]")
    (tmp_path / "rows.jsonl").write_text("\n\n")
    for file in tmp_path.iterdir():
        with pytest.raises(ValueError, match=rf"{re.escape(str(file))}:1: the file holds no rows"):
            MathEnvironment(train=str(file)).tasks("train")


def lines_of(caplog, path, *rows, read=math_tasks) -> list[str]:
    read(write(path, *rows))
    lines = [record.getMessage().removeprefix(f"{path}: ") for record in caplog.records]
    caplog.clear()
    return lines


QUESTION = {"question": "Which is even?", "answer": "B"}


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"options": ["3", "4"]}, "options"),
        ({"choices": {"text": ["three", "four"], "label": ["A", "B"]}}, "choices"),
        ({"Body": "Ann has two."}, "Body"),
        ({"context": "A page."}, "context"),
        ({"label": 1}, "label"),
        ({"image": {"bytes": None, "path": "a.png"}}, "image"),
        ({"messages": [{"role": "user", "content": "0 + 1?"}]}, "messages"),
        ({"messages": json.dumps([{"role": "user", "content": "0 + 1?"}])}, "messages"),
        ({"conversations": [{"from": "human", "value": "0 + 1?"}]}, "conversations"),
    ],
)
def test_columns_that_change_what_a_row_means_are_named_if_nobody_sees_them(
    tmp_path, caplog, row, column
):
    [line] = lines_of(caplog, tmp_path / "rows.jsonl", QUESTION | row, QUESTION)
    assert line.startswith(f"columns that are not used, with their rows: `{column}` (1). ")


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Which is even?\nA) 3\nB) 4", "options": ["3", "4"]},
        {"question": "Ann has  two.\nHow many?", "Body": "Ann has two."},
        {"options": None, "choices": [], "body": "", "images": [], "messages": None},
        {"label": "B"},
        {
            "messages": [
                {"role": "system", "content": "Answer."},
                {"role": "user", "content": "Which is even? Box it."},
                {"role": "assistant", "content": "B"},
            ]
        },
        {"level": 3, "url": "u", "solution": "It is B."},
    ],
)
def test_columns_that_are_shown_or_change_nothing_are_not_named(tmp_path, caplog, row):
    assert lines_of(caplog, tmp_path / "rows.jsonl", QUESTION | row) == []


def test_passages_that_are_to_be_searched_for_are_not_named(tmp_path, caplog):
    row = QUESTION | {"context": "A page."}
    assert lines_of(caplog, tmp_path / "rows.jsonl", row, read=search_tasks) == []


def test_a_file_whose_rows_mostly_ask_the_same_is_told(tmp_path, caplog):
    rows = [
        {"prompt": "Box it.", "messages": json.dumps([{"role": "user", "content": f"{n} + 1?"}]),
         "ground_truth": str(n + 1)}
        for n in range(5)
    ]  # fmt: skip
    unused, same = lines_of(caplog, tmp_path / "rows.jsonl", *rows)
    assert "`messages` (5)" in unused
    assert same.startswith("5 of 5 rows ask the same question: 'Box it.'")
    different = [row | {"prompt": f"q{n}"} for n, row in enumerate(rows[:3])]
    assert len(lines_of(caplog, tmp_path / "rows.jsonl", *different, *rows[3:])) == 1


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'{"a": 1}\n\n{"a": 1\n', 3),
        (b'{"a": 1}\n{"a": "\xff"}\n', 2),
        (b'[\n {"a": 1},\n {"a" 2}\n]', 3),
        (b'\n\n[{"a": 1}, 5', 3),
        (b'[{"a": 1}, 5]', 2),
        (b"", 1),
        (b" \n[]\n", 1),
        (b"[\n]", 1),
        (b"PAR1 and no more", 1),
        (b"\x1f\x8b and no more", 1),
        (gzip.compress(b'{"a": 1}\n' * 50_000)[:-20], 50_001),
        (gzip.compress(b'{"a": 1}\n')[:12] + b"\xff\xff\xff\xff", 1),
    ],
)
def test_a_malformed_file_is_reported_with_file_and_line(tmp_path, content, line):
    path = tmp_path / "rows.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"rows\.json") as caught:
        list(read_rows(path))
    told = str(caught.value)
    assert told.startswith(f"{path}:")
    assert "\n" not in told
    if not content.startswith(b"\x1f\x8b"):
        assert told.startswith(f"{path}:{line}: ")


def test_gzip_and_byte_order_marks_and_blank_lines_are_read_through(tmp_path):
    plain = b'\xef\xbb\xbf{"a": 1}\n\n{"a": 2}\n'
    (tmp_path / "rows.txt").write_bytes(gzip.compress(plain))
    assert list(read_rows(tmp_path / "rows.txt")) == [(1, {"a": 1}), (3, {"a": 2})]
    (tmp_path / "array").write_bytes(gzip.compress(b' [{"a": 1}, {"a": 2}]'))
    assert list(read_rows(tmp_path / "array")) == [(1, {"a": 1}), (2, {"a": 2})]


def test_five_questions_of_math_500_also_occur_in_aime():
    train = math_tasks(shared("aime_1983_2024.json"))
    test = math_tasks(shared("math_500.json"))
    assert duplicate_questions(train, test) == [
        ("2017-II-7", "80"),
        ("2015-II-6", "285"),
        ("2001-II-3", "292"),
        ("2010-I-6", "412"),
        ("1983-2", "489"),
    ]


def test_questions_that_differ_in_a_sign_are_no_duplicates():
    assert duplicate_questions([Task("a", "What is $2 + 3$?")], [Task("b", "What is 2+3 ?")])
    assert not duplicate_questions([Task("a", "What is 2+3?")], [Task("b", "What is 2-3?")])


def test_games_whose_tasks_all_ask_the_same_share_no_questions():
    train, test = [Task("a", "Play."), Task("b", "Play.")], [Task("c", "Play.")]
    assert duplicate_questions(train, test) == []
    assert duplicate_questions([*train, Task("d", "Pass.")], test) == [("a", "c")]


def test_a_file_and_the_split_of_a_folder_are_found(tmp_path):
    file = write(tmp_path / "my_train.jsonl", {})
    write(tmp_path / "test.json", {})
    (tmp_path / "README.md").write_text("notes")
    assert locate(str(file), split="test") == file
    assert locate(str(tmp_path), split="train") == file
    assert locate(str(tmp_path), split="test") == tmp_path / "test.json"


@pytest.mark.parametrize(
    ("files", "split", "chosen"),
    [
        (["main/test-0-of-1.parquet", "socratic/test-0-of-1.parquet"], "test", "main/test-0-of-1"),
        (["data/problems.jsonl", "dataset_infos.json"], "train", "data/problems"),
        (["data/train/rows.json", "data/val/rows.json"], "test", "data/val/rows"),
        (["latest.json", "train.json"], "test", "latest"),
    ],
)
def test_the_file_of_a_split_is_chosen_by_its_name(files, split, chosen):
    assert choose(files, name="n", split=split).startswith(chosen)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (["train-0-of-2.parquet", "train-1-of-2.parquet"], "several"),
        (["test.json"], "files: test.json"),
        ([], "no single data file"),
    ],
)
def test_a_split_without_one_file_is_an_error(files, told):
    with pytest.raises(ValueError, match=told):
        choose(files, name="n", split="train")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A hub cache that holds one file of one data set, and no network."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    repo = tmp_path / "hub" / "datasets--openai--gsm8k"
    folder = repo / "snapshots" / COMMIT / "main"
    folder.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    write(folder / "test-00000-of-00001.parquet", {"question": "1+1?", "answer": "#### 2"})
    return tmp_path / "hub"


@pytest.mark.parametrize("name", ["gsm8k", "GSM-8K", "openai/gsm8k"])
def test_a_cached_hub_data_set_is_found_without_network(cache, name):
    path = locate(name, split="test", cache_dir=cache)
    assert [task.answer for task in math_tasks(path)] == ["2"]


def test_a_set_that_is_not_prepared_says_how_to_prepare_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no folder data/mbpp: `rolecall data mbpp` makes it"):
        locate("data/mbpp", split="train")


@pytest.mark.parametrize(
    ("name", "split", "told"),
    [
        ("gsm8", "test", "nearest: gsm8k"),
        ("zzz", "test", "known: gsm8k, math500"),
        ("data/nothing.jsonl", "test", "no such file or folder"),
        ("math500", "train", "only test"),
        ("math500", "test", "tried test.jsonl of hub data set HuggingFaceH4/MATH-500"),
        ("math500", "test", "; without a network write a file in place of 'math500'"),
        ("openai/gsm8k", "train", "no single data file"),
        ("./data/deep/nothing.jsonl", "test", "no such file or folder"),
    ],
)
def test_a_name_that_leads_nowhere_says_in_one_line_what_was_tried(cache, name, split, told):
    with pytest.raises(ValueError, match=re.escape(name)) as caught:
        locate(name, split=split, cache_dir=cache)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_references_that_no_parser_reads_are_told_when_rows_are_read(tmp_path, caplog):
    rows = [
        {"id": "a", "problem": "1 + 1?", "answer": "2"},
        {"id": "b", "problem": "How large?", "answer": r"m_{\max}=n^{2}-n-1"},
        {"id": "c", "problem": "Where?", "answer": "t(0,4]"},
    ]
    path = write(tmp_path / "rows.jsonl", *rows)
    environment = MathEnvironment(train=str(path), test=str(path))

    async def scenario():
        tasks = environment.tasks("train")
        scores = []
        for task, said in zip(tasks, ["2", r"m_{\max} = n^{2}-n-1", "x+4"], strict=True):
            world = environment.open(task, seed=0)
            episode = Episode(task.id, task, 0, 0, answer=rf"\boxed{{{said}}}")
            scores.append((await world.score(episode), episode.metrics))
        await environment.close()
        return scores

    scores = asyncio.run(scenario())
    assert [score["team"] for score, _ in scores] == [1.0, 1.0, 0.0]
    assert scores[2][1] == {"count/judge_text": 1, "answer/strict": 0.0, "answer/lenient": 0.0}
    [told] = [r.getMessage() for r in caplog.records if "no parser" in r.getMessage()]
    assert told.startswith("2 references of the train split")
    assert r"m_{\max}" in told
