"""Checks what can be checked of an action without a model: arithmetic steps, and code.

Code is checked by running it: where the agent's own tool ran it, by what that came to, else in a
sandbox of this coach. A program that ends with an error is wrong; what it computes is not judged.
"""

from __future__ import annotations

from typing import Any

from rolecall.core.tags import find_program
from rolecall.core.types import Turn
from rolecall.rewards.coach.arithmetic import steps
from rolecall.rewards.coach.scores import CoachError, Verdict
from rolecall.sandbox.base import Limits, Run, Sandbox
from rolecall.sandbox.bubblewrap import Bubblewrap

Check = tuple[str, bool]  # what was looked at, and whether it is right
FAILED = ("[exit status ", "[stopped")  # how the last line of a program's output tells its end


class LocalCoach:
    """Scores the share of checks that come out right; makes its sandbox when it is needed."""

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self._sandbox = sandbox

    async def judge(self, turn: Turn) -> Verdict:
        """Raises CoachError for an action without anything to check, and SandboxError.

        A neutral number for such an action would be something to aim at: better than a wrong
        step, and earned by writing none. So it has no score, and `on_error` says what follows.
        """
        checks = [*steps(turn.visible), *await self._code(turn)]
        if not checks:
            raise CoachError("nothing to check: the action has no arithmetic step and no code")
        wrong = [problem for problem, right in checks if not right]
        reasoning = f"{len(checks) - len(wrong)} of {len(checks)} checks are right"
        return Verdict(
            10.0 * (1 - len(wrong) / len(checks)),
            reasoning + (f"; wrong: {'; '.join(wrong)}" if wrong else ""),
        )

    async def _code(self, turn: Turn) -> list[Check]:
        if turn.calls:
            return [_called(call) for call in turn.calls]
        code = find_program(turn.visible)
        if code is None:
            return []
        if self._sandbox is None:
            self._sandbox = Bubblewrap()
        ran = await self._sandbox.run(Run(code=code, limits=Limits(wall_s=5.0)))
        return [("the program ends with an error", ran.status == "finished")]


def _called(call: dict[str, Any]) -> Check:
    last = call["result"].rstrip().rpartition("\n")[2]
    return f"{call['name']} failed", "problem" not in call and not last.startswith(FAILED)
