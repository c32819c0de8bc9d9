"""Scores each trained action of an episode, or records an error in place of the score.

`Coach` is a reward for a config and, by `score`, something to ask inside a workflow.
"""

from __future__ import annotations

from pathlib import Path

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode
from rolecall.rewards.coach import providers
from rolecall.rewards.coach.cache import Cache
from rolecall.rewards.coach.following import CoachSettings, Following, When
from rolecall.rewards.coach.judge import Judge
from rolecall.rewards.coach.ledger import Ledger, Totals
from rolecall.rewards.coach.mixing import Mixing, OnError, OutcomeOn
from rolecall.rewards.coach.rendering import Action, View
from rolecall.rewards.coach.scorer import Scorer
from rolecall.rewards.coach.scores import Score
from rolecall.runtime.call_tree import outside
from rolecall.runtime.retrying import RetryLimits
from rolecall.runtime.spending import Account, Budget, Prices

LONGEST_PAUSE_S = 30.0  # between requests for one score


class Coach:
    """An LLM that scores each action of an episode from 0 to 10 and says why.

    It writes `turn.rewards["coach"]` = w_process * score / 10 + w_outcome * outcome, and into
    `turn.coach` the score, the reasoning and what they cost. An action without a score has a
    `turn.coach_error` and no number. Candidates are scored like played actions. The
    weight that a config gives this reward has no part in it: w_process and w_outcome have.

    provider: openai (also any server that speaks its chat completions), anthropic, google, vertex,
        or local: no LLM, the share of right arithmetic steps and programs in the action.
    model: the provider's name of it.
    base_url: address of the API; by default the provider's own.
    key_env: environment variable that holds the key; by default the provider's usual one, and none
        for openai with a base_url.
    temperature: of the coach's answers; by default the model's own.
    max_tokens: most tokens of an answer, reasoning included.
    structured: ask for JSON by a schema; False: for text, where a server knows no schemas.
    check_request: refuse an answer that does not repeat the request's random code.
    when: each action is judged once the episode is over, or as soon as it was taken, while the
        episode goes on; either way beside what there was when it was taken.
    show_to: agents that are told the score of each turn that they are told, with its reasons, once
        it is there. Needs `when: after_action`. In an evaluation they are told only with
        `in_evaluation`, and never what was judged with the reference answer in view.
    w_process, w_outcome: weights of score / 10 and of the outcome, both in 0..1.
    outcome_on: the actions that are given the outcome: all, or only the last one.
    ground_truth_roles: agents whose actions the coach judges with the reference answer in view.
    team: what each agent's role is, in a line; shown to the coach in this order.
    hindsight: score each action a second time once the episode is over, with the outcome in view;
        that score counts, and no agent is shown it.
    in_evaluation: score held-out episodes, too.
    on_error: an action without a score is left out of training, or its episode is, or it is
        rewarded with its part of the outcome alone.
    concurrency: requests under way at once.
    deadline_s, request_s: most seconds for one score in all, and for one request.
    format_retries: new requests after an answer that cannot be read.
    pause_s: before the first repeat of a failed request, doubled for each later one.
    transcript_chars, tool_chars: of a longer transcript, or of a tool output or shown reasons
        longer than that, the middle is left out.
    cache: folder of earlier scores; equal questions to one model are asked once, also by a
        resumed run. The address is not part of a question.
    budget_usd, budget_tokens, step_budget_usd, step_budget_tokens: what the run, also where it
        was stopped and continued, and what one step may spend before requests stop.
    price_prompt, price_cached, price_completion: USD for a million tokens.
    max_error_rate, error_window: all stops when more than this share of the last actions failed.

    Raises ValueError for an unknown provider, a missing key and options that do not fit together.
    """

    weighs_itself = True  # w_process and w_outcome; no other weight has a part in it

    def __init__(
        self,
        *,
        provider: str = "openai",
        model: str = "",
        base_url: str | None = None,
        key_env: str | None = None,
        temperature: float | None = None,
        max_tokens: int = 4096,
        structured: bool = True,
        check_request: bool = True,
        when: When = "after_episode",
        show_to: tuple[str, ...] = (),
        w_process: float = 1.0,
        w_outcome: float = 0.0,
        outcome_on: OutcomeOn = "all",
        ground_truth_roles: tuple[str, ...] = (),
        team: dict[str, str] | None = None,
        hindsight: bool = False,
        in_evaluation: bool = False,
        on_error: OnError = "drop_action",
        concurrency: int = 16,
        deadline_s: float = 120.0,
        request_s: float = 60.0,
        format_retries: int = 2,
        pause_s: float = 1.0,
        transcript_chars: int = 24_000,
        tool_chars: int = 4_000,
        cache: str | None = None,
        budget_usd: float | None = None,
        budget_tokens: int | None = None,
        step_budget_usd: float | None = None,
        step_budget_tokens: int | None = None,
        price_prompt: float = 0.0,
        price_cached: float | None = None,
        price_completion: float = 0.0,
        max_error_rate: float = 0.5,
        error_window: int = 100,
    ) -> None:
        providers.check_provider(provider)
        if provider == "local":
            unused = {
                "model": model,
                "base_url": base_url,
                "key_env": key_env,
                "cache": cache,
                "hindsight": hindsight,
                "ground_truth_roles": ground_truth_roles,
            }
            if any(unused.values()):
                names = ", ".join(name for name, value in unused.items() if value)
                raise ValueError(f"the local coach asks no model: {names} would have no effect")
        elif not model:
            raise ValueError(f"the coach's provider {provider!r} needs a model")
        else:
            providers.load(provider)  # a missing SDK shows before the first step, not in it
        if max_tokens < 1 or format_retries < 0:
            raise ValueError(
                "max_tokens must be at least 1 and format_retries at least 0, "
                f"got {max_tokens}, {format_retries}"
            )
        limits = RetryLimits(
            deadline_s=deadline_s,
            request_s=request_s,
            pause_s=pause_s,
            longest_pause_s=LONGEST_PAUSE_S,
            concurrency=concurrency,
        )
        key = providers.find_key(provider, key_env=key_env, base_url=base_url)
        self.manner = CoachSettings(
            Mixing(w_process, w_outcome, outcome_on, on_error),
            when=when,
            show_to=frozenset(show_to),
            shown_chars=tool_chars,
            ground_truth_roles=frozenset(ground_truth_roles),
            hindsight=hindsight,
            in_evaluation=in_evaluation,
        )
        self.team = team or {}
        self.ledger = Ledger(
            prices=Prices(price_prompt, price_cached, price_completion),
            budget=Budget(budget_usd, budget_tokens),
            step_budget=Budget(step_budget_usd, step_budget_tokens),
            max_error_rate=max_error_rate,
            error_window=error_window,
        )
        self.access = providers.Access(provider, model, key, base_url, temperature, max_tokens)
        judge = Judge(
            self.access,
            self.ledger,
            view=View(transcript_chars, tool_chars),
            limits=limits,
            format_retries=format_retries,
            structured=structured,
            check_request=check_request,
            ground_truth_roles=self.manner.ground_truth_roles,
            cache=Cache(Path(cache)) if cache else None,
        )
        self.scorer = Scorer(judge)

    @property
    def totals(self) -> dict[str, Totals]:
        """Agent -> counts, mean score, tokens and cost since this process began."""
        return dict(self.ledger.agents)

    @property
    def account(self) -> Account:
        """The account of what was spent; a run keeps it in its folder."""
        return self.ledger.account

    def follow(self, episode: Episode, world: World) -> Following:
        """Someone who puts down, and if wished judges, each action of an episode as it is taken."""
        return Following(self.scorer, self.manner, self.team, episode, world)

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        """Score the trained actions of a finished episode; nothing is given to whole agents.

        Raises CoachStopError where no action can be scored any more, CoachError for an action
        without a score if `on_error` drops the episode.
        """
        return await self.follow(episode, world)(episode, world)

    async def score(self, action: Action) -> Score:
        """Judge one action now, so that a workflow can go by the score.

        A later call with the episode does not ask again. Raises CoachError.
        """
        return await outside(self.scorer.write(action))
