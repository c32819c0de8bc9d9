"""Names that users of other frameworks look for, beside ours: what docs/coming-from.md is made of.

A counterpart is an import path, a command, or a config key; tests look each of them up. One that
begins with "not here" says why.
"""

from __future__ import annotations

Names = list[tuple[str, list[str], str]]  # theirs, ours, a remark

MRLM: Names = [
    (
        "mrlm train -c FILE -o DIR --resume",
        ["rolecall train FILE --output DIR --resume"],
        "FILE after `rolecall import`; a second start continues even without --resume",
    ),
    ("mrlm serve -e math,code -p PORT", ["rolecall serve environments math,code --port PORT"], ""),
    (
        "mrlm eval",
        ["rolecall eval RUN", "rolecall eval --model M --environment E -n N"],
        "avg@n and pass@k; `--json FILE`; the second needs no config",
    ),
    (
        "mrlm collect",
        ["rolecall collect --model M --environment E -n N --least R -o FILE"],
        "keeps turns with a reward of at least R as rows for `sft`; all episodes of a run lie in "
        "its folder as Parquet",
    ),
    ("mrlm info", ["rolecall info"], ""),
    (
        "Message, MessageRole",
        ["rolecall.core.types:Message"],
        "role is a text: system, user, assistant, tool",
    ),
    (
        "Observation",
        ["rolecall.core.interfaces.environment:Observation"],
        "text, key, reward, team, done, info",
    ),
    (
        "Reward",
        ["rolecall.core.types:Turn", "rolecall.core.types:Episode"],
        "numbers in `Turn.rewards` by name and in `Episode.rewards` by agent",
    ),
    (
        "RolloutBatch, RolloutBuffer",
        ["rolecall.rollout.episodes:Rollout", "rolecall.core.types:Batch"],
        "what a step collected; what it is packed into",
    ),
    (
        "PreferenceDataset",
        ["rolecall.demonstrations.offline_data:preferences", "rollout.data"],
        "JSON Lines or Parquet: prompt, chosen, rejected",
    ),
    (
        "TrajectoryDataset",
        ["rolecall.storage.episode_io:write_parquet"],
        "every turn of a run, for DuckDB or pandas; `rolecall collect` makes rows for `sft` of "
        "them, with weights by `--weigh reward`",
    ),
    (
        "SimulatedEnvironment",
        ["rolecall.core.interfaces.environment:World"],
        "step(agent, action) and score(episode), async or plain; without score where steps pay",
    ),
    (
        "a model, a tokenizer and environments as objects",
        ["rolecall.runs.api:train"],
        "`rolecall.train` takes `(model, tokenizer)` as the base of a policy, an environment that "
        "has been made, or a list of them, which are mixed",
    ),
    ("EnvironmentMode", ["team.NAME.trainable"], "what is trained is said of an agent"),
    (
        "LLMEnvironment",
        ["rolecall.environments.llm.environment:LlmEnvironment"],
        "environment: llm, whose LLM is a frozen policy of any engine",
    ),
    (
        "the code environment",
        ["rolecall.environments.code.environment:CodeEnvironment"],
        "in bubblewrap, with hidden tests; its pay as there is the reward `mrlm_code`",
    ),
    (
        "the math environment",
        ["rolecall.environments.math.environment:MathEnvironment"],
        "answers are compared as values; its pay as there is the reward `mrlm_math`",
    ),
    (
        "the debate environment",
        ["rolecall.environments.debate:DebateEnvironment", "rolecall.workflows.debate:debate"],
        "two sides and a judge",
    ),
    (
        "the tool environment",
        ["team.NAME.tools"],
        "any agent may have tools, in any environment; its pay as there is the reward `mrlm_tool`, "
        "without what it paid for each call",
    ),
    (
        "ToolRegistry",
        ["rolecall.tools.functions:tool"],
        "a decorator; agents name their tools, and `tools: default` is the calculator and Python",
    ),
    ("its calculator tool", ["rolecall.tools.calculator:calculator"], ""),
    (
        "its Python tool",
        ["rolecall.tools.python:Python"],
        "in a sandbox; files last for the episode, and variables too with `stateful: true`",
    ),
    (
        "its search tool",
        ["rolecall.tools.search:Search"],
        "an index, a server of your own, or the web with `provider: serper` (also tavily, brave, "
        "searxng)",
    ),
    ("its file tool", ["rolecall.tools.files:Files"], ""),
    (
        "RuleBasedJudge",
        ["rolecall.rewards.mrlm_debate:Debate"],
        "the reward `mrlm_debate`, for comparisons, as it can be farmed; else a judge is an agent",
    ),
    (
        "LLMJudge",
        ["rolecall.rewards.judge:JudgedAnswer"],
        "the reward `judge`; `coach` scores each action",
    ),
    ("PPOTrainer", ["rolecall.algorithms.ppo:Ppo"], "algorithm: ppo"),
    ("GRPOTrainer", ["rolecall.algorithms.grpo:Grpo"], "algorithm: grpo"),
    ("DPOTrainer", ["rolecall.algorithms.dpo:Dpo"], "algorithm: dpo"),
    ("SFTTrainer", ["rolecall.algorithms.sft:Sft", "rollout.data"], "algorithm: sft"),
    ("load_config", ["rolecall.config.load:load"], ""),
    (
        "save_config",
        ["rolecall.storage.config_changes:resolve_config"],
        "a run folder holds config.yaml",
    ),
    (
        "merge_configs",
        ["rolecall.config.load:load"],
        "KEY.SUB=VALUE; what is not named stays as it is",
    ),
    (
        "EnvironmentServer, serve, RemoteEnvironment",
        ["rolecall.environments.remote.environment:RemoteEnvironment"],
        "`rolecall serve environments`; the protocol is MRLM's",
    ),
    (
        "DDP and FSDP set-up, GPU selection",
        ["learner.ranks", "learner.device"],
        "learner.name: replicated or fsdp",
    ),
]
DRMAS: Names = [
    (
        "python3 -m verl.trainer.main_ppo",
        ["rolecall train FILE"],
        "FILE after `rolecall import run.sh`",
    ),
    (
        "examples/drmas_trainer/run_math.sh",
        ["rolecall train drmas_math"],
        "team, models, numbers, data, epochs and evaluations of the script. Its `eval` is "
        "`rolecall eval RUN` with `evaluation.tasks=1000 evaluation.samples=16 evaluation.k=16` "
        "and `environment.test=[math500,aime24,aime25,olympiadbench,data/amc,minerva]`; the "
        "prompts are ours",
    ),
    (
        "examples/drmas_trainer/run_search.sh",
        ["rolecall train drmas_search"],
        "team, numbers, data, epoch, evaluations and last step of the script; not its models "
        "(Qwen2.5-7B; here 3B-Instruct). Evaluations draw one attempt at 210 tasks",
    ),
    (
        "examples/grpo_trainer/run_math.sh, run_search.sh",
        ["rolecall train grpo_math_team", "rolecall train grpo_search_team"],
        "the same teams with one baseline for all agents",
    ),
    (
        "examples/search/searchr1_download.py",
        ["rolecall data searchr1-index"],
        "also joins the parts and unpacks the corpus; `--from FOLDER` takes downloaded ones",
    ),
    (
        "examples/search/retriever/retrieval_launch.sh",
        ["rolecall serve search --index data/searchr1-index"],
        "",
    ),
    ("trainer.val_only=True", ["rolecall eval RUN", "rolecall eval FILE"], ""),
    (
        "agent_system/agent/orchestra/math",
        ["rolecall.workflows.solver_verifier:solver_verifier"],
        "",
    ),
    (
        "agent_system/agent/orchestra/search",
        ["rolecall.workflows.search_team:search_team"],
        "with `last_step: verdict` as published",
    ),
    (
        "algorithm.gigpo.enable_similarity",
        ["rolecall.algorithms.gigpo:Gigpo", "algorithm.similarity"],
        "algorithm: gigpo",
    ),
    ("group_by_agent_id", ["rolecall.algorithms.drmas:DrMas"], "algorithm: drmas"),
    ("DataProto", ["rolecall.core.types:Batch"], "packed, without padding"),
]
MARTI: Names = [
    (
        "openrlhf.cli.multi_agent_train_ppo_ray",
        ["rolecall train FILE"],
        "FILE after `rolecall import run.sh`",
    ),
    ("chain_workflow.py", ["rolecall.workflows.chain:chain"], ""),
    (
        "debate_workflow.py",
        ["rolecall.workflows.majority_vote:majority_vote"],
        "all speak at once, then read the others",
    ),
    ("mathchat_workflow.py", ["rolecall.workflows.mathchat:mathchat"], ""),
    ("mixture-of-agents", ["rolecall.workflows.mixture:mixture"], ""),
    ("single_mathworkflow.py, single_codeworkflow.py", ["rolecall.workflows.single:single"], ""),
    ("tool_workflow.py", ["rolecall.workflows.single:single", "team.NAME.tools"], ""),
    (
        "workflow(prompt, label, agents, tool_manager, ...)",
        ["rolecall.workflows.base:workflow"],
        "`await team.NAME(...)` instead of dictionaries of prompts",
    ),
    (
        "debate_processor.py, chain_processor.py, reward_alloc",
        ["rolecall.rewards.own_answers:OwnAnswers"],
        "each answer for itself, with `margin` or `quality` over the answers before it",
    ),
    ("overlong_buffer_len", ["rolecall.rewards.overlong:Overlong"], "with any algorithm"),
    ("policy_loss_type gspo", ["rolecall.algorithms.gspo:Gspo"], ""),
    (
        "mars2, ab_mcts_workflow.py, ab_mcts_processor.py",
        ["rolecall.workflows.ab_mcts:ab_mcts"],
        "AB-MCTS-A; the gain over parent and siblings is its option `gain`",
    ),
    (
        "judge_workflow.py (ReviewRL)",
        ["rolecall.rewards.judge:JudgedAnswer"],
        "the reward `judge`; `environment: {name: text, metric: review}` compares the rating",
    ),
    (
        "tool_manager",
        ["rolecall.tools.use:ToolUse"],
        "team.NAME.tools says what an agent may call: `default`, the web by `{name: search, "
        "provider: serper}`, tools of MCP servers, functions of your own",
    ),
    (
        "Agent (actor, critic, reference, engines)",
        ["rolecall.agents.agent:Agent", "rolecall.agents.agent:Policy"],
        "who speaks, and the weights it speaks with",
    ),
    ("MultiAgent_PPOTrainer", ["rolecall.training.trainer:Trainer"], ""),
    ("OPENRLHF_ASYNC_NUM_TASKS", ["rollout.concurrency"], ""),
]
MARTI_V1: Names = [
    (
        "marti.cli.commands.train --config-name NAME",
        ["rolecall train FILE"],
        "FILE after `rolecall import run.sh`, which finds NAME.yaml above the script",
    ),
    ("marti.cli.commands.test", ["rolecall eval FILE"], ""),
    ("multi-agents-debate", ["rolecall.workflows.majority_vote:majority_vote"], ""),
    (
        "chat_template, a list by round",
        ["workflow.asks"],
        "of a debate; agents that speak once have one prompt",
    ),
    ("chain-of-agents", ["rolecall.workflows.chain:chain"], ""),
    ("mixture-of-agents", ["rolecall.workflows.mixture:mixture"], ""),
    ("agent_workflow: tool", ["rolecall.workflows.single:single", "team.NAME.tools"], ""),
    (
        "scripts/run_train_mathchat.sh, run_train_dsbench.sh (MAPPA)",
        ["rolecall train mathchat_coach", "rolecall train data_science_coach"],
        "data and numbers of the scripts; prompts and rubric in our words",
    ),
    (
        "mathchat_workflow_with_coach.py (MAPPA)",
        ["rolecall.workflows.mathchat:mathchat", "rolecall.rewards.coach.coach:Coach"],
        "the coach is a frozen policy",
    ),
    (
        "dsbench_workflow.py (MAPPA)",
        ["rolecall.workflows.data_science:data_science", "rolecall.rewards.coach.coach:Coach"],
        "",
    ),
    ("reinforce_plus_plus", ["rolecall.algorithms.reinforce:ReinforcePlusPlus"], ""),
    (
        "experience_workflow.py, experience_with_tool_workflow.py",
        ["rolecall.workflows.experience:experience"],
        "the last attempt is trained too with tools; there it is not",
    ),
    (
        "credit_model",
        [],
        "not here: implicit PRM and saliency; the reward `coach` asks a frozen model for a "
        "score of each action",
    ),
]
OTHERS: dict[str, Names] = {
    "PettingLLMs": [
        ("AT-GRPO", ["rolecall.algorithms.at_grpo:AtGrpo"], "with workflow.candidates above 1"),
        ("turn-wise candidates", ["rolecall.workflows.candidates:play_best"], ""),
        (
            "code environment (coder and tester)",
            ["rolecall.workflows.coder_tester:coder_tester"],
            "",
        ),
        (
            "maths environment (reasoner and tool user)",
            ["rolecall.workflows.mathchat:mathchat"],
            "",
        ),
    ],
    "TRL": [
        (
            "GRPOTrainer",
            ["rolecall.algorithms.grpo:Grpo"],
            "`rolecall import` takes a plain config; `rolecall.train` takes a loaded model",
        ),
        ("DPOTrainer", ["rolecall.algorithms.dpo:Dpo", "rollout.data"], ""),
        ("RLOOTrainer", ["rolecall.algorithms.rloo:Rloo"], ""),
        ("SFTTrainer", ["rolecall.algorithms.sft:Sft", "rollout.data"], "algorithm: sft"),
        ("reward_funcs", ["rewards.NAME"], "an async function of episode and world"),
        ("num_generations", ["rollout.group_size"], ""),
        ("beta", ["algorithm.kl"], "of DPO: algorithm.beta"),
        ("epsilon, epsilon_high", ["algorithm.clip_low", "algorithm.clip_high"], ""),
        ("max_completion_length", ["team.NAME.sampling.max_tokens"], ""),
        ("per_device_train_batch_size", ["learner.tokens_per_batch"], "counted in ids"),
        ("num_iterations", ["algorithm.epochs"], ""),
        ("peft_config", ["policies.NAME.adapter"], ""),
    ],
    "verl": [
        ("data.train_batch_size", ["rollout.groups"], ""),
        ("actor_rollout_ref.rollout.n", ["rollout.group_size"], ""),
        ("algorithm.adv_estimator", ["algorithm.name"], ""),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", ["algorithm.minibatches"], "their number"),
        ("custom_reward_function", ["rewards.NAME"], ""),
        ("reward_model.sandbox_fusion.url", ["environment.url", "rolecall serve sandbox"], ""),
        ("AgentLoop", ["rolecall.workflows.base:workflow"], ""),
        ("parquet rows", ["environment.train"], "read without conversion"),
    ],
    "prime-rl": [
        (
            "orchestrator, trainer, inference",
            ["rolecall.training.trainer:Trainer"],
            "one asyncio process",
        ),
        ("max_async_level", ["trainer.max_staleness"], ""),
        ("rollouts_per_example", ["rollout.group_size"], ""),
        (
            "verifiers environments",
            ["rolecall.workflows.external:external"],
            "`examples/verifiers` trains a team on one; its seats are the agents",
        ),
        ("importance sampling", ["algorithm.correction"], ""),
    ],
}
