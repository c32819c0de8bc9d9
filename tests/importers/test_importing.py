"""`rolecall import`: their file in, a file that `rolecall train` accepts out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rolecall.config.load import load
from rolecall.setup.plan import load_plan
from tests.toy import command

MRLM = """
experiment_name: sums
training: {algorithm: grpo, num_iterations: 5, learning_rate: 1e-5, batch_size: 16, seed: 3,
           num_rollouts_per_iteration: 64}
grpo: {group_size: 8}
model: {model_name_or_path: Qwen/Qwen3-0.6B, max_new_tokens: 128,
        generation: {top_k: 0, top_p: 1.0}}
policy_env: {env_type: math, dataset: sums.jsonl}
"""
DRMAS = """
set -x
train_size=8
ids='["Solver Agent","Verifier Agent"]'
tag=$(jq -r '.[]' <<< "$ids")
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo algorithm.group_by_agent_id=True \\
    data.train_files=$PWD/sums.jsonl data.val_files=$PWD/sums.jsonl \\
    data.train_batch_size=$train_size data.max_response_length=4096 \\
    +data.apply_chat_template_kwargs.enable_thinking=False \\
    +agent.agent_specific_parameters.actor.optim.lr='[1e-6,2e-6]' \\
    actor_rollout_ref.rollout.val_kwargs.do_sample=True \\
    env.env_name=math env.rollout.n=4 agent.agent_ids="$ids" \\
    agent.model_ids='["a/b","c/d"]' agent.orchestra_type=math \\
    trainer.logger=['console','tensorboard'] trainer.experiment_name="x_$tag" \\
    trainer.total_epochs=3
"""
MARTI = """
PRETRAIN="Qwen/Qwen3-4B"
DEFAULT="{ \\"is_reasoning_model\\": false, \\"seed\\": 7 }"
A="{ \\"0\\": { \\"role\\": \\"generator\\", \\"pretrain\\": \\"${PRETRAIN}\\",
    \\"is_tuning\\": true, \\"chat_template\\":
    [\\"\\\\$question\\\\n\\\\nPut the answer within \\\\\\\\boxed{}.\\\\n\\"] } }"
B="{ \\"1\\": { \\"role\\": \\"generator\\", \\"pretrain\\": \\"${PRETRAIN}\\" } }"
python3 -m openrlhf.cli.multi_agent_train_ppo_ray \\
    --default_agent "$DEFAULT" --agents "$A" "$B" \\
    --workflow_args '{"task": "math", "num_rounds": 3}' \\
    --workflow_func_path openrlhf/agent_workflows/debate_workflow.py \\
    --advantage_estimator group_norm --n_samples_per_prompt 4 --rollout_batch_size 8 \\
    --train_batch_size 32 --init_kl_coef 1e-3 --use_kl_loss --kl_estimator k3 \\
    --eps_clip_low_high 0.2 0.28 --eval_temperature 1.0 --bf16 --input_key="prompt" \\
    --prompt_data json@sums.jsonl --eval_dataset json@sums.jsonl 2>&1 | tee log
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """With 40 rows of sums."""
    rows = [json.dumps({"question": f"{n} + 1", "answer": str(n + 1)}) for n in range(40)]
    (tmp_path / "sums.jsonl").write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def imported(text: str, *arguments: str, capsys) -> tuple[int, str, str]:
    """(status, what was written to out.yaml, stderr)."""
    Path("theirs").write_text(text)
    status = command("import", "theirs", "--output", "out.yaml", *arguments)
    out = Path("out.yaml")
    return status, out.read_text() if out.is_file() else "", capsys.readouterr().err


@pytest.mark.parametrize("text", [MRLM, DRMAS, MARTI], ids=["mrlm", "drmas", "marti"])
def test_a_file_is_known_by_what_it_says_and_becomes_a_config_that_fits(text, capsys):
    status, written, error = imported(text, capsys=capsys)
    assert status == 0, error
    assert "???" not in written
    load_plan(Path("out.yaml"))


