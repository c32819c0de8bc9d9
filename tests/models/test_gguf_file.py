"""A GGUF file is a base like a folder; what is no model is refused in one line."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rolecall.cli import main
from rolecall.models import gguf_file
from rolecall.models.base_location import exported_name, locate
from rolecall.models.loading import load_model, load_tokenizer
from tests.cli.test_cli import rolecall
from tests.gguf_files import small_llama, write_gguf
from tests.toy import solo_config, write

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small():
    return small_llama()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/rolecall/models"


def left_behind(cache: Path) -> list[str]:
    return [] if not cache.is_dir() else [p.name for p in cache.iterdir() if p.suffix != ".lock"]


def test_a_file_is_converted_once_and_loads_as_the_model_that_it_is(small, tmp_path, cache):
    model, tokenizer = small
    file = write_gguf(tmp_path / "small.gguf", model, tokenizer)
    folder = Path(locate(str(file)))
    before = sorted((p.name, p.stat().st_mtime_ns) for p in folder.iterdir())
    assert Path(locate(str(file))) == folder
    assert sorted((p.name, p.stat().st_mtime_ns) for p in folder.iterdir()) == before
    ids = torch.tensor([[5, 9, 40, 41, 7]])
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        assert torch.allclose(plain(ids).logits, model(ids).logits, atol=1e-4)
    loaded = load_model(str(file), device=torch.device("cpu"), dtype=torch.float32)
    assert exported_name(str(file)) == str(folder) == loaded.model.name_or_path
    read = load_tokenizer(str(file))
    text = "one two 12 three\n"
    messages = [{"role": "user", "content": "hi"}]
    assert read(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert read.apply_chat_template(messages) == tokenizer.apply_chat_template(messages)
    assert read.eos_token_id == tokenizer.eos_token_id


def test_another_file_of_the_same_name_is_converted_anew(small, tmp_path):
    model, tokenizer = small
    file = write_gguf(tmp_path / "small.gguf", model, tokenizer)
    first = locate(str(file))
    other, _ = small_llama(seed=1)
    write_gguf(file, other, tokenizer)
    assert locate(str(file)) != first


def test_halves_stay_halves(small, tmp_path):
    model, tokenizer = small
    file = write_gguf(tmp_path / "half.gguf", model, tokenizer, half=True)
    assert AutoConfig.from_pretrained(locate(str(file))).dtype == torch.float16


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "adapter"}, "is of the type 'adapter' and no model"),
        ({"parts": 3}, "one of 3 parts"),
        ({"architecture": "nobody"}, "cannot be read by transformers"),
        ({"leave_out": "blk.1.ffn_up.weight"}, "lacks 1 weights"),
    ],
)
def test_what_is_no_whole_model_is_refused_and_leaves_nothing(
    options, says, small, tmp_path, cache
):
    file = write_gguf(tmp_path / "odd.gguf", *small, **options)
    with pytest.raises(ValueError, match=says) as error:
        locate(str(file))
    assert "\n" not in str(error.value)
    assert left_behind(cache) == []


@pytest.mark.parametrize("share", [0.02, 0.5, 0.999])
def test_a_file_that_is_cut_short_is_refused(share, small, tmp_path, cache):
    whole = write_gguf(tmp_path / "whole.gguf", *small).read_bytes()
    file = tmp_path / "cut.gguf"
    file.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match="damaged or cut short"):
        locate(str(file))
    assert left_behind(cache) == []


def test_other_files_and_missing_ones_are_refused(tmp_path, cache):
    file = tmp_path / "text.gguf"
    file.write_text("a text")
    with pytest.raises(ValueError, match="not a GGUF file"):
        locate(str(file))
    with pytest.raises(ValueError, match="there is no such file"):
        locate(str(tmp_path / "none.gguf"))
    assert left_behind(cache) == []


def test_a_full_disk_is_told_before_anything_is_written(small, tmp_path, cache, monkeypatch):
    file = write_gguf(tmp_path / "small.gguf", *small)
    usage = namedtuple("usage", "total used free")(1, 1, 1000)
    monkeypatch.setattr(gguf_file.shutil, "disk_usage", lambda place: usage)
    with pytest.raises(ValueError, match=r"needs 0\.\d GB in .* are free"):
        locate(str(file))
    assert left_behind(cache) == []


def test_a_disk_that_fills_while_it_is_written_leaves_nothing(small, tmp_path, cache, monkeypatch):
    file = write_gguf(tmp_path / "small.gguf", *small)

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_file, "replace_folder", full)
    with pytest.raises(ValueError, match="No space left on device"):
        locate(str(file))
    assert left_behind(cache) == []


def test_a_team_trains_on_a_file(small, tmp_path, capsys):
    file = write_gguf(tmp_path / "small.gguf", *small)
    config = solo_config(file, evaluation={"tasks": 0}, trainer={"steps": 1})
    path = write(tmp_path / "c.yaml", config)
    status, out, error = rolecall("train", path, "--output", tmp_path / "run", capsys=capsys)
    assert status == 0, error
    assert "Wrote" in out


def test_the_line_says_what_to_install(small, tmp_path, capsys, monkeypatch):
    file = write_gguf(tmp_path / "small.gguf", *small)
    monkeypatch.setitem(main.sys.modules, "gguf", None)
    path = write(tmp_path / "c.yaml", solo_config(file))
    status, _, error = rolecall("check", path, capsys=capsys)
    assert status == 2
    assert "pip install 'rolecall[gguf]'" in error
    shutil.rmtree(tmp_path)
