"""Says how a turn came by its advantage: terms of credit, and the turns it was compared with."""

from __future__ import annotations

from rolecall.core.types import Episode, Turn
from rolecall.explain.turns import Explanation, explain_turn
from rolecall.watch.clean_json import finite
from rolecall.watch.models import CreditTerm, Why


def explain_attempts(episodes: list[Episode]) -> dict[str, Why]:
    """Return why each turn of all attempts at a task got its credit, by the turn's id."""
    owners = {turn.id: episode.id for episode in episodes for turn in episode.turns}
    return {
        turn.id: _explain(turn, episode, episodes, owners)
        for episode in episodes
        for turn in episode.turns
    }


def leave_unexplained(note: str) -> Why:
    """Return that nothing is known of a turn's credit, and why."""
    return Why(
        outcome=0.0, rewards={}, advantage=None, first=None, last=None, weight=1.0, terms=[],
        samples=[], note=note,
    )  # fmt: skip


def _explain(turn: Turn, episode: Episode, episodes: list[Episode], owners: dict[str, str]) -> Why:
    try:
        return _show(explain_turn(turn, episode, episodes), owners)
    except (ValueError, TypeError, KeyError, ZeroDivisionError, OverflowError) as error:
        return leave_unexplained(f"its credit cannot be explained: {error}")


def _show(explanation: Explanation, owners: dict[str, str]) -> Why:
    first, last = explanation.first_and_last or (None, None)
    kinds = [str(record.get("kind", "")) for record in explanation.credit]
    return Why(
        outcome=finite(explanation.outcome) or 0.0,
        rewards={name: finite(value) or 0.0 for name, value in explanation.rewards.items()},
        advantage=finite(explanation.advantage),
        first=finite(first),
        last=finite(last),
        weight=finite(explanation.weight) or 0.0,
        terms=[
            CreditTerm(kind=kind, sentence=reason.sentence, formula=reason.formula)
            for kind, reason in zip(kinds, explanation.reasons, strict=True)
        ],
        samples=[
            (sample.turn, owners[sample.turn], finite(sample.score) or 0.0)
            for sample in explanation.samples
        ],
        note=explanation.note,
    )
