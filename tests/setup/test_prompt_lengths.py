"""Tasks whose prompt no context has room for are left out at load, and counted."""

import json

import pytest

from rolecall.config.load import load
from rolecall.core.errors import ConfigError
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.setup.prompt_lengths import _make_reader, _num_tokens, drop_long_prompts
from rolecall.setup.tasks import Tasks


def run_of(tmp_path, lengths, *overrides):
    """A run of the model inside the package, whose context has 1,024 tokens."""
    path = tmp_path / "rows.jsonl"
    rows = [
        {"question": "1 + " * length + f"{n}?", "answer": "1"} for n, length in enumerate(lengths)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    config = load_config(path, *overrides)
    return build(validate(config))


def load_config(path, *overrides):
    file = path.with_name("run.yaml")
    file.write_text(
        f"""
team: {{solver: {{policy: small, system: "Box it."}}}}
policies: {{small: {{base: "tiny:math"}}}}
workflow: single
environment: {{name: math, train: {path}, test: {path}}}
algorithm: grpo
rollout: {{groups: 1, group_size: 2}}
trainer: {{steps: 1}}
evaluation: {{tasks: 10}}
"""
    )
    return load(file, list(overrides))


def test_prompts_that_are_longer_than_the_context_are_left_out_and_counted(tmp_path, caplog):
    run = run_of(tmp_path, [1, 2000, 3, 4000])
    assert [task.id for task in run.sampler.train] == ["rows-1", "rows-3"]
    assert [task.id for task in run.test] == ["rows-1", "rows-3"]
    lines = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert lines == [
        "4 tasks are left out, because no agent's context (at most 1024 tokens) has room for "
        "their prompt; the first is rows-2"
    ]


def test_the_longest_prompt_that_has_room_for_one_token_is_kept(tmp_path):
    run = run_of(tmp_path, [1])
    [agent] = run.context.agents.values()
    prompt = "7 " * 600
    number = _num_tokens(agent, prompt)
    assert _make_reader(agent, number + 1).has_room(prompt)
    assert not _make_reader(agent, number).has_room(prompt)
    assert _make_reader(agent, None).has_room(prompt)


def test_a_file_of_long_prompts_alone_is_refused_before_anything_is_played(tmp_path):
    with pytest.raises(ConfigError, match=r"rollout\.groups: a step of 1 tasks cannot be sampled"):
        run_of(tmp_path, [2000, 3000], "evaluation.tasks=0")


def test_prompts_above_the_limit_of_the_config_are_left_out_and_counted(tmp_path, caplog):
    run = run_of(tmp_path, [1, 60, 3, 2000])
    [agent] = run.context.agents.values()
    number = _num_tokens(agent, run.sampler.train[1].prompt)
    for limit, kept in (
        (number, ["rows-1", "rows-2", "rows-3"]),
        (number - 1, ["rows-1", "rows-3"]),
    ):
        caplog.clear()
        run = run_of(tmp_path, [1, 60, 3, 2000], f"rollout.max_prompt_tokens={limit}")
        assert [task.id for task in run.sampler.train] == kept
        assert [task.id for task in run.test] == kept
        [line] = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
        assert line == (
            f"{2 * (4 - len(kept))} tasks are left out, because their prompt has more than {limit} "
            f"tokens (rollout.max_prompt_tokens); the first is rows-{2 + len(kept) % 2 * 2}"
        )


def test_a_limit_for_tasks_that_are_generated_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"max_prompt_tokens has no effect: tasks are generated"):
        run_of(tmp_path, [1], "rollout.max_prompt_tokens=9", "environment={name: math}")


def test_a_prompt_of_just_the_limit_is_kept_where_the_context_is_not_known(tmp_path):
    run = run_of(tmp_path, [1, 60])
    [agent] = run.context.agents.values()
    run.config.rollout.max_prompt_tokens = _num_tokens(agent, run.sampler.train[1].prompt)
    tasks = Tasks(run.sampler, run.test, run.validation)
    short = drop_long_prompts(tasks, run.config, run.context.agents, lengths={})
    assert [task.id for task in short.sampler.train] == ["rows-1", "rows-2"]
