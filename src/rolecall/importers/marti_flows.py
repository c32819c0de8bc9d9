"""The workflows of MARTI, and what each is here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import PurePath

from rolecall.importers.keys import Given, Tree
from rolecall.importers.marti_prompts import CODE, CRITIQUE, REVISION, SUMMARY

DEBATE_ARGS = {"num_rounds": "rounds", "max_others": "max_others", "contain_self": "contain_self"}


@dataclass(frozen=True, slots=True)
class Flow:
    """One of their workflows and what it is here."""

    name: str  # ours
    roles: dict[str, str]  # their role -> ours
    options: dict[str, str] = field(default_factory=dict)  # their workflow_args -> ours
    fixed: Tree = field(default_factory=dict)  # options of ours that make it theirs
    environment: str = "math"
    executors: tuple[str, ...] = ()  # our roles whose programs are run
    systems: dict[str, str] = field(default_factory=dict)  # of our roles, without a template; BOXED
    recipe: str = ""  # of ours, whose system prompts stand for templates in their code
    turns: dict[str, str] = field(default_factory=dict)  # our role -> their key of its most turns
    own_pay: bool = False  # an agent earns what its own answer is worth, not the team's
    coached: tuple[str, ...] = ()  # our roles that the coach judges beside the right answer
    judged: bool = False  # its agent `judge` is a reward here
    offers: tuple[str, ...] = ()  # our roles that may call all tools


DEBATE = Flow("majority_vote", {"generator": "debater"}, DEBATE_ARGS)
CHAIN = Flow("chain", {"generator": "generator", "verifier": "verifier", "refiner": "refiner"},
             systems={"verifier": CRITIQUE, "refiner": REVISION}, own_pay=True)  # fmt: skip
MIXTURE = Flow("mixture", {"generator": "proposer", "aggregator": "aggregator"},
               systems={"aggregator": SUMMARY}, own_pay=True)  # fmt: skip
CHATTERS = {
    "agent_problem_solver": "solver",
    "agent_code_executor": "executor",
    "agent_verifier": "verifier",
}
MATHCHAT = Flow(
    "mathchat", CHATTERS, fixed={"show_solver": True}, executors=("executor",),
    recipe="mathchat_coach", own_pay=True,
)  # fmt: skip
COACHED_MATHCHAT = Flow(
    "mathchat", CHATTERS, executors=("executor",), recipe="mathchat_coach",
    turns={"solver": "generator_max_turns", "executor": "coder_max_turns",
           "verifier": "refiner_max_turns"},
    coached=("verifier",),
)  # fmt: skip
DATA_SCIENCE = Flow(
    "data_science",
    {"agent_data_engineer": "engineer", "agent_modeler": "modeler", "agent_analyst": "analyst"},
    environment="data_science", executors=("engineer", "modeler", "analyst"),
    recipe="data_science_coach",
    turns={"engineer": "data_engineer_max_turns", "modeler": "modeler_max_turns",
           "analyst": "analyst_max_turns"},
    coached=("analyst",),
)  # fmt: skip
ALONE = Flow("single", {"generator": "solver", "base": "solver"})
CODER = Flow("single", {"generator": "solver", "base": "solver"}, environment="code",
             systems={"solver": CODE})  # fmt: skip
TREE = Flow("ab_mcts", {"generator": "solver"}, environment="code", systems={"solver": CODE})
REVIEWS = Flow("single", {"generator": "solver"}, environment="text",
               systems={"solver": ""}, judged=True)  # fmt: skip
TOOLS = Flow("single", {"generator": "solver", "base": "solver"}, environment="",
             offers=("solver",))  # fmt: skip
EXPERIENCE = Flow(
    "experience", {"solver": "solver", "memory": "memory"},
    {"num_rounds": "rounds", "memory_reward_style": "memory_reward"},
    environment="", recipe="experience_math",
)  # fmt: skip
EXPERIENCE_TOOLS = replace(EXPERIENCE, offers=("solver",))
WITH_MEMORY = (EXPERIENCE, EXPERIENCE_TOOLS)
FLOWS: dict[str, Flow] = {
    "chain_workflow": CHAIN,
    "chain-of-agents": CHAIN,
    "debate_workflow": DEBATE,
    "multi-agents-debate": DEBATE,
    "moa_workflow": MIXTURE,
    "mixture-of-agents": MIXTURE,
    "mathchat_workflow": MATHCHAT,
    "mathchat_workflow_with_coach": COACHED_MATHCHAT,
    "dsbench_workflow": DATA_SCIENCE,
    "single_mathworkflow": ALONE,
    "single_codeworkflow": CODER,
    "ab_mcts_workflow": TREE,
    "mcts": TREE,
    "judge_workflow": REVIEWS,
    "reviewrl_genrm": REVIEWS,
    "tool_workflow": TOOLS,
    "tool": TOOLS,
    "experience_workflow": EXPERIENCE,
    "experience_with_tool_workflow": EXPERIENCE_TOOLS,
    "experience_with_tool_workflow1": EXPERIENCE_TOOLS,
    "base": ALONE,
}
# Those that are known and not there, with the reason.
MISSING = {
    "prover_verifier": "its reward function pays nothing there; name judge_workflow.py",
}


def find_flow(given: Given, spelt: str, roles: set[str]) -> Flow | None:
    """Return the workflow that a key names; None, and the key is refused, where there is none."""
    name = PurePath(str(given[spelt])).stem
    flow = FLOWS.get(name)
    if flow is CHAIN and roles and roles <= set(CHATTERS):
        flow = MATHCHAT  # theirs is the same chain, by the roles of its agents
    if flow is CHAIN and "judge" in roles:
        flow = REVIEWS
    if flow is CHAIN and roles == {"generator"}:
        flow = EXPERIENCE_TOOLS if given["tools_config.tools"] else EXPERIENCE
        given.warn(spelt, "one generator and no workflow file: taken for the experience workflow")
    if flow is None:
        names = ", ".join(FLOWS)
        given.refuse(spelt, MISSING.get(name, f"no such workflow here; known: {names}"))
    return flow
