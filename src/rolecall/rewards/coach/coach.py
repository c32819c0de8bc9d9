"""Scores each trained action of an episode, or records an error in place of the score.

`Coach` is a reward for a config and, by `score`, something to ask inside a workflow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rolecall.core.interfaces.chat_model import ChatModel
from rolecall.rewards.coach.cache import Cache
from rolecall.rewards.coach.caps import Caps
from rolecall.rewards.coach.following import CoachSettings, When
from rolecall.rewards.coach.judge import CoachForm, Judge
from rolecall.rewards.coach.ledger import Ledger, Totals
from rolecall.rewards.coach.mixing import Mixing, OnError, OutcomeOn
from rolecall.rewards.coach.rendering import Action
from rolecall.rewards.coach.rubric import Rules
from rolecall.rewards.coach.rubric_section import Cap, Rubric
from rolecall.rewards.coach.scored_actions import ScoredActions
from rolecall.rewards.coach.scorer import Scorer
from rolecall.rewards.coach.scores import Score
from rolecall.rewards.coach.sections import Answers, View

VIEW, ANSWERS, RUBRIC = View(), Answers(), Rubric()


class Coach(ScoredActions):
    """An LLM that scores each action of an episode from 0 to 10, or 0 to 1, and says why.

    It writes `turn.rewards["coach"]` = w_process * score / scale + w_outcome * outcome, and into
    `turn.coach.note` the score, the reasoning and what they cost. An action without a score has a
    `turn.coach.error` and no number. Candidates are scored like played actions. The
    weight that a config gives this reward has no part in it: w_process and w_outcome have.

    policy: the frozen policy that is asked. Its engine says how requests are repeated and what may
        be spent, `policies.NAME.replies` how it is sampled, `prices.NAME` what it costs.
    when: each action is judged once the episode is over, or as soon as it was taken, while the
        episode goes on; either way beside what there was when it was taken.
    show_to: agents that are told the score of each turn that they are told, with its reasons, once
        it is there. Needs `when: after_action`. In an evaluation they are told only with
        `in_evaluation`, and never what was judged with the reference answer in view.
    w_process, w_outcome: weights of score / scale and of the outcome, which are in 0..1. So what is
        paid for a score is in 0..w_process on either scale, and a KL in the reward
        (`algorithm.kl`, `kl_in: reward`) weighs against that: where its coefficient was chosen for
        rewards of 0..10, write w_process: 10.
    outcome_on: the actions that are given the outcome: all, or only the last one.
    on_error: an action without a score is left out of training (drop_action), or its episode is
        (drop_episode), or it is rewarded with its part of the outcome alone (outcome_only), or as
        if its score were half of the scale (neutral): more than a bad action earns.
    hindsight: score each action a second time once the episode is over, with the outcome in view;
        that score counts, and no agent is shown it.
    in_evaluation: score held-out episodes, too.
    cache: folder of earlier scores; equal questions to one model are asked once, also by a
        resumed run. The address is not part of a question.
    view: limits and texts of what the coach is shown.
    answers: the form of its answers, and how many may fail.
    rubric: what is judged in your own words, for all and for single agents, beside or instead of
        the rules of this package.
    scale: the highest score, 10 or 1. The coach is asked for scores up to it, and an answer
        outside of it is no score: it is asked again.
    caps: bounds on scores where a metric of the finished episode is bad, e.g. {metric: score,
        below: 0.5, most: 4}; `above` stands for `below` where less is better, `agents` names
        whose scores are bounded (by default all), and `missing` says what an episode without the
        metric comes to: error, skip or cap. They are applied after the coach has answered, so no
        agent is shown them and the cache holds the coach's own score; `turn.coach.note` keeps
        both, with the reason.

    Raises ValueError for options that do not fit together.
    """

    def __init__(
        self,
        *,
        policy: ChatModel,
        when: When = "after_episode",
        show_to: tuple[str, ...] = (),
        w_process: float = 1.0,
        w_outcome: float = 0.0,
        outcome_on: OutcomeOn = "all",
        on_error: OnError | Literal["neutral"] = "drop_action",
        hindsight: bool = False,
        in_evaluation: bool = False,
        cache: str | None = None,
        view: View = VIEW,
        answers: Answers = ANSWERS,
        rubric: Rubric = RUBRIC,
        scale: Literal[1, 10] = 10,
        caps: tuple[Cap, ...] = (),
    ) -> None:
        settings = CoachSettings(
            Mixing(w_process, w_outcome, outcome_on, on_error),
            view=view,
            when=when,
            show_to=frozenset(show_to),
            hindsight=hindsight,
            in_evaluation=in_evaluation,
            caps=Caps(caps, scale=scale),
        )
        self.ledger = Ledger(
            max_error_rate=answers.max_error_rate, error_window=answers.error_window
        )
        folder = Cache(Path(cache)) if cache else None
        judge = Judge(
            policy,
            self.ledger,
            form=CoachForm(view, answers, Rules(rubric, scale)),
            retries=answers.retries,
            cache=folder,
        )
        scorer = Scorer(judge, self.ledger, model=policy.model, is_local=policy.is_local)
        super().__init__(scorer, settings)

    @property
    def totals(self) -> dict[str, Totals]:
        """Agent -> counts, mean score, tokens and cost since this process began."""
        return dict(self.ledger.agents)

    async def score(self, action: Action) -> Score:
        """Judge one action now, so that a workflow can go by the score.

        A later call with the episode does not ask again. Raises CoachError.
        """
        return await self.scorer.apart(self.scorer.write(action))
