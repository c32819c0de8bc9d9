"""Files in the form of MARTI's own: scripts of version 2, and a repository of version 1."""

from __future__ import annotations

import json
from pathlib import Path

ROLES = {
    "debate": ["generator", "generator"],
    "chain": ["generator", "verifier", "refiner"],
    "single_math": ["generator"],
    "tool": ["generator"],
    "ab_mcts": ["generator", "generator"],
    "judge": ["generator", "judge"],
    "mathchat": ["agent_problem_solver", "agent_code_executor", "agent_verifier"],
    "experience": ["generator"],
    "experience_with_tool": ["generator", "generator"],
}
ALONE = ("single_math",)  # their files have no underscore before `workflow`
TEMPLATES = {
    "generator": r"[\"\\$question\\n\\nThink, then write \\\\boxed{}.\\n\"]",
    "verifier": r"[\"Problem: \\$question\\n\\nSolution: \\$generator\\n\\nDo not solve it.\"]",
    "refiner": r"[\"Draft: \\$generator\\n\\nRemarks: \\$verifier\\n\\nWrite it anew.\"]",
}


def script_v2(workflow: str, *, options: str = "", templates: bool = False, tools: str = "") -> str:
    """A script of version 2, with agents as JSON in variables, as its examples have them."""
    agents = ""
    names = []
    for number, role in enumerate(ROLES[workflow]):
        tuned = "true" if role != "judge" else "false"
        template = f', \\"chat_template\\": {TEMPLATES[role]}' if templates else ""
        agents += f'''
AGENT{number}="{{
    \\"{number}\\": {{
        \\"role\\": \\"{role}\\",
        \\"pretrain\\": \\"${{PRETRAIN}}\\",
        \\"save_path\\": \\"${{ROOT_DIR}}/outputs/${{EXP}}-agent{number}\\",
        \\"is_tuning\\": {tuned}{template}
    }}
}}"
'''
        names.append(f'"$AGENT{number}"')
    path = f"openrlhf/agent_workflows/{workflow}{'' if workflow in ALONE else '_'}workflow.py"
    return f"""#!/bin/bash
# set -x
ROOT_DIR="."
MODEL_DIR="models"
SHORT_NAME=${{1:-"Small-1B"}}
PRETRAIN="${{MODEL_DIR}}/${{SHORT_NAME}}"
GENERATE_MAX_LEN=4096
OVERLONG_BUFFER_LEN=1024
ADVANTAGE="group_norm"
PROMPT_DATA="${{PROMPT_DATA:-json@${{ROOT_DIR}}/rows}}"
EXP="$(date +%m%d)-{workflow}"
export MASTER_PORT=$(shuf -i 10000-65535 -n 1)
DEFAULT_AGENT="{{
    \\"is_reasoning_model\\": false
}}"
WORKFLOW_ARGS="{{
    \\"task\\": \\"math\\",
    \\"num_rounds\\": 2,
    \\"max_others\\": 5,
    \\"contain_self\\": true,
    \\"shuffle_responses\\": true
}}"
TOOLS_ARGS="{{
    \\"max_turns\\": 2,
    \\"num_workers\\": 128,
    \\"tools\\": {{{tools}}}
}}"
REWARD_ALLOC_ARGS="{{
    \\"name\\": \\"margin\\", \\"alpha\\": 0.5, \\"beta\\": 0.5, \\"use_ttrl\\": false
}}"
{agents}
python3 -m openrlhf.cli.multi_agent_train_ppo_ray \\
    --default_agent "$DEFAULT_AGENT" \\
    --agents {" ".join(names)} \\
    --workflow_args "$WORKFLOW_ARGS" \\
    --tools_config "$TOOLS_ARGS" \\
    --reward_alloc "$REWARD_ALLOC_ARGS" \\
    --workflow_func_path {path} \\
    {options} \\
    --parallel_loading --ref_num_nodes 1 --actor_num_gpus_per_node 1 --vllm_num_engines 1 \\
    --train_batch_size 16 --rollout_batch_size 8 --n_samples_per_prompt 2 --max_epochs 1 \\
    --prompt_max_len 4096 --truncate_prompt \\
    --generate_max_len ${{GENERATE_MAX_LEN}} --eval_generate_max_len ${{GENERATE_MAX_LEN}} \\
    --advantage_estimator ${{ADVANTAGE}} --policy_loss_type gspo --zero_stage 3 --bf16 \\
    --init_kl_coef 1e-3 --gamma 1.0 --use_kl_loss --kl_estimator k3 --normalize_reward \\
    --overlong_buffer_len ${{OVERLONG_BUFFER_LEN}} --dynamic_filtering_reward_range 0 1 \\
    --enable_vllm_is_correction --vllm_is_truncated_threshold 2 --num_episodes 2 \\
    --max_samples 100000 --prompt_data ${{PROMPT_DATA}} --prompt_split "train" \\
    --eval_dataset ${{PROMPT_DATA}} --eval_split "test" --eval_temperature 1.0 \\
    --eval_n_samples_per_prompt 1 --input_key="prompt" --label_key="answer" --load_checkpoint \\
    --dynamic_filtering_for_agents 2>&1 | tee "log"
    # --use_wandb "${{WANDB_KEY}}"
"""


