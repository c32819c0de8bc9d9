"""The published parts of Search-R1's index become a folder that a search opens by its name."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rolecall.retrieval import published_index
from rolecall.retrieval.flat_index import FlatIndex, read_flat_header
from rolecall.retrieval.opening import open_index
from rolecall.retrieval.published_index import check_parts, open_published
from tests.data.test_hub import hub, rolecall
from tests.retrieval.test_dense import bag
from tests.toy import command

faiss = pytest.importorskip("faiss", reason="faiss is not installed")

TEXTS = ["Ada wrote programs", "Emma is a novel", "Rain falls", "Snow falls"]
REPOS = ("PeterJinGo/wiki-18-e5-index", "PeterJinGo/wiki-18-corpus")


def pack(texts, *, ending: str = "\n") -> bytes:
    rows = [{"id": str(n), "contents": f'"Title {n}"\n{text}'} for n, text in enumerate(texts)]
    return gzip.compress(("\n".join(map(json.dumps, rows)) + ending).encode())


def flat(folder: Path, *, kind=faiss.IndexFlatIP) -> bytes:
    made = kind(1024)
    made.add(bag(TEXTS))
    faiss.write_index(made, str(folder / "made.index"))
    return (folder / "made.index").read_bytes()


@pytest.fixture
def parts(tmp_path) -> Path:
    """A folder with the three published files, small."""
    whole, folder = flat(tmp_path), tmp_path / "parts"
    folder.mkdir()
    (folder / "part_aa").write_bytes(whole[:5000])
    (folder / "part_ab").write_bytes(whole[5000:])
    (folder / "wiki-18.jsonl.gz").write_bytes(pack(TEXTS))
    return folder


def prepare(parts: Path, folder: Path, capsys) -> str:
    """The one line of an error; "" if there was none."""
    status = command("data", "searchr1-index", "--from", parts, "--output", folder)
    lines = capsys.readouterr().err.strip().splitlines()
    assert status == (2 if lines else 0)
    assert len(lines) < 2
    return "".join(lines)


def test_the_header_of_a_flat_index_is_what_faiss_writes(tmp_path):
    for kind in (faiss.IndexFlatIP, faiss.IndexFlatL2):
        whole = flat(tmp_path, kind=kind)
        header = read_flat_header(tmp_path / "made.index")
        assert header == FlatIndex(dimensions=1024, num_vectors=4)
        assert header.num_bytes == len(whole)
    other = faiss.IndexHNSWFlat(8, 4)
    other.add(bag(TEXTS)[:, :8].copy())
    faiss.write_index(other, str(tmp_path / "other.index"))
    assert read_flat_header(tmp_path / "other.index") is None
    (tmp_path / "short").write_bytes(whole[:20])
    assert read_flat_header(tmp_path / "short") is None


def test_the_size_of_the_published_index_follows_from_its_header():
    """21,015,324 passages of Wikipedia, 768 numbers each."""
    assert FlatIndex(768, 21_015_324).num_bytes == 64_559_075_373


def test_published_parts_become_a_folder_that_is_searched_by_its_name(parts, tmp_path, capsys):
    folder = tmp_path / "index"
    assert prepare(parts, folder, capsys) == ""
    joined = (folder / "e5_Flat.index").read_bytes()
    assert joined == (parts / "part_aa").read_bytes() + (parts / "part_ab").read_bytes()
    assert (folder / "wiki-18.jsonl").read_bytes() == gzip.decompress(pack(TEXTS))
    heard = []

    def encode(texts):
        heard.extend(texts)
        return bag([text.removeprefix("query: ") for text in texts])

    [[best, *_]] = open_published(folder, encode=encode).search(["a novel"], 2)
    assert (best.id, best.title, best.text) == ("1", "Title 1", "Emma is a novel")
    assert heard[-1] == "query: a novel"  # as the model in the manifest, E5, is asked
    assert json.loads((folder / "manifest.json").read_text())["options"] == {
        "model": "intfloat/e5-base-v2",
        "dimensions": 1024,
    }


def test_a_folder_of_an_index_opens_without_naming_corpus_and_model(
    parts, tmp_path, capsys, monkeypatch
):
    folder = tmp_path / "index"
    assert prepare(parts, folder, capsys) == ""
    asked = []
    monkeypatch.setattr(
        "rolecall.retrieval.faiss_file.load_encoder", lambda model: asked.append(model) or bag
    )
    assert open_index(folder).search(["query: Rain falls"], 1)[0][0].id == "2"
    open_index(folder, model="models/mine")
    assert asked == ["intfloat/e5-base-v2", "models/mine"]


def test_a_whole_folder_stays_and_a_broken_or_strange_one_is_refused(parts, tmp_path, capsys):
    folder = tmp_path / "index"
    assert prepare(parts, folder, capsys) == ""
    before = (folder / "e5_Flat.index").stat().st_mtime_ns
    (parts / "part_ab").unlink()  # nobody looks at the parts any more
    assert prepare(parts, folder, capsys) == ""
    assert (folder / "e5_Flat.index").stat().st_mtime_ns == before
    os.truncate(folder / "e5_Flat.index", 6000)
    told = prepare(parts, folder, capsys)
    assert "e5_Flat.index is missing or cut; remove the folder, or name another" in told
    with pytest.raises(ValueError, match=r"is not whole: e5_Flat\.index is missing or cut"):
        open_index(folder)


def test_a_folder_with_other_files_is_left_alone(parts, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    assert "full is not empty" in prepare(parts, tmp_path / "full", capsys)
    assert [file.name for file in (tmp_path / "full").iterdir()] == ["mine"]


def swap(folder):
    (folder / "part_aa").rename(folder / "x")
    (folder / "part_ab").rename(folder / "part_aa")
    (folder / "x").rename(folder / "part_ab")


def cut(name, share):
    def change(folder):
        os.truncate(folder / name, int((folder / name).stat().st_size * share))

    return change


def replace(name, content):
    return lambda folder: (folder / name).write_bytes(content)


CORRUPT = bytearray(pack(TEXTS))
CORRUPT[len(CORRUPT) // 2] ^= 0xFF
BROKEN = [
    (lambda f: (f / "part_ab").unlink(), "takes 16,429 bytes, and the parts hold 5,000"),
    (cut("part_ab", 0.5), "a part is missing or cut"),
    (replace("part_ac", b"more"), "and the parts hold 16,433 .*one is too many"),
    (swap, "part_aa does not begin as a flat index of faiss; part_ab does: .* wrong order"),
    (
        replace("part_aa", b"no index at all" * 5),
        "part_aa does not begin as a flat index of faiss$",
    ),
    (cut("wiki-18.jsonl.gz", 0.6), "wiki-18.jsonl.gz.* ended before the end-of-stream"),
    (replace("wiki-18.jsonl.gz", bytes(CORRUPT)), "wiki-18.jsonl.gz"),
    (replace("wiki-18.jsonl.gz", pack(TEXTS[:3])), "holds 3 passages and the index 4 vectors"),
    (replace("wiki-18.jsonl.gz", gzip.compress(b'{"id": 1}\n')), "no `contents` and no `text`"),
    (lambda f: (f / "wiki-18.jsonl.gz").unlink(), "one corpus .* is needed, there is: none"),
    (replace("wiki-18.jsonl", b"{}"), "one corpus .* is needed, there is: .*gz, .*wiki-18.jsonl"),
    (lambda f: [p.unlink() for p in f.glob("part_*")], "parts of the index .* are missing beside"),
]


@pytest.mark.parametrize(("change", "told"), BROKEN)
def test_bad_parts_are_one_line_and_leave_nothing(parts, tmp_path, capsys, change, told):
    change(parts)
    line = prepare(parts, tmp_path / "index", capsys)
    assert line.startswith("rolecall: ")
    assert re.search(told, line), line
    assert not [path for path in tmp_path.iterdir() if "index" in path.name and path.is_dir()]


def test_files_may_be_named_one_by_one_and_parts_are_ordered_by_name(parts, tmp_path):
    named = [f"--from={parts / name}" for name in ("part_ab", "wiki-18.jsonl.gz", "part_aa")]
    assert command("data", "searchr1-index", *named, "--output", tmp_path / "index") == 0
    assert open_published(tmp_path / "index", encode=bag).index.ntotal == 4
    nowhere = command("data", "searchr1-index", "--from", tmp_path / "no", "--output", "x")
    assert nowhere == 2


@pytest.mark.parametrize("ending", ["", "\n", "\n\n \n"])
def test_empty_lines_are_no_passages_wherever_a_chunk_ends(parts, tmp_path, monkeypatch, ending):
    (parts / "wiki-18.jsonl.gz").write_bytes(pack(TEXTS, ending=ending))
    for number, chunk in enumerate((1, 7, 64, 1 << 20)):
        monkeypatch.setattr(published_index, "CHUNK", chunk)
        folder = tmp_path / f"index{number}"
        assert command("data", "searchr1-index", "--from", parts, "--output", folder) == 0
        assert (folder / "wiki-18.jsonl").read_bytes() == gzip.decompress(
            pack(TEXTS, ending=ending)
        )


def test_too_small_a_disk_is_told_before_anything_is_written(parts, tmp_path, capsys, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("rolecall.runs.prepare_index.shutil.disk_usage", lambda _: usage)
    told = prepare(parts, tmp_path / "a" / "index", capsys)
    assert "GB are free; name a folder on another disk with --output" in told
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
def test_a_killed_preparation_leaves_no_index_and_the_next_one_makes_it(parts, tmp_path, capsys):
    """It is killed while it writes a corpus of 64 MB."""
    folder = tmp_path / "index"
    big = parts / "wiki-18.jsonl"
    (parts / "wiki-18.jsonl.gz").rename(tmp_path / "kept.gz")
    big.write_bytes(gzip.decompress(pack(TEXTS)).replace(b"Ada", b"Ada " * (1 << 24)))
    arguments = ["data", "searchr1-index", "--from", str(parts), "--output", str(folder)]
    process = subprocess.Popen([sys.executable, "-m", "rolecall", *arguments])
    while process.poll() is None and not [*tmp_path.glob(".index.partial-*/index/*")]:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not folder.exists()
    assert [*tmp_path.glob(".index.partial-*")]
    big.unlink()
    (tmp_path / "kept.gz").rename(parts / "wiki-18.jsonl.gz")
    assert prepare(parts, folder, capsys) == ""
    assert not [*tmp_path.glob(".index.partial-*")]
    assert check_parts([folder / "e5_Flat.index"]).num_vectors == 4


@pytest.mark.slow
def test_parts_are_fetched_from_the_hub_under_their_published_names(parts, tmp_path):
    files = {path.name: path.read_bytes() for path in parts.iterdir()} | {"README.md": b"words"}
    place = ("--output", tmp_path / "index")
    with hub(files, repos=REPOS) as (url, asked):
        done = rolecall("data", "searchr1-index", *place, url=url, home=tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert "4 passages, vectors of 1024 numbers" in done.stdout
    loaded = {path for path in asked if "/resolve/" in path}
    assert {path.rpartition("/")[2] for path in loaded} == set(files) - {"README.md"}
    assert {path.split("/")[3] for path in loaded if "wiki-18.jsonl" in path} == {"wiki-18-corpus"}
    with hub(files, repos=REPOS, missing="part_ab") as (url, _):
        done = rolecall("data", "searchr1-index", "--output", tmp_path / "b", url=url,
                        home=tmp_path / "other")  # fmt: skip
    assert done.returncode == 2
    assert "cannot fetch part_ab of PeterJinGo/wiki-18-e5-index" in done.stderr.splitlines()[-1]