def test_a_script_gives_what_its_variables_hold(capsys):
    _, _, error = imported(DRMAS, capsys=capsys)
    config = load(Path("out.yaml"))
    assert config.trainer.epochs == 3
    assert config.policies["verifier"].optimizer.lr == 2e-6
    assert config.policies["solver"].template == {"enable_thinking": False}
    assert [named.name for named in config.trackers] == ["tensorboard"]
    assert "env.rollout.n=4 -> rollout.group_size: 4" in error
    assert "trainer.experiment_name=x_$(jq" in error


def test_what_is_imported_trains(model_folder, capsys):
    status, _, error = imported(
        DRMAS, f"policies.solver.base={model_folder}", f"policies.verifier.base={model_folder}",
        "policies.solver.template={}", "policies.verifier.template={}",
        "team.solver.sampling.max_tokens=8", "team.verifier.sampling.max_tokens=8",
        "rollout.groups=2", "rollout.group_size=2", "trainer.steps=1", "evaluation.tasks=2",
        capsys=capsys,
    )  # fmt: skip
    assert status == 0, error
    assert command("train", "out.yaml", "--output", "run") == 0
    assert Path("run/summary.json").is_file()


def test_models_that_only_the_script_knows_are_to_be_filled_in(capsys):
    text = DRMAS.replace("""'["a/b","c/d"]'""", '"$MODELS"')
    status, written, error = imported(text, capsys=capsys)
    assert status == 0, error
    assert "# Fill in policies.verifier.base: the model" in written


def test_arguments_of_a_script_stand_behind_it(capsys):
    text = 'n=1\nif [ "${1:-train}" == "eval" ]; then n=16; fi\n' + DRMAS.lstrip()
    Path("run.sh").write_text(
        text.replace("env.rollout.n=4", "env.rollout.n=4 env.rollout.val_n=$n")
    )
    for words, samples in (([], 1), (["eval"], 16)):
        assert command("import", "run.sh", *words, "--output", "out.yaml") == 0
        assert load(Path("out.yaml")).evaluation.samples == samples


def test_yaml_of_dr_mas_says_the_same_as_its_overrides(capsys):
    _, written, _ = imported(DRMAS, "output=null", capsys=capsys)
    settings = {
        "algorithm": {"adv_estimator": "grpo", "group_by_agent_id": True},
        "data": {"train_files": "./sums.jsonl", "val_files": "./sums.jsonl", "train_batch_size": 8,
                 "max_response_length": 4096,
                 "apply_chat_template_kwargs": {"enable_thinking": False}},
        "actor_rollout_ref": {"rollout": {"val_kwargs": {"do_sample": True}}},
        "env": {"env_name": "math", "rollout": {"n": 4}},
        "agent": {"agent_ids": ["Solver Agent", "Verifier Agent"], "model_ids": ["a/b", "c/d"],
                  "agent_specific_parameters": {"actor": {"optim": {"lr": [1e-6, 2e-6]}}},
                  "orchestra_type": "math"},
        "trainer": {"logger": ["console", "tensorboard"], "total_epochs": 3},
    }  # fmt: skip
    status, same, error = imported(yaml.safe_dump(settings), "output=null", capsys=capsys)
    assert status == 0, error
    assert same == written


def test_marti_s_own_spellings_and_prompts_are_read(capsys):
    imported(MARTI, capsys=capsys)
    config = load(Path("out.yaml"))
    assert config.trainer.seed == 7
    assert {n: a.role for n, a in config.team.items()} == {
        "debater0": "debater", "debater1": "debater",
    }  # fmt: skip
    assert config.team["debater0"].system == "Put the answer within \\boxed{}."
    assert config.workflow.options["rounds"] == 3
    assert config.algorithm.options["clip_high"] == 0.28
    assert config.trainer.epochs == 1


