"""Makes a frozen policy and the reward `coach` from the coach of MARTI's coaching fork (MAPPA)."""

from __future__ import annotations

from pathlib import PurePath

from rolecall.core.json_types import JsonObject
from rolecall.importers.keys import Given, Tree, set_key
from rolecall.importers.marti_rubric import title, translate_template

COACH = "coach"
MOST_TOKENS = 65_536  # of a reply there, where no limit is set
SCALE = 10  # of scores, of which a share of the scale is paid here
SHARING = "mathchat_processor"  # pays a tenth of a score there; other processors pay the score
TEMPLATE = "workflow_args.coach_prompt_template"
# What the name of a coach's model begins with -> its engine, and the variable with its key.
PROVIDERS: dict[str, JsonObject] = {
    "gemini-": {"name": "google"},
    "gpt-": {"name": "openai", "key_env": "OPENAI_API_KEY"},
    "o1-": {"name": "openai", "key_env": "OPENAI_API_KEY"},
    "claude-": {"name": "anthropic"},
    "deepseek-": {
        "name": "openai",
        "url": "https://api.deepseek.com",
        "key_env": "DEEPSEEK_API_KEY",
        "max_tokens_key": "max_tokens",
    },
}
KEYS = (
    "coach_model",
    "coach_type",
    "coach_max_output_tokens",
    "coach_thinking_budget",
    "coach_prompt_template",
    "use_vertex_ai",
    "vertex_project",
    "vertex_location",
    "enable_ground_truth_eval",
    "reward_process_weight",
    "reward_outcome_weight",
)


def build_coach(
    given: Given, config: Tree, *, shown_truth: tuple[str, ...], roles: dict[str, str]
) -> None:
    """Let a frozen policy score each action, as it is taken; `shown_truth`: agents whose actions
    it judges beside the right answer. `roles`: their role -> ours.
    """
    model = str(given["workflow_args.coach_model"])
    provider = next((p for start, p in PROVIDERS.items() if model.startswith(start)), None)
    replies = {
        "temperature": 0.0,
        "max_tokens": given["workflow_args.coach_max_output_tokens"] or MOST_TOKENS,
    }
    if provider is None:  # a folder, or a model of the hub
        config["policies"][COACH] = {"base": model, "replies": replies}
        given.placed["workflow_args.coach_model"] = f"policies.{COACH}.base"
    else:
        config["policies"][COACH] = {"engine": provider | {"model": model}, "replies": replies}
        given.placed["workflow_args.coach_model"] = f"policies.{COACH}.engine.model"
    budget = given["workflow_args.coach_thinking_budget"]
    if provider is not None and provider["name"] == "google":
        if budget is not None:
            set_key(config, f"policies.{COACH}.engine.thinking_budget", budget)
    elif budget is not None:
        given.refuse("workflow_args.coach_thinking_budget", "only Gemini's thinking has a limit")
    vertex = ("workflow_args.vertex_project", "workflow_args.vertex_location")
    if (
        provider is not None
        and provider["name"] == "google"
        and given["workflow_args.use_vertex_ai"]
    ):
        set_key(config, f"policies.{COACH}.engine.vertex", True)
    else:
        given.silence(["workflow_args.use_vertex_ai", *vertex], "the coach is not on Vertex AI")
    process = given["workflow_args.reward_process_weight"]
    outcome = given["workflow_args.reward_outcome_weight"]
    shares = PurePath(str(given["processor_func_path"] or "")).stem == SHARING
    coach: Tree = {
        "policy": COACH,
        "when": "after_action",
        "scale": SCALE,
        "w_process": process * (1 if shares else SCALE),
        "w_outcome": outcome,
        "on_error": "neutral",  # a coach that fails gives 5 of 10 there
    }
    given.notes["workflow_args.reward_process_weight"] = (
        f"{SHARING} pays a tenth of the score, which is the share of the scale that is paid here"
        if shares
        else "times 10: there the score itself is paid, 0 to 10, and the KL's coefficient is for "
        "that"
    )
    if given["workflow_args.enable_ground_truth_eval"]:
        coach["view"] = {"ground_truth_roles": list(shown_truth)}
    if given[TEMPLATE] is not None:
        _keep_template(given, coach, roles)
    config["rewards"] = {"coach": coach}


def _keep_template(given: Given, coach: Tree, roles: dict[str, str]) -> None:
    """Let the template be the rubric, and agents be called in it as they were."""
    try:
        rules = translate_template(str(given[TEMPLATE]))
    except ValueError as error:
        given.refuse(TEMPLATE, str(error))
        return
    coach["rubric"] = {"rules": rules, "replaces": ["rules", "blame"]}
    coach["answers"] = {"structured": False}  # it is asked to reason first, in text, as there
    coach.setdefault("view", {})["team"] = {ours: title(role) for role, ours in roles.items()}
    given.notes[TEMPLATE] = "what it shows stands in blocks of the message, which it names instead"
