"""Options of other libraries are answered with ours; their configs are not taken for a team's."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import BaseModel

from rolecall.config import registry
from rolecall.config.errors import _branches
from rolecall.config.load import load
from rolecall.config.other_names import OTHER_NAMES
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.importers.importing import FRAMEWORKS
from rolecall.importers.reading import guess
from rolecall.setup.plan import validate
from tests.toy import relay_config, write


def exists(key: str) -> bool:
    """Whether a key of ours can be written; options of algorithms are those of any of them."""
    first, *rest = key.split(".")
    if first == "algorithm":
        kinds = [registry.resolve("algorithm", n, key="") for n in registry.BUILT_IN["algorithm"]]
        return rest == ["name"] or any(rest[0] in kind.model_fields for kind in kinds)
    models: list = [Config]
    for part in key.split("."):
        inside: list = []
        for one in models:
            if isinstance(one, type) and issubclass(one, BaseModel):
                field = one.model_fields.get(part)
                inside += [*_branches(field.annotation), field] if field else []
            elif part == "NAME" and get_args(one):
                inside += _branches(get_args(one)[-1])
        models = inside
    return bool(models)


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_each_answer_is_a_key_of_ours(name):
    library, ours = OTHER_NAMES[name]
    assert exists(ours), ours
    assert library
    assert not exists(name) or name in ("lr", "n")  # what is a key here is not looked up


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("lora.r=8", "lora: unknown key; write policies.NAME.adapter (what PEFT has as lora)"),
        ("algorithm.beta=0.1", "algorithm.beta: unknown key; write algorithm.kl (what TRL has"),
        ("trainer.total_epochs=2", "trainer.total_epochs: unknown key; write trainer.steps"),
        ("actor_rollout_ref.rollout.n=8", "actor_rollout_ref: unknown key; write policies"),
        ("policies.a.lora_rank=8", "write policies.NAME.adapter.rank (what verl and OpenRLHF have"),
        ("rollout.num_generations=8", "rollout.num_generations: unknown key; write rollout.group_"),
    ],
)
def test_a_name_of_another_library_is_answered_with_ours(override, told, model_folder, tmp_path):
    path = write(tmp_path / "team.yaml", relay_config(model_folder))
    with pytest.raises(ConfigError) as raised:
        validate(load(path, [override]))
    assert told in str(raised.value)


PLAIN = {
    "verl": (
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
        "data.train_files=train.parquet actor_rollout_ref.model.path=Qwen/Qwen3-0.6B "
        "actor_rollout_ref.rollout.n=8"
    ),
    "TRL": "model_name_or_path: Qwen/Qwen3-0.6B\nnum_generations: 8\nmax_completion_length: 512\n",
    "OpenRLHF": "python3 -m openrlhf.cli.train_ppo_ray --pretrain x --n_samples_per_prompt 8",
}


def test_a_plain_config_of_openrlhf_is_not_taken_for_a_teams():
    with pytest.raises(ConfigError, match="plain config of OpenRLHF, without a team"):
        guess(PLAIN["OpenRLHF"], FRAMEWORKS)


@pytest.mark.parametrize("library", ["verl", "TRL"])
def test_a_plain_config_is_known_as_its_library_s(library):
    assert guess(PLAIN[library], FRAMEWORKS).title == library


def test_a_teams_config_that_is_built_on_a_library_is_known():
    assert guess(PLAIN["verl"] + " agent.orchestra_type=math", FRAMEWORKS).name == "drmas"
    assert guess(PLAIN["OpenRLHF"] + " --workflow_func_path x.py", FRAMEWORKS).name == "marti"
