"""Writes what a good team says to answer a question about the generated world."""

from __future__ import annotations

from rolecall.core.interfaces.demonstrator import Line, Scene

WORKFLOWS = ("multi_turn", "search_team")


def demonstrate(scene: Scene) -> Line:
    """Search for the next missing fact, say whether all are known, or answer.

    Raises ValueError for another workflow, and for a question whose facts are not known.
    """
    if scene.workflow not in WORKFLOWS:
        raise ValueError(
            f"environment search writes no demonstrations for workflow {scene.workflow!r}; it "
            f"writes them for {', '.join(WORKFLOWS)}"
        )
    if "queries" not in scene.task.info:
        raise ValueError(f"task {scene.task.id} has no facts to demonstrate a search for")
    steps, queries = scene.task.info["steps"], scene.task.info["queries"]
    num_known = 0
    while num_known < len(steps) and steps[num_known] in scene.shown:
        num_known += 1
    if scene.role == "verifier":
        verdict = "yes" if num_known == len(steps) else "no"
        return Line("\n".join([*steps[:num_known], f"<verify>{verdict}</verify>"]))
    if scene.role == "searcher" or (scene.role == "actor" and num_known < len(steps)):
        query = queries[min(num_known, len(queries) - 1)]
        return Line(
            "\n".join([*steps[max(0, num_known - 1) : num_known], f"<search>{query}</search>"])
        )
    return Line(f"{steps[-1]}\n<answer>{scene.task.answer}</answer>")
