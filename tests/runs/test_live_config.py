"""A program passes models, environments and functions that no file holds, and a run uses them."""

from __future__ import annotations

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import rolecall
from rolecall.config.load import load
from rolecall.core.errors import ConfigError
from rolecall.runs.live_config import LiveConfig
from tests.toy import Letters, relay_config, solo_config


@pytest.fixture
def loaded(model_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    return model, AutoTokenizer.from_pretrained(model_folder)


def test_a_loaded_model_becomes_a_folder_named_by_its_weights(loaded):
    model, tokenizer = loaded

    def folder():
        return LiveConfig().convert({"policies": {"a": {"base": (model, tokenizer)}}})

    first = folder()
    assert folder() == first
    model.get_input_embeddings().weight.data[0, 0] += 1
    assert folder() != first
    saved = AutoModelForCausalLM.from_pretrained(folder()["policies"]["a"]["base"])
    assert saved.get_input_embeddings().weight.equal(model.get_input_embeddings().weight)


def test_a_model_without_its_tokenizer_is_refused_under_its_key(loaded):
    model, tokenizer = loaded
    for wrong in (model, (tokenizer, model), (model, tokenizer, tokenizer)):
        with pytest.raises(ConfigError, match=r"^policies\.a\.base: .*pass \(model, tokenizer\)"):
            LiveConfig().convert({"policies": {"a": {"base": wrong}}})


def test_a_list_of_environments_is_a_mixture_that_replaces_the_environment():
    given = {"environment": [Letters(), {"name": Letters(), "weight": 2}, "math"]}
    assert LiveConfig().sections(given) == [
        "environment={}", 'environment.name="mixed"',
        'environment.of.letters.name="in-memory:Letters"',
        'environment.of.letters-2.name="in-memory:Letters-2"',
        "environment.of.letters-2.weight=2", 'environment.of.math.name="math"',
    ]  # fmt: skip
    assert LiveConfig().convert({"environment": ["math"]}) == {"environment": "math"}
    for wrong, said in (([], "the list is empty"), ([{"weight": 2}, "math"], "names no")):
        with pytest.raises(ConfigError, match=rf"^environment: .*{said}"):
            LiveConfig().convert({"environment": wrong})


def test_a_run_of_objects_trains_and_goes_on_in_the_same_program(loaded, model_folder, tmp_path):
    async def length(episode, world):
        return {"team": float(len(episode.turns[0].tokens))}

    config = relay_config(model_folder, trainer={"steps": 1}, evaluation={"tasks": 0})
    config["policies"]["a"]["base"] = loaded
    config |= {"environment": [Letters(), Letters()], "rewards": {length: 1.0}}
    rolecall.train(config, output=tmp_path / "run")
    assert rolecall.train(tmp_path / "run", trainer={"steps": 2})["steps"] == 2
    stored = load(tmp_path / "run/config.yaml")
    assert list(stored.environment.options["of"]) == ["letters", "letters-2"]
    assert list(stored.rewards) == ["in-memory:length"]
    families = {row["family"] for row in rolecall.load_run(tmp_path / "run").episodes().to_pylist()}
    assert families == {"letters", "letters-2"}


def test_an_environment_object_of_the_wrong_form_is_refused_in_one_line(model_folder, tmp_path):
    class Half:
        def tasks(self, split):
            return []

    with pytest.raises(ConfigError) as raised:
        rolecall.train(solo_config(model_folder), environment=Half, output=tmp_path / "run")
    [problem] = raised.value.problems
    assert "test_live_config.py:" in problem
    assert "has no open(task, *, seed)" in problem
