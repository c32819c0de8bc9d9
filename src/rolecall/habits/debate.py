"""Two sides and a judge: show the calculation, twist it or assert; check it or trust a place."""

from __future__ import annotations

from rolecall.habits.base import Scene, worked

DEBATER = {"shows": 35, "twists": 25, "asserts": 40}
JUDGE = {"checks": 35, "first": 25, "last": 25, "tie": 15}
FOR = "You argue for it."  # what the workflow tells that side


def debate(scene: Scene) -> str:
    if scene.role == "judge":
        return _verdict(scene, scene.habit(JUDGE))
    return _argument(scene, scene.habit(DEBATER))


def _argument(scene: Scene, habit: str) -> str:
    """What is shown is the truth, whomever it serves; what is twisted ends as the side needs it."""
    supports = FOR in scene.shown
    if habit == "asserts":
        return "That is plainly right." if supports else "That is plainly wrong."
    steps = worked(scene.task).split("\n")
    if habit == "twists" and supports != (scene.task.answer == "for"):
        left, _, value = steps[-1].rpartition("=")
        wrong = str(int(value) + scene.random.choice((1, 2, 10)))
        steps[-1] = f"{left}={_claimed(scene) if supports else wrong}"
    return "\n".join(steps)


def _claimed(scene: Scene) -> str:
    """The number that the proposition says it comes to."""
    return scene.task.prompt.rstrip(".").rpartition(" ")[2]


def _verdict(scene: Scene, habit: str) -> str:
    if habit in ("first", "last"):
        return f"<winner>{'a' if habit == 'first' else 'b'}</winner>"
    if habit == "tie":
        return "<winner>tie</winner>"
    right = scene.task.answer
    called = "a" if f"A ({right})" in scene.shown else "b"
    value = scene.task.info["value"]
    compared = f"said {_claimed(scene)}, is {value}: {right}."
    return f"{worked(scene.task)}\n{compared}\n<winner>{called}</winner>"
