"""Scores what can be checked of an action without a model: arithmetic steps, and code.

Code is checked by running it: where the agent's own tool ran it, by what that came to, else in a
sandbox of this reward. A program that ends with an error is wrong; what it computes is not judged.
"""

from __future__ import annotations

from rolecall.core.json_types import JsonObject
from rolecall.core.tags import find_program
from rolecall.core.types import Turn
from rolecall.rewards.coach.arithmetic import steps
from rolecall.rewards.coach.following import CoachSettings, When
from rolecall.rewards.coach.ledger import Ledger
from rolecall.rewards.coach.mixing import Mixing, OnError, OutcomeOn
from rolecall.rewards.coach.rendering import Action
from rolecall.rewards.coach.scored_actions import ScoredActions
from rolecall.rewards.coach.scorer import Scorer
from rolecall.rewards.coach.scores import CoachError, Score, Usage, Verdict
from rolecall.sandbox.base import Limits, Run, Sandbox
from rolecall.sandbox.bubblewrap import Bubblewrap

Check = tuple[str, bool]  # what was looked at, and whether it is right
FAILED = ("[exit status ", "[stopped")  # how the last line of a program's output tells its end


class CheckedSteps(ScoredActions):
    """The share of right arithmetic steps and programs in each action; it asks no LLM.

    It writes what the reward `coach` writes: `turn.rewards["coach"]` = w_process * share +
    w_outcome * outcome, and into `turn.coach.note` ten times the share and what was wrong. A
    program that ends with an error is wrong; what it computes is not judged. The weight that a
    config gives this reward has no part in it.

    when: each action is scored once the episode is over, or as soon as it was taken.
    show_to: agents that are told the score of each turn that they are told, with what was wrong.
        Needs `when: after_action`.
    w_process, w_outcome: weights of the share and of the outcome, both in 0..1.
    outcome_on: the actions that are given the outcome: all, or only the last one.
    on_error: an action with nothing to check is left out of training, or its episode is, or it is
        rewarded with its part of the outcome alone.
    in_evaluation: score held-out episodes, too.
    """

    def __init__(
        self,
        *,
        when: When = "after_episode",
        show_to: tuple[str, ...] = (),
        w_process: float = 1.0,
        w_outcome: float = 0.0,
        outcome_on: OutcomeOn = "all",
        on_error: OnError = "drop_action",
        in_evaluation: bool = False,
    ) -> None:
        """Set up the coach; raises ValueError for options that do not fit together."""
        settings = CoachSettings(
            Mixing(w_process, w_outcome, outcome_on, on_error),
            when=when,
            show_to=frozenset(show_to),
            in_evaluation=in_evaluation,
        )
        super().__init__(Scorer(StepChecker(), Ledger()), settings)


class StepChecker:
    """Scores the share of checks that come out right; makes its sandbox when it is needed."""

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self._sandbox = sandbox

    async def __call__(self, action: Action, usage: Usage) -> Score:
        return Score(await self.judge(action.turn), usage)

    async def judge(self, turn: Turn) -> Verdict:
        """Check an action's steps; raises CoachError if it has nothing to check, and SandboxError.

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
        if turn.tools.calls:
            return [_called(call) for call in turn.tools.calls]
        code = find_program(turn.visible)
        if code is None:
            return []
        if self._sandbox is None:
            self._sandbox = Bubblewrap()
        ran = await self._sandbox.run(Run(code=code, limits=Limits(wall_s=5.0)))
        return [("the program ends with an error", ran.status == "finished")]


def _called(call: JsonObject) -> Check:
    last = call["result"].rstrip().rpartition("\n")[2]
    return f"{call['name']} failed", "problem" not in call and not last.startswith(FAILED)
