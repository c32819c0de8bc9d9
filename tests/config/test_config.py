"""Files, overrides and names; the documents that are made from them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from rolecall.config.load import find, load, recipe_names
from rolecall.config.moved_keys import RENAMED
from rolecall.config.registry import BUILT_IN, resolve
from rolecall.config.schema import ToolsConfig
from rolecall.core.errors import ConfigError
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.setup.validate_options import check_agents_of_rewards
from tests.recipes.test_recipes import complete
from tests.toy import relay_config, write

ROOT = Path(__file__).resolve().parents[2]


def test_docs_config_is_what_the_classes_say():
    place = ROOT / "docs/generate_config.py"
    spec = importlib.util.spec_from_file_location("generate_config", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs/config.md").read_text() == module.page() + "\n"


def test_every_key_has_a_meaning():
    rows = [x for x in (ROOT / "docs/config.md").read_text().splitlines() if x.startswith("| `")]
    assert len(rows) > 60
    assert [row for row in rows if row.endswith("|  |")] == []


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_valid_and_says_what_it_shows_and_where_it_runs(name):
    text = find(name).read_text()
    assert "# Shows:" in text
    assert "# Hardware:" in text
    warm = ["stage=train"] if "warm_start" in text else []
    assert load(find(name), [*complete(name), *warm]).team


def test_a_value_that_is_yours_to_say_is_asked_for_by_name(tmp_path):
    path = tmp_path / "open.yaml"
    path.write_text('extends: data_science\nenvironment: {train: a, test: b, root: "???"}\n')
    with pytest.raises(ConfigError, match=r"environment\.root: the file leaves it open"):
        load(path)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in BUILT_IN.items() for name in names]
)
def test_every_built_in_name_resolves(kind, name):
    assert resolve(kind, name, key=kind) is not None


def test_a_coachs_options_name_agents_of_the_team():
    given = {"view.ground_truth_roles": "[nobody]", "show_to": "[nobody]"}
    given |= {"view.team": "{nobody: x}", "rubric.agents": "{nobody: x}"}
    for key, value in given.items():
        changed = load(find("mathchat"), [f"rewards.coach.{key}={value}"])
        [problem] = check_agents_of_rewards(changed)
        assert problem.startswith(f"rewards.coach.{key}: there is no agent 'nobody'")


def test_own_answers_that_are_printed_name_agents_of_the_team():
    own = load(find("mathchat"), ["rewards.own_answers.printed=[executer]"])
    [problem] = check_agents_of_rewards(own)
    assert problem.startswith("rewards.own_answers.printed: there is no agent 'executer'; nearest")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("agents: [nobody], most: 4", ["agents: there is no agent 'nobody'; there are: "]),
        ("agents: [verifier], most: 4", []),
        ("most: 10", ["most: 10 bounds nothing, as scores are at most 10; write a smaller number"]),
    ],
)
def test_a_coachs_bounds_name_agents_of_the_team_and_bound_something(options, told):
    caps = f"rewards.coach.caps=[{{metric: score, below: 0.5, {options}}}]"
    problems = list(check_agents_of_rewards(load(find("mathchat"), [caps])))
    assert len(problems) == len(told)
    for problem, start in zip(problems, told, strict=True):
        assert problem.startswith(f"rewards.coach.caps.0.{start}")


def test_a_part_with_a_name_is_given_anew_by_name_or_as_a_mapping():
    by_name = load(find("math_alone"), ["workflow=multi_turn", "workflow.max_turns=3"])
    mapping = load(find("math_alone"), ["workflow={name: multi_turn, max_turns: 3}"])
    assert by_name.workflow == mapping.workflow
    assert mapping.workflow.options == {"max_turns": 3}


def test_another_kind_of_cluster_leaves_the_options_of_the_first(tmp_path, model_folder):
    cluster = {"name": "ray", "address": "10.0.0.1:6379", "heartbeat_s": 3.0}
    file = write(tmp_path / "c.yaml", relay_config(model_folder, cluster=cluster))
    for changed in ("cluster=local", "cluster={name: local}"):
        assert load(file, [changed]).cluster.name == "local"
    again = load(file, ["cluster.heartbeat_s=4"]).cluster
    assert (again.address, again.heartbeat_s) == ("10.0.0.1:6379", 4.0)


def test_numbers_are_read_as_numbers(tmp_path, model_folder):
    config = load(
        write(tmp_path / "c.yaml", relay_config(model_folder)),
        ["policies.a.optimizer.lr=1e-6", "team.left.sampling.stop=[a,b]", "trackers=[tensorboard]"],
    )
    assert config.policies["a"].optimizer.lr == 1e-6
    assert config.team["left"].sampling.stop == ("a", "b")
    assert [tracker.name for tracker in config.trackers] == ["tensorboard"]


def test_a_part_of_a_mixed_environment_is_overridden_by_its_dotted_name(tmp_path, model_folder):
    config = relay_config(model_folder)
    config["environment"] = {
        "name": "mixed",
        "of": {"a": "math", "b": {"name": "math", "level": 3}},
    }
    file = write(tmp_path / "c.yaml", config)

    def parts(*overrides: str) -> dict:
        return load(file, list(overrides)).environment.options["of"]

    assert parts("environment.of.a.weight=2")["a"] == {"name": "math", "weight": 2}
    assert parts("environment.of.b.level=1")["b"] == {"name": "math", "level": 1}
    assert parts("environment.of.b=search")["b"] == {"name": "search"}
    assert parts("environment.of.c=search")["c"] == "search"
    assert load(file, ["environment=math"]).environment.options == {}


def test_a_key_given_twice_is_refused(tmp_path):
    (tmp_path / "c.yaml").write_text("team: {}\nteam: {}\n")
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        load(tmp_path / "c.yaml")


def test_an_empty_mapping_clears_what_the_file_has(model_folder, tmp_path):
    path = write(tmp_path / "c.yaml", relay_config(model_folder, rewards={"correct": 1.0}))
    assert load(path, ["rewards={}"]).rewards == {}
    assert set(load(path, ["rewards={coach: 1}"]).rewards) == {"correct", "coach"}
    replaced = load(path, ["rewards={}", "rewards.coach=2"]).rewards
    assert replaced == {"coach": 2.0}


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_key_is_answered_with_the_new_one(old, new, model_folder, tmp_path):
    config = relay_config(model_folder)
    names = {"policies": "a", "team": "left"}
    old, new = (key.replace("*", names.get(key.split(".")[0], "")) for key in (old, new))
    config["algorithm"] = {"name": "mappo"}
    if old.startswith("team"):
        config["team"]["left"]["algorithm"] = {"name": "mappo"}
    path = write(tmp_path / "team.yaml", config)
    with pytest.raises(ConfigError) as raised:
        build(validate(load(path, [f"{old}=1"])))
    assert str(raised.value) == f"command line: {old}: this key is now {new}"
    with pytest.raises(ConfigError) as raised:  # and the new one is a key: its value is looked at
        build(validate(load(path, [f"{new}=[{{}}]"])))
    assert str(raised.value).startswith(f"command line: {new}")
    assert "unknown key" not in str(raised.value)


@pytest.mark.parametrize(
    ("override", "location"),
    [
        ("environment.kinds=[words]", "command line: environment.kinds.0: "),
        ("trainer.warm_start=-1", "command line: trainer.warm_start.steps: "),
        ("trainer.warm_start={steps: -1}", "command line: trainer.warm_start.steps: "),
    ],
)
def test_a_value_that_the_command_line_replaced_has_no_line_of_the_file(override, location):
    """The list and the mapping that are replaced stand in the recipe, with the same inner keys."""
    with pytest.raises(ConfigError) as raised:
        validate(load(find("real_math"), [override]))
    assert str(raised.value).startswith(location)


def test_a_value_that_the_command_line_left_has_its_line_of_the_file(tmp_path):
    text = find("real_math").read_text().replace("kinds: [word]", "kinds: [words]")
    file = tmp_path / "c.yaml"
    file.write_text(text)
    [line] = [n for n, row in enumerate(text.splitlines(), start=1) if "kinds" in row]
    with pytest.raises(ConfigError) as raised:
        validate(load(file, ["environment={level: 2}"]))
    assert str(raised.value).startswith(f"{file}:{line}: environment.kinds.0: ")


def test_an_option_of_a_part_that_has_none_is_to_be_removed(model_folder, tmp_path):
    path = write(tmp_path / "team.yaml", relay_config(model_folder))
    with pytest.raises(ConfigError) as raised:
        validate(load(path, ["workflow.rounds=2"]))
    assert str(raised.value) == (
        "command line: workflow.rounds: unknown key; workflow takes no options, remove it"
    )


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("default", ["calculator", "python"]),
        ("calculator", ["calculator"]),
        (["default", "world"], ["calculator", "python", "world"]),
        ({"use": "default", "format": "tags"}, ["calculator", "python"]),
    ],
)
def test_a_word_stands_for_a_tool_or_for_the_usual_ones(written, names):
    assert [tool.name for tool in ToolsConfig.model_validate(written).use] == names
