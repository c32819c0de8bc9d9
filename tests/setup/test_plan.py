"""All that does not fit in a config is told at once, with the lines where it stands."""

from __future__ import annotations

import pytest

from rolecall.config.load import find, load, recipe_names
from rolecall.core.errors import ConfigError
from rolecall.setup import build as building
from rolecall.setup.plan import load_plan, validate
from tests.recipes.test_recipes import PRETRAINED, complete
from tests.toy import relay_config, write

FILE = """\
team:
  solver: {policy: small}
  verifier: {policy: smal}
policies:
  small:
    base: tiny:math
    optimizer: {lr: much}
workflow: solver_verifier
environment: {name: math, sources: [nowhere]}
algorithm: {name: drmas, clip_hi: 0.2}
learner: {ids_per_batch: 512}
trainer: {steps: 3, seed: zero}
"""


def problems(text, tmp_path, *overrides) -> list[str]:
    path = tmp_path / "team.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_plan(path, list(overrides))
    return [line.replace(f"{path}:", "") for line in raised.value.problems]


def test_mistakes_of_every_kind_are_told_together_with_their_lines(tmp_path):
    found = problems(FILE, tmp_path)
    starts = [
        "7: policies.small.optimizer.lr: ",  # a value of another type
        "11: learner.ids_per_batch: this key is now learner.tokens_per_batch",  # an old key
        "12: trainer.seed: ",
        "10: algorithm.clip_hi: unknown key; did you mean clip_high",  # an option of a part
        "3: team.verifier.policy: there is no policy 'smal'; nearest: small",  # what does not fit
        "9: environment.sources: unknown key",
    ]
    for start in starts:
        assert any(line.startswith(start) for line in found), (start, found)
    assert len(found) == len(starts), found


def test_what_a_wrong_entry_may_cause_is_not_told_beside_it(tmp_path):
    text = FILE.replace("{policy: smal}", "{policy: small}").replace("lr: much", "lr: 0.1")
    found = problems(text.replace("steps: 3, seed: zero", "steps: 3"), tmp_path, "rollout.groop=1")
    assert sum("rollout" in line for line in found) == 1


def test_an_override_is_named_as_such(tmp_path):
    text = FILE[: FILE.index("learner")].replace("smal}", "small}").replace("much", "0.1")
    text = text.replace(", clip_hi: 0.2", "").replace(", sources: [nowhere]", "")
    found = problems(text, tmp_path, "trainer.steps=0", "team.solver.policy=other")
    assert sorted(line.partition(": ")[2].partition(":")[0] for line in found) == [
        "team.solver.policy",
        "trainer.steps",
    ]
    assert all(line.startswith("command line: ") for line in found)


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_planned_without_data_and_weights(name, monkeypatch):
    monkeypatch.setattr(building, "load_models", lambda *_: pytest.fail("weights were loaded"))
    yours = ["environment.train=place", "environment.test=place"]
    given = ["stage=train"] if name in PRETRAINED else complete(name)
    given += yours if name == "real_gsm8k" else []
    plan = validate(load(find(name), given))
    assert plan.workflow.roles
    assert set(plan.algorithms) == {n for n, a in plan.config.team.items() if a.trainable}


def test_a_part_that_cannot_be_made_is_told_with_the_others(model_folder, tmp_path):
    config = relay_config(model_folder)
    config["environment"] = {"name": "math", "train": str(tmp_path / "nowhere.jsonl")}
    config["rewards"] = {"correct": 1.0, "proposals": {"own": 2.0}}
    path = write(tmp_path / "team.yaml", config)
    with pytest.raises(ConfigError) as raised:
        building.build(load_plan(path))
    keys = {line.removeprefix(f"{path}:").split(": ")[1] for line in raised.value.problems}
    assert keys == {"environment", "rewards.proposals"}