def test_hydra_lines_and_its_yaml_are_read_together(capsys):
    Path("moa.yaml").write_text(
        "agent_workflow: mixture-of-agents\nworkflow_args: {num_rounds: 2}\n"
        "agents: [{a: {role: generator}}, "
        "{b: {role: aggregator, chat_template: ['Sum up.']}}]"
    )
    script = """python -m marti.cli.commands.train --config-name "moa" shared_agents=True \\
        default_agent.pretrain=a/b default_agent.n_samples_per_prompt=16 \\
        default_agent.advantage_estimator=group_norm default_agent.rollout_batch_size=8 \\
        workflow_args.num_rounds=3 prompt_data=json@sums.jsonl add_prompt_suffix=null \\
        extra_eval_tasks=[sums] extra_eval_dir=. input_key=question label_key=answer \\
        default_agent.eval_temperature=1.0 default_agent.init_kl_coef=0.00"""
    Path("sums.json").write_text(Path("sums.jsonl").read_text())
    status, _, error = imported(script, "moa.yaml", "trainer.steps=2", capsys=capsys)
    assert status == 0, error
    config = load(Path("out.yaml"))
    assert config.workflow.options == {"layers": 1}  # the later file counts
    assert list(config.policies) == ["proposer"]
    assert config.team["aggregator"].system == "Sum up."
    assert config.trainer.steps == 2


@pytest.mark.parametrize("partial", [False, True])
def test_what_has_no_counterpart_stops_the_import_unless_it_is_partial(partial, capsys):
    text = MRLM.replace("grpo: {", "grpo: {reward_normalization: running, ")
    status, written, error = imported(text, *(["--partial"] if partial else []), capsys=capsys)
    assert status == (0 if partial else 2)
    assert "grpo.reward_normalization=running -> refused: GRPO compares" in error
    assert bool(written) == partial
    if partial:
        assert "# Not carried over: grpo.reward_normalization=running" in written
        load(Path("out.yaml"))


def test_what_nobody_can_know_is_to_be_filled_in_and_is_an_error_by_name_until_then(capsys):
    text = DRMAS.replace("$PWD/sums.jsonl data.val", "$DATA data.val")
    status, written, error = imported(text, capsys=capsys)
    assert status == 0, error
    assert "# Fill in environment.train: rows, $DATA there" in written
    assert yaml.safe_load(written)["environment"]["train"] == "???"
    assert command("train", "out.yaml") == 2
    assert "environment.train" in capsys.readouterr().err
    status, written, error = imported(
        text, "environment.train=sums.jsonl", "trainer.steps=4", capsys=capsys
    )
    assert "???" not in written
    assert load(Path("out.yaml")).trainer.steps == 4


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("a: 1", [], "whose config this is cannot be told: give --from mrlm|drmas|marti"),
        (MRLM, ["--from", "mrml"], "no framework 'mrml'; nearest: mrlm"),
        (MRLM.replace("group_size", "groupsize"), [],
         "grpo.groupsize: no key of MRLM; nearest: grpo.group_size"),
        (MRLM, ["trainer.stepz=3"],
         "trainer.stepz: unknown key; did you mean steps or idle_steps?"),
        (DRMAS.replace("main_ppo", "main_ppo oops"), [],
         "'oops' is neither key=value nor an option"),
        ("agent.orchestra_type: [", [], "theirs: line 2: neither YAML nor a script"),
        (DRMAS.replace("group_by_agent_id", "groupby_agent_id"), [],
         "theirs:7: algorithm.groupby_agent_id: no key of Dr. MAS; nearest: algorithm.group_by"),
        (DRMAS.replace("=8\n", "=many\n"), [],
         "theirs:9: data.train_batch_size: not a number (it is 'many')"),
        (MRLM.replace("seed: 3", "seed: 3, use_fp16: 1"), [],
         "no counterpart here for training.use_fp16 (theirs:3); --partial"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(text, arguments, said, capsys):
    status, written, error = imported(text, *arguments, capsys=capsys)
    assert status == 2
    assert said in error.strip().splitlines()[-1]
    assert not written


def test_the_yaml_goes_to_the_output_where_no_file_is_named(capsys):
    Path("theirs").write_text(MRLM)
    assert command("import", "theirs") == 0
    captured = capsys.readouterr()
    assert yaml.safe_load(captured.out)["trainer"]["steps"] == 5
    assert "training.seed=3 -> trainer.seed: 3" in captured.err
