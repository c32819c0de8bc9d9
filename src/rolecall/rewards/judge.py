"""Pays the team's answer by what a frozen LLM says of it, asked in the user's own words."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Literal

from rolecall.core.interfaces.chat_model import ChatModel
from rolecall.core.interfaces.environment import World
from rolecall.core.tags import visible
from rolecall.core.types import Episode
from rolecall.rewards.coach.cache import Cache
from rolecall.rewards.coach.judge import Judge
from rolecall.rewards.coach.ledger import Ledger
from rolecall.rewards.coach.prompted_form import TAGGED, PromptedForm
from rolecall.rewards.coach.rendering import Action
from rolecall.rewards.coach.rubric_section import Text
from rolecall.rewards.coach.scorer import Scorer
from rolecall.rewards.coach.scores import CoachError, CoachStopError
from rolecall.rewards.coach.sections import Tries

TRIES = Tries()


class JudgedAnswer:
    """Pays the team 0 to 1 for its answer, as a frozen LLM judges it by your own prompt.

    For what no program can grade: the LLM compares a text with the row's reference, or rates it.
    It is paid times `weight`. An empty answer earns 0 and is not judged. What the LLM said stands
    in `turn.info["judge"]` of the turn that answered; metrics are `judge/score`, `judge/tokens`
    and `judge/cost_usd`. The prompt is sent as it is written: say in it that the answer is no
    instruction, or a policy may learn to ask for a good score.

    policy: the frozen policy that is asked, on an engine of this run or behind an API.
    prompt: what it is asked, or {file: PATH}. `{task}`, `{answer}` and `{reference}` stand for the
        question, the team's answer without its thinking, and the row's reference answer; all other
        braces are sent as they are.
    score: a pattern whose first group is the number of the score, by default `<score>7</score>`,
        or words with their scores, as {better: 1, worse: 0}. The last match in a reply counts.
    scale: the worst and the best score; a number outside of it is no score.
    on_error: an answer without a score leaves its episode out of training (drop_episode), or earns
        this number, 0 to 1.
    in_evaluation: judge held-out answers, too.
    cache: folder of earlier scores; equal questions to one model are asked once.
    answers: how often an unreadable reply is asked for again, and how many scores may be missing.

    Raises ValueError for options that do not fit together.
    """

    def __init__(
        self,
        *,
        policy: ChatModel,
        prompt: Text,
        score: str | dict[str, float] = TAGGED,
        scale: tuple[float, float] = (0.0, 1.0),
        on_error: Literal["drop_episode"] | float = "drop_episode",
        in_evaluation: bool = False,
        cache: str | None = None,
        answers: Tries = TRIES,
    ) -> None:
        if on_error != "drop_episode" and not 0 <= on_error <= 1:
            raise ValueError(f"on_error: {on_error:g} is not within 0 to 1, or write drop_episode")
        self.form = PromptedForm(prompt, score, *scale)
        self.on_error, self.in_evaluation = on_error, in_evaluation
        self.ledger = Ledger(
            max_error_rate=answers.max_error_rate,
            error_window=answers.error_window,
            scorer="the judge",
        )
        judge = Judge(
            policy,
            self.ledger,
            form=self.form,
            retries=answers.retries,
            cache=Cache(Path(cache)) if cache else None,
        )
        self.scorer = Scorer(judge, self.ledger, model=policy.model, is_local=policy.is_local)

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        """Return what the team earns; raises CoachError where the episode has no score."""
        if not self.in_evaluation and episode.id.startswith("evaluation:"):
            return {}
        played = [turn for turn in episode.turns if turn.chosen]
        answer = visible(episode.answer)
        if not played or not answer:
            return {"team": 0.0}
        turn = max(played, key=lambda turn: turn.path)
        action, usage = Action(turn, episode.task, answer=answer), self.scorer.usage()
        try:
            score = await self.scorer.apart(self.scorer.ask(action, usage))
        except CoachStopError:
            raise
        except CoachError as error:
            if self.on_error == "drop_episode":
                raise
            episode.count("judge_errors")
            turn.info["judge"] = {"error": str(error), "usage": asdict(usage)}
            return {"team": self.on_error}
        finally:
            episode.metrics["count/judge_calls"] = usage.tries
            if usage.tries:
                episode.metrics["judge/tokens"] = usage.tokens
                episode.metrics["judge/cost_usd"] = usage.cost_usd
        verdict = score.verdict
        episode.metrics["judge/score"] = verdict.score
        turn.info["judge"] = {
            "score": verdict.score,
            "reply": verdict.reasoning,
            "usage": asdict(score.usage),
            "cached": score.cached,
        }
        return {"team": self.form.share(verdict.score)}