DEFAULT = {
    "agent_workflow": "base",
    "workflow_version": "old",
    "shared_agents": False,
    "reward_alloc": {"name": None, "alpha": 0.5, "beta": 0.5, "use_ttrl": False},
    "credit_model": None,
    "credit_beta": 0.05,
    "mask_truncated_completions": False,
    "add_prompt_suffix": "\n\nWrite \\boxed{}.",
    "input_key": "input",
    "label_key": "label",
    "verify_task": "math",
    "default_agent": {
        "pg_strategy": "SPREAD",
        "role": "base",
        "is_tuning": True,
        "enable_thinking": False,
        "vllm_num_engines": 4,
        "lambd": 0.95,
        "value_clip": 0.2,
        "eps_clip": 0.3,
        "eval_temperature": 0.0,
        "generate_max_len": 1024,
        "advantage_estimator": "gae",
    },
}
DEBATE = {
    "defaults": ["default", "_self_"],
    "agent_workflow": "multi-agents-debate",
    "workflow_func_path": None,
    "workflow_args": {"template_id": 1, "num_rounds": 2, "max_others": 5, "contain_self": True,
                      "shuffle_responses": True},
    "tools_config": {"num_workers": 128, "rate_limit": 8},
    "chat_template": ["$question\n\nThink, then write \\boxed{}.",
                      "The others say:\n$responses_str\n\nAnswer once more:\n$question"],
    "agents": [{f"generator_{n}": {"role": "generator"}} for n in (1, 2)],
}  # fmt: skip
COACH = {
    "defaults": ["default", "_self_"],
    "agent_workflow": "chain-of-agents",
    "async_workflow": True,
    "workflow_func_path": "marti/worlds/workflows/mathchat_workflow_with_coach.py",
    "processor_func_path": "marti/worlds/workflows/mathchat_processor.py",
    "workflow_args": {
        "generator_max_turns": 1, "coder_max_turns": 2, "refiner_max_turns": 1,
        "enable_ground_truth_eval": True, "reward_process_weight": 1.0,
        "reward_outcome_weight": 0.0, "coach_model": "gemini-9", "coach_type": "simple",
        "use_vertex_ai": False, "vertex_project": None, "vertex_location": "global",
        "coach_max_output_tokens": None, "coach_thinking_budget": None,
        "use_weave": True, "weave_project": "w",
        "coach_prompt_template": "Judge {agent_name} in {problem}.\nPROCESS_SCORE: [0 to 10]",
    },
    "tools_config": {"num_workers": 16, "tools": {"code_interpreter": {
        "type": "sandbox_fusion", "rate_limit": 30, "timeout": 30,
        "base_url": "http://127.0.0.1:8080/run_code", "schema_path": "code.json"}}},
    "agents": [{role: {"role": role, "is_tuning": True, "is_reasoning_model": True}}
               for role in ("agent_problem_solver", "agent_code_executor", "agent_verifier")],
    "input_key": "prompt",
    "label_key": "answer",
    "default_agent": {"pretrain": None, "advantage_estimator": "reinforce_plus_plus",
                      "eval_temperature": 0.6, "training_mode": "rl", "vllm_num_engines": 2},
    "use_weave": False,
}  # fmt: skip
TABLES = COACH | {
    "workflow_func_path": "marti/worlds/workflows/dsbench_workflow.py",
    "processor_func_path": "marti/worlds/workflows/dsbench_processor.py",
    "workflow_args": {"data_engineer_max_turns": 4, "modeler_max_turns": 4,
                      "analyst_max_turns": 4, "coach_model": "models/coach"},
    "agents": [{role: {"role": role}}
               for role in ("agent_data_engineer", "agent_modeler", "agent_analyst")],
    "verify_task": "dsbench",
}  # fmt: skip
SEARCH = {
    "defaults": ["default", "_self_"],
    "agent_workflow": "tool",
    "default_agent": {"eos_token": "<|im_end|>"},
    "chat_template": "Call search with {{\"query\": \"...\"}}, then <answer>...</answer>. "
                     "Question: {question}",
    "tools_config": {"max_turns": 3, "tools": {"search": {
        "type": "search_r1", "topk": 2, "timeout": 20,
        "base_url": "http://127.0.0.1:8000/retrieval"}}},
}  # fmt: skip
REVIEWS = {
    "defaults": ["default", "_self_"],
    "agent_workflow": "chain-of-agents",
    "workflow_args": {"num_rounds": 1, "score_parser": "keywords", "judge_weight": 0.25,
                      "label_separator": "||SCORE||",
                      "judge_template": "<|im_start|>user\nOf {prompt}: {generated_answer} or "
                                        "{label}? REVIEW_1_BETTER or {{REVIEW_2_BETTER}}\n"
                                        "<|im_end|>\n"},
    "tools_config": {"max_turns": 2, "num_workers": 16, "enable_metrics": True},
    "chat_template": None,
    "verify_task": "review_group",
    "agents": [{"generator": {"role": "generator", "is_tuning": True, "is_reasoning_model": True}},
               {"judge": {"role": "judge", "is_tuning": False, "pretrain": "models/judge",
                          "generate_max_len": 256, "vllm_num_engines": 2}}],
}  # fmt: skip
EXPERIENCE = {
    "defaults": ["default", "_self_"],
    "agent_workflow": "chain-of-agents",
    "workflow_func_path": None,
    "workflow_args": {"num_rounds": 3, "memory_reward_style": "delta", "log_save_path": None,
                      "max_length_mem": 4096, "max_length_agent": 8196},
    "chat_template": None,
    "agents": [{"generator": {"role": "generator", "is_tuning": True}}],
    "tools_config": {"max_turns": 3, "tools": {"code": {
        "type": "sandbox_fusion", "timeout": 30, "base_url": "http://127.0.0.1:8080/run_code"}}},
}  # fmt: skip
COMMAND = """#!/bin/bash
set -x
MODEL_DIR=${{1}}
ROOT_DIR=$(pwd)
ENV_JSON=$(cat <<EOF
{{"working_dir": "${{ROOT_DIR}}", "pip": ["hydra-core", "mcp[cli]"]}}
EOF
)
if [ -z "$MODEL_DIR" ]; then
    echo "Error: MODEL_DIR is required"
    exit 1
fi
stop_sandbox() {{
    local pid=$(cat file)
    kill -- -"$pid" 2>/dev/null || true
}}
ray job submit --address="http://localhost:8265" --runtime-env-json="${{ENV_JSON}}" \\
    -- python -m marti.cli.commands.train --config-name "{name}" \\
    default_agent.pretrain="${{MODEL_DIR}}" \\
    `# "Quoted" remarks, with (brackets) and a > sign` \\
    default_agent.n_samples_per_prompt=4 \\
    default_agent.rollout_batch_size=8 \\
    default_agent.train_batch_size=32 \\
    default_agent.prompt_max_len=24576 \\
    default_agent.generate_max_len=2048 \\
    default_agent.max_samples=30 \\
    prompt_data="json@${{ROOT_DIR}}/rows/train.jsonl" \\
    extra_eval_tasks=["test"] extra_eval_dir="${{ROOT_DIR}}/rows" \\
    input_key="prompt" label_key="answer" {options} \\
    use_wandb="${{WANDB_API_KEY:-}}" 2>&1 | tee "log"
"""


def write_repository(folder: Path) -> None:
    """Write a repository of version 1: its configs, and a folder for scripts."""
    configs = folder / "marti" / "cli" / "configs"
    configs.mkdir(parents=True)
    (folder / "scripts").mkdir()
    files = {"default": DEFAULT, "ma_mad": DEBATE, "mathchat_with_coach": COACH, "tables": TABLES,
             "tool_search": SEARCH, "ma_reviews": REVIEWS,
             "ma_exp_with_code": EXPERIENCE}  # fmt: skip
    for name, values in files.items():
        (configs / f"{name}.yaml").write_text(json.dumps(values))


def script_v1(folder: Path, name: str, *, options: str = "") -> Path:
    """Write a script of version 1 that names one of its configs."""
    path = folder / "scripts" / f"run_{name}.sh"
    path.write_text(COMMAND.format(name=name, options=options))
    return path
