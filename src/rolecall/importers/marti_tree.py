"""Translates what MARTI says of AB-MCTS, the search that MARS2 trains."""

from __future__ import annotations

from rolecall.core.json_types import JsonObject
from rolecall.importers.keys import Given, Tree, set_key

TREE_ARGS = ("max_num_nodes", "eval_max_num_nodes", "algo")
SEARCHES = ("ABMCTSA", "AsyncABMCTSA")
SAMPLED = (None, "multiarm_bandit_thompson")  # how the agent of an answer is chosen


def works_on(given: Given) -> str:
    """Return the task of a tree: `verify_task` in version 1, and code in version 2."""
    is_v1 = "workflow_args.mcts_eval" in given.keys
    return str(given["verify_task"]) if is_v1 else "code"


def build_tree(given: Given, config: Tree) -> None:
    """Set the size of trees and the posterior, and refuse another search than AB-MCTS-A."""
    for key, ours in (("max_num_nodes", "nodes"), ("eval_max_num_nodes", "evaluation_nodes")):
        if given[f"workflow_args.{key}"] is not None:
            set_key(config, f"workflow.{ours}", given[f"workflow_args.{key}"])
    search: JsonObject = given["workflow_args.algo"] or {}
    options: JsonObject = search.get("params") or {}
    key = "workflow_args.algo"
    if search.get("class_name", SEARCHES[0]) not in SEARCHES:
        given.refuse(key, f"{search['class_name']}: the search is one of {', '.join(SEARCHES)}")
    chosen = options.get("model_selection_strategy")
    if chosen not in SAMPLED and len(config["team"]) > 1:
        given.refuse(key, f"{chosen}: agents are chosen by {SAMPLED[-1]}")
    others = {*options} - {"model_selection_strategy", "dist_type"}
    if others:
        given.refuse(key, f"params.{min(others)}: priors are those of AB-MCTS-A")
    set_key(config, "workflow.posterior", options.get("dist_type", "gaussian"))
