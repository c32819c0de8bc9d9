"""MARTI's files, old and new, become configs that fit and that train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rolecall.core.errors import ConfigError
from rolecall.importers.importing import import_files
from rolecall.importers.keys import EDIT
from rolecall.importers.marti_prompts import read_template
from rolecall.importers.translating import FRAMEWORKS, translate
from tests.importers.marti_files import script_v1, script_v2, write_repository
from tests.importers.test_translating import COACHED, FIRST_DEBATE, FIRST_RUN, REVIEWS
from tests.toy import command

SEARCH_TOOL = '\\"search\\": {\\"type\\": \\"search_r1\\", \\"base_url\\": \\"http://h/retrieve\\"}'
PYTHON_TOOL = (
    '\\"python\\": {\\"type\\": \\"sandbox_fusion\\", \\"base_url\\": \\"http://h/run_code\\"}'
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """A repository of version 1, with 40 rows."""
    write_repository(tmp_path)
    rows = [json.dumps({"prompt": f"{n} + 1", "answer": str(n + 1)}) for n in range(40)]
    (tmp_path / "rows").mkdir()
    for name in ("train.jsonl", "test.json"):
        (tmp_path / "rows" / name).write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def imported(file: Path, *overrides: str) -> dict:
    """The config that a file becomes, nothing of which is refused."""
    text, _ = import_files([file], list(overrides), source=None, partial=False)
    return yaml.safe_load(text)


def v2(folder: Path, workflow: str, **rest: str) -> dict:
    file = folder / "run.sh"
    file.write_text(script_v2(workflow, **rest))
    return imported(file)


# --- version 2 ---


def test_a_debate_of_version_2_keeps_its_margins_loss_and_penalty(folder):
    config = v2(folder, "debate", options="--processor_func_path openrlhf/debate_processor.py")
    assert config["workflow"]["earns"] == "outcome"
    assert config["rewards"] == {
        "own_answers": {"shape": "margin", "alpha": 0.5, "final": 0.0},
        "overlong": {"longest": 4096, "buffer": 1024, "factor": 1.0},
    }
    algorithm = config["algorithm"]
    assert (algorithm["name"], algorithm["mean"], algorithm["std"]) == ("gspo", "agent", "agent")
    assert algorithm["agg"] == "turn_mean"
    assert algorithm["minibatches"] == 2  # 8 tasks, 2 attempts, 2 rounds: 32 turns of an agent
    assert algorithm["correction"] == "token_tis"
    assert len(config["workflow"]["asks"]) == 2


def test_a_chain_of_version_2_keeps_the_words_of_its_templates(folder):
    team = v2(folder, "chain", templates=True)["team"]
    assert team["generator"]["system"] == "Think, then write \\boxed{}."
    assert team["verifier"]["system"] == (
        "Problem: [question]\n\nSolution: [generator]\n\nDo not solve it."
    )
    assert team["refiner"]["system"].endswith("Remarks: [verifier]\n\nWrite it anew.")


def tree_v2(folder: Path, search: str) -> dict:
    """What a script of MARS2 becomes whose search is described so."""
    tree = f'\\"max_num_nodes\\": 8, \\"eval_max_num_nodes\\": 1, \\"algo\\": {{{search}}},'
    script = script_v2("ab_mcts", options="--processor_func_path x/ab_mcts_processor.py")
    script = script.replace('\\"task\\": \\"math\\",', tree)
    script = script.replace("n_samples_per_prompt 2", "n_samples_per_prompt 1")
    (folder / "run.sh").write_text(script)
    return imported(folder / "run.sh")


def test_mars2_of_version_2_is_one_tree_a_task(folder):
    config = tree_v2(folder, '\\"class_name\\": \\"AsyncABMCTSA\\", \\"params\\": {}')
    assert config["workflow"] == {
        "name": "ab_mcts", "nodes": 8, "evaluation_nodes": 1, "posterior": "gaussian",
    }  # fmt: skip
    assert [agent["role"] for agent in config["team"].values()] == ["solver", "solver"]
    assert config["environment"]["name"] == "code"
    assert config["rollout"]["group_size"] == 1
    algorithm = config["algorithm"]
    assert (algorithm["name"], algorithm["mean"], algorithm["count"]) == ("gspo", "agent", "turn")
    assert algorithm["minibatches"] == 2  # 8 tasks, about 4 answers of an agent: 32 of 16


@pytest.mark.parametrize(
    ("search", "reason"),
    [
        ('\\"class_name\\": \\"ABMCTSM\\"', "ABMCTSM: the search is one of"),
        ('\\"params\\": {\\"model_selection_strategy\\": \\"stack\\"}', "stack: agents are chosen"),
        ('\\"params\\": {\\"prior_config\\": {}}', "prior_config: priors are those of AB-MCTS-A"),
    ],
)
def test_another_search_than_ab_mcts_a_is_refused(folder, search, reason):
    with pytest.raises(ConfigError):
        tree_v2(folder, search)
    _, report = import_files([folder / "run.sh"], [], source=None, partial=True)
    assert reason in str(report)


def test_without_a_processor_a_chain_is_paid_for_its_own_answers(folder):
    assert v2(folder, "chain")["rewards"]["own_answers"] == {}


def test_the_executor_of_mathchat_is_paid_for_what_its_program_printed(folder):
    config = v2(folder, "mathchat", tools=PYTHON_TOOL)
    assert config["workflow"]["name"] == "mathchat"
    assert config["rewards"]["own_answers"] == {"printed": ["executor"]}


@pytest.mark.parametrize(
    ("tools", "used"),
    [(SEARCH_TOOL, {"name": "search", "topk": 3, "url": "http://h/retrieve"}),
     (PYTHON_TOOL, {"name": "python", "wall_s": 30.0, "url": "http://h/run_code"})],
)  # fmt: skip
def test_the_tool_workflow_is_one_agent_with_tools(folder, tools, used):
    config = v2(folder, "tool", tools=tools)
    assert config["workflow"] == {"name": "single"}
    assert config["environment"]["name"] == "math"
    assert config["team"]["solver"]["tools"] == {"use": [used], "format": "native", "max_calls": 1}


def test_the_experience_workflow_without_tools_is_a_solver_and_a_memory_of_one_policy(folder):
    config = v2(folder, "experience", tools=SEARCH_TOOL)
    assert config["workflow"] == {"name": "experience", "rounds": 2}
    assert {name: agent["policy"] for name, agent in config["team"].items()} == {
        "solver": "solver",
        "memory": "solver",
    }
    assert [*config["policies"]] == ["solver"]
    assert not any("tools" in agent for agent in config["team"].values())
    assert "rewards" not in config or "own_answers" not in config["rewards"]


def test_of_two_agents_the_first_is_the_solver_with_tools_and_the_second_the_memory(folder):
    config = v2(folder, "experience_with_tool", tools=PYTHON_TOOL)
    assert [*config["policies"]] == [*config["team"]] == ["solver", "memory"]
    used = [{"name": "python", "wall_s": 30.0, "url": "http://h/run_code"}]
    assert config["team"]["solver"]["tools"]["use"] == used
    assert "tools" not in config["team"]["memory"]


# --- version 1 ---


def test_one_generator_in_a_chain_is_the_experience_workflow(folder):
    config = imported(script_v1(folder, "ma_exp_with_code"))
    assert config["workflow"] == {"name": "experience", "rounds": 3, "memory_reward": "delta"}
    assert config["team"]["solver"]["tools"]["max_calls"] == 2
    assert "boxed" in config["team"]["solver"]["system"]
    assert "boxed" not in config["team"]["memory"]["system"]
    assert config["algorithm"]["minibatches"] == 5  # 8 tasks, 4 attempts, 5 turns, of 32 there


def test_a_script_takes_the_yaml_that_it_names_and_what_that_names(folder):
    config = imported(script_v1(folder, "ma_mad", options="add_prompt_suffix=null"))
    assert config["algorithm"]["name"] == "ppo"
    assert config["algorithm"]["clip_low"] == 0.3  # default.yaml differs from ours here
    assert (config["algorithm"]["lam"], config["algorithm"]["clip_value"]) == (0.95, 0.2)
    assert config["evaluation"]["greedy"] is True
    assert config["trainer"]["epochs"] == 1
    assert config["rollout"]["max_tasks"] == 30
    assert config["workflow"]["asks"] == [
        "Think, then write \\boxed{}.",
        "The others say:\n[responses_str]\n\nAnswer once more:",
    ]
    assert config["policies"]["debater0"]["base"] == EDIT


def test_of_a_page_the_first_block_with_a_command_counts(folder):
    command = "python -m marti.cli.commands.train --config-name ma_mad \\\n default_agent.seed="
    page = "# A page\n\n`marti.cli.commands.train` trains:\n\n```bash\npip install it\n```\n\n"
    page += f"```bash\n# Debate\n{command}5 \\\n workflow_args.num_rounds=4\n\n{command}6\n```\n"
    (folder / "README.md").write_text(page)
    config = imported(folder / "README.md")
    assert (config["trainer"]["seed"], config["workflow"]["rounds"]) == (5, 4)


def test_what_is_said_of_the_default_agent_beats_what_is_said_on_top(folder):
    file = script_v1(folder, "ma_mad", options="generate_max_len=7")
    assert imported(file)["team"]["debater0"]["sampling"]["max_tokens"] == 2048


def test_a_suffix_of_questions_becomes_part_of_the_prompts(folder):
    system = imported(script_v1(folder, "ma_mad"))["team"]["debater0"]["system"]
    assert system == "Write \\boxed{}."


@pytest.mark.parametrize(
    ("model", "policy"),
    [
        ("gemini-9", {"engine": {"name": "google", "model": "gemini-9", "vertex": True}}),
        ("gpt-9", {"engine": {"name": "openai", "key_env": "OPENAI_API_KEY", "model": "gpt-9"}}),
        ("claude-9", {"engine": {"name": "anthropic", "model": "claude-9"}}),
        ("models/coach", {"base": "models/coach"}),
    ],
)
def test_a_coach_becomes_a_frozen_policy_and_a_reward(folder, model, policy, monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "k")
    options = f"workflow_args.coach_model={model} workflow_args.use_vertex_ai=true"
    config = imported(script_v1(folder, "mathchat_with_coach", options=options))
    replies = config["policies"]["coach"].pop("replies")
    assert config["policies"]["coach"] == policy
    assert replies == {"temperature": 0.0, "max_tokens": 65536}
    coach = config["rewards"]["coach"]
    assert (coach["w_process"], coach["w_outcome"], coach["scale"]) == (1.0, 0.0, 10)
    assert coach["view"]["ground_truth_roles"] == ["verifier"]
    assert config["algorithm"]["name"] == "reinforce_pp"
    assert config["algorithm"]["kl_in"] == "reward"
    assert config["team"]["executor"]["tools"]["max_calls"] == 1
    assert config["evaluation"]["samples"] == 2  # engines
    assert "optimizer" not in config["policies"]["coach"]


def test_a_coachs_template_becomes_its_rubric_and_its_score_is_paid_as_there(folder):
    options = "workflow_args.coach_model=models/coach"
    coach = imported(script_v1(folder, "mathchat_with_coach", options=options))["rewards"]["coach"]
    assert coach["rubric"] == {
        "rules": 'Judge the agent to judge in the block "task".\n'
        "(the lines that are asked for last)",
        "replaces": ["rules", "blame"],
    }
    assert coach["answers"] == {"structured": False}
    assert coach["view"]["team"] == {
        "solver": "Problem Solver", "executor": "Code Executor", "verifier": "Verifier",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "paid"), [("mathchat_with_coach", 1.0), ("tables", 10.0)])
def test_the_coachs_score_is_paid_as_the_processor_there_pays_it(folder, name, paid):
    """That of MathChat divides it by 10, that of DSBench does not."""
    options = "workflow_args.coach_model=models/coach tools_config.tools.code_interpreter.base_url=http://h"
    config = imported(script_v1(folder, name, options=options))
    assert config["rewards"]["coach"]["w_process"] == paid


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("Judge {agent_mood}.", "names {agent_mood}, which the reward coach does not show"),
        ("Judge {agent_role!r}.", "names {agent_role}, which"),
        ("Judge { this.", "it is no template"),
    ],
)
def test_a_coachs_template_that_cannot_be_kept_is_refused(template, told):
    values = COACHED | {"workflow_args.coach_prompt_template": template}
    found = translate(values, FRAMEWORKS["marti_v1"])
    [line] = [line for line in found.refused_lines if "template" in line.key]
    assert told in line.said
    assert "rubric" not in found.config["rewards"]["coach"]


def test_a_long_template_is_written_line_by_line(folder):
    options = "workflow_args.coach_model=models/coach"
    text, _ = import_files([script_v1(folder, "mathchat_with_coach", options=options)], [],
                           source=None, partial=True)  # fmt: skip
    start = text.index("      rules: |-\n")
    assert text[start:].splitlines()[1:3] == [
        '        Judge the agent to judge in the block "task".',
        "        (the lines that are asked for last)",
    ]


def test_dsbench_is_the_team_of_data_science(folder):
    options = "tools_config.tools.code_interpreter.base_url=http://h:$PORT/run_code"
    config = imported(script_v1(folder, "tables", options=options))
    assert config["workflow"] == {"name": "data_science"}
    assert list(config["team"]) == ["engineer", "modeler", "analyst"]
    assert {a["tools"]["max_calls"] for a in config["team"].values()} == {3}
    assert config["environment"]["wall_s"] == 30.0
    strata = imported(script_v1(folder, "tables", options=f"{options} stratified_sampling=true"))
    assert strata["rollout"]["stratify"] == "proportional"
    assert strata["environment"]["by_type"] is True
    assert "url" not in config["environment"]  # the script finds the port: bubblewrap it is


def test_braces_of_a_template_stay_and_its_one_line_does_not_vanish(folder):
    config = imported(script_v1(folder, "tool_search", options="verify_task=search_r1"))
    said = 'Call search with {"query": "..."}, then <answer>...</answer>. Question: [question]'
    assert config["team"]["solver"]["system"].startswith(said)
    assert config["environment"]["url"] == "http://127.0.0.1:8000"
    assert config["team"]["solver"]["tools"]["max_calls"] == 2


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("$question\n\nSay \\boxed{x}.", "Say \\boxed{x}."),
        ("Pay $5 for {word}.", "Pay $5 for {word}."),
        ("{{a}} {word} {question}", "{a} {word} [question]"),
        (["One.", "Of ${generator}."], "One.\nOf [generator]."),
        (None, ""),
    ],
)
def test_only_what_the_workflow_says_itself_leaves_a_template(template, said):
    assert read_template(template) == said


def test_a_server_of_rewards_keeps_its_address_and_a_file_of_python_is_refused():
    url = "http://h:5000/get_reward"
    config = translate(FIRST_RUN | {"remote_rm_url": [url]}, FRAMEWORKS["marti_v1"]).config
    assert config["rewards"] == {"remote_model": {"url": url, "scores": "actions"}}
    for several in (["http://h", "http://i"], "mine.py"):
        made = translate(FIRST_RUN | {"remote_rm_url": several}, FRAMEWORKS["marti_v1"])
        assert [line.key for line in made.refused_lines] == ["remote_rm_url"]


# --- a judge of reviews ---

WORKFLOWS = "marti/worlds/workflows"
JUDGED = f"workflow_func_path={WORKFLOWS}/judge_workflow.py"


def test_a_judge_of_reviews_is_a_reward_beside_the_rating(folder):
    config = imported(script_v1(folder, "ma_reviews", options=f"{JUDGED} add_think_token=1"))
    assert list(config["team"]) == ["solver"]
    assert "system" not in config["team"]["solver"]
    assert config["policies"]["judge"] == {
        "base": "models/judge", "replies": {"max_tokens": 256, "temperature": 1.0},
    }  # fmt: skip
    environment = config["environment"]
    assert (environment["name"], environment["metric"]) == ("text", "review")
    assert (environment["question"], environment["reference"]) == ("prompt", "answer")
    assert environment["separator"] == "||SCORE||"
    judge = config["rewards"].pop("judge")
    assert config["rewards"] == {"correct": 0.75}
    assert judge["weight"] == 0.25
    assert judge["prompt"] == (
        "Of {task}: {answer} or {reference}? REVIEW_1_BETTER or {REVIEW_2_BETTER}"
    )
    assert judge["score"]["REVIEW_1_BETTER"] == 1.0
    assert judge["score"]["SECOND_BETTER"] == 0.0
    assert (judge["on_error"], judge["answers"]["retries"]) == (0.5, 0)


def test_the_batched_judge_pays_alone_and_has_a_separator_of_its_own(folder):
    path = "marti/worlds/third_party/reviewrl_genrm.py"
    options = f"workflow_func_path={path} processor_func_path={path} reward_alloc.name=margin"
    config = imported(script_v1(folder, "ma_reviews", options=options))
    assert list(config["rewards"]) == ["judge"]
    assert config["rewards"]["judge"]["weight"] == 1.0
    assert config["environment"]["separator"] == "||DIV REVIEW SCORE||"


def test_a_judge_of_version_2_keeps_its_columns_and_its_parser(folder):
    args = '\\"score_parser\\": \\"regex\\", \\"judge_weight\\": 1.0,'
    script = script_v2("judge", options='--verify_task="review_group"')
    script = script.replace('\\"task\\": \\"math\\",', args)
    (folder / "run.sh").write_text(script.replace('label_key="answer"', 'label_key="cleaned"'))
    config = imported(folder / "run.sh")
    assert config["environment"]["reference"] == "cleaned"
    assert "metric" not in config["environment"]
    judge = config["rewards"]["judge"]
    assert (judge["scale"], judge["on_error"]) == ([0, 10], 0.0)
    assert judge["prompt"].startswith("Judge an answer to a problem.")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (f"{JUDGED} verify_task=math", "beside a judge the rule is that of review_group"),
        (f'{JUDGED} workflow_args.judge_template="Is it {{score}}?"', "it shows {score}"),
    ],
)
def test_a_judge_that_cannot_be_kept_is_refused(folder, options, reason):
    file = script_v1(folder, "ma_reviews", options=options)
    with pytest.raises(ConfigError):
        imported(file)
    _, report = import_files([file], [], source=None, partial=True)
    assert reason in str(report)


def test_a_workflow_whose_reward_is_empty_is_one_line():
    values = FIRST_RUN | REVIEWS | {"workflow_func_path": "third_party/prover_verifier.py"}
    lines = translate(values, FRAMEWORKS["marti_v1"]).refused_lines
    assert {line.key: line.said for line in lines}["workflow_func_path"] == (
        "its reward function pays nothing there; name judge_workflow.py"
    )


def test_an_unknown_algorithm_is_left_open():
    found = translate(FIRST_RUN | {"advantage_estimator": "ctde"}, FRAMEWORKS["marti_v1"])
    algorithm = found.config["algorithm"]
    assert (algorithm["name"], algorithm["kl"], algorithm["clip_low"]) == (EDIT, 0.01, 0.2)
    assert "lam" not in algorithm
    assert found.edits["algorithm.name"] == "an algorithm, ctde there"
    assert [line.key for line in found.refused_lines] == ["advantage_estimator"]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("margin", ("margin", 0.5, 0.0)), ("conditional_quality", ("quality", 0.5, 0.0)),
     ("margin_with_outcome", ("margin", 0.5, 0.5))],
)  # fmt: skip
def test_shapes_of_rewards_are_those_of_own_answers(name, shape):
    config = translate(FIRST_DEBATE | {"reward_alloc.name": name}, FRAMEWORKS["marti_v1"]).config
    own = config["rewards"]["own_answers"]
    assert (own["shape"], own["alpha"], own["final"]) == shape


def test_a_processor_of_ones_own_is_refused():
    found = translate(COACHED | {"processor_func_path": "mine.py"}, FRAMEWORKS["marti_v1"])
    assert [line.key for line in found.refused_lines] == ["processor_func_path"]


# --- bad input ---


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("ma_mda", "", "config-name: there is no marti/cli/configs/ma_mda.yaml above"),
        ("$config", "", "config-name: the script computes it"),
        (
            "ma_mad",
            "workflow_args.num_round=3",
            "workflow_args.num_round: no key of MARTI 1; neare",
        ),
        (
            "ma_mad",
            "default_agent.n_sample=3",
            "n_sample: no key of MARTI 1; nearest: max_samples",
        ),
        ("ma_mad", "default_agent.bf16=perhaps", "bf16: not true or false"),
        (
            "ma_mad",
            "default_agent.rollout_batch_size=$(nproc)",
            "the script computes rollout_batch_size; write",
        ),
        ("mathchat_with_coach", "workflow_args.refiner_max_turns=2", "refiner_max_turns"),
        ("ma_mad", "default_agent.train_batch_size=12", "train_batch_size"),
    ],
)
def test_bad_input_is_one_line_that_names_the_key(folder, name, options, said):
    file = script_v1(folder, name.strip("$"), options=options)
    file.write_text(file.read_text().replace('"config"', '"$config"'))
    with pytest.raises(ConfigError) as error:
        imported(file)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_name_one_another_end(folder):
    configs = folder / "marti" / "cli" / "configs"
    for name, other in (("one", "two"), ("two", "three"), ("three", "two")):
        (configs / f"{name}.yaml").write_text(f"defaults: [{other}]\nagent_workflow: base")
    with pytest.raises(ConfigError, match="more than 20 files name one another"):
        imported(configs / "one.yaml")
    (configs / "one.yaml").write_text("defaults: [gone]\nagent_workflow: base")
    with pytest.raises(ConfigError, match=r"defaults: there is no .*gone\.yaml; give that"):
        imported(configs / "one.yaml")


def test_a_script_whose_command_a_shell_must_find_is_refused(folder):
    file = script_v1(folder, "ma_mad")
    file.write_text(f"for n in 1 2; do\n{file.read_text()}\ndone")
    with pytest.raises(ConfigError, match="its training command stands in a loop"):
        imported(file)


# --- training ---

SMALL = ["trainer.steps=2", "rollout.groups=2", "rollout.group_size=2", "evaluation.tasks=1",
         "evaluation.every=0", "learner.dtype=float32", "algorithm.minibatches=1"]  # fmt: skip


def train(file: Path, model: Path, *more: str) -> None:
    """Import a file, make what it says small, check it, and train two steps."""
    text, _ = import_files([file], [], source=None, partial=False)
    config = yaml.safe_load(text)
    overrides = [*SMALL, *more]
    for name, agent in config["team"].items():
        overrides += [f"team.{name}.sampling.max_tokens=6"]
        if "tools" in agent and agent["tools"]["format"] == "code":
            tool = agent["tools"]["use"][0]["name"]
            overrides += [f"team.{name}.tools.use=[{tool}]"]
    for name, policy in config["policies"].items():
        overrides += [f"policies.{name}.base={model}"]
        if "warmup_steps" in policy.get("optimizer", {}):
            overrides += [f"policies.{name}.optimizer.warmup_steps=1"]
    Path("out.yaml").write_text(text)
    assert command("check", "out.yaml", *overrides) == 0
    assert command("train", "out.yaml", *overrides, "--output", "run") == 0
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["steps"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("workflow", ["debate", "chain", "single_math"])
def test_what_is_imported_of_version_2_trains(folder, workflow, model_folder):
    file = folder / "run.sh"
    file.write_text(script_v2(workflow, templates=workflow == "chain"))
    train(file, model_folder, "rewards.overlong.longest=6", "rewards.overlong.buffer=2",
          "evaluation.sampling.max_tokens=6")  # fmt: skip


@pytest.mark.slow
def test_a_judge_of_reviews_trains(folder, model_folder):
    rows = [json.dumps({"prompt": f"Paper {n}", "answer": "Good.||SCORE||6"}) for n in range(20)]
    for name in ("train.jsonl", "test.json"):
        (folder / "rows" / name).write_text("\n".join(rows))
    train(script_v1(folder, "ma_reviews", options=JUDGED), model_folder,
          "policies.judge.replies.max_tokens=6")  # fmt: skip


@pytest.mark.slow
def test_what_is_imported_of_version_1_trains(folder, model_folder):
    train(script_v1(folder, "ma_mad"), model_folder)


@pytest.mark.slow
def test_what_is_imported_with_a_coach_trains(folder, model_folder):
    options = "workflow_args.coach_model=models/coach"
    train(script_v1(folder, "mathchat_with_coach", options=options), model_folder,
          "policies.coach.replies.max_tokens=4", "rewards.coach.w_outcome=0.5",
          "rewards.coach.on_error=outcome_only", "rewards.coach.answers.max_error_rate=1",
          "rewards.coach.answers.retries=0", "rewards.coach.answers.structured=false")  # fmt: skip
