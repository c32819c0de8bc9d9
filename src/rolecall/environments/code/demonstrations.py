"""Writes what a good coder and a good tester say about a generated problem."""

from __future__ import annotations

from rolecall.core.interfaces.demonstrator import Line, Scene

WORKFLOWS = ("coder_tester", "single")


def demonstrate(scene: Scene) -> Line:
    """Return the reference program in a fenced block, or the examples as tests.

    Raises ValueError for another workflow, and for a problem without a reference program.
    """
    if scene.workflow not in WORKFLOWS:
        raise ValueError(
            f"environment code writes no demonstrations for workflow {scene.workflow!r}; it writes "
            f"them for {', '.join(WORKFLOWS)}"
        )
    info = scene.task.info
    if scene.role == "tester":
        if "examples" not in info:
            raise ValueError(f"task {scene.task.id} has no examples to test with")
        lines = [f"{call} == {value}" for call, value in info["examples"]]
        return Line("\n".join(["<tests>", *lines, "</tests>"]))
    if "reference" not in info:
        raise ValueError(f"task {scene.task.id} has no program to demonstrate")
    return Line(f"```python\n{info['reference'].rstrip()}\n```")
