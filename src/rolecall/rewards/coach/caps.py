"""Bounds the scores of an episode's actions by what was measured of the episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rolecall.core.types import CoachNote, Turn
from rolecall.rewards.coach.rubric_section import Cap, explain_most


class Caps:
    """Bounds on scores; each is put down beside the score that it lowers."""

    def __init__(self, caps: Sequence[Cap] = (), *, scale: int = 10) -> None:
        """Keep the bounds; raises ValueError for one that bounds nothing."""
        for number, cap in enumerate(caps):
            if cap.most >= scale:
                raise ValueError(f"caps.{number}.most: {explain_most(cap.most, scale)}")
        self.caps = tuple(caps)

    def find(self, metrics: Mapping[str, float]) -> list[tuple[Cap, str]]:
        """Return the bounds that hold, with the reason; raises ValueError for a missing metric."""
        held = []
        for number, cap in enumerate(self.caps):
            if cap.metric not in metrics and cap.missing == "error":
                raise ValueError(
                    f"rewards.coach.caps.{number}.metric: an episode has no {cap.metric!r}; it has "
                    f"{', '.join(sorted(metrics)) or 'no metrics'}; write one of these, or "
                    f"caps.{number}.missing: skip or cap"
                )
            if reason := _reason(cap, metrics.get(cap.metric)):
                held.append((cap, reason))
        return held


def apply_caps(holding: Sequence[tuple[Cap, str]], turn: Turn) -> None:
    """Lower the score of a turn to the lowest bound that holds for its agent."""
    note = turn.coach.note
    if note is None:
        return
    reset_cap(note.final)
    own = [one for one in holding if not one[0].agents or turn.agent in one[0].agents]
    if not own:
        return
    cap, reason = min(own, key=lambda one: one[0].most)
    final = note.final
    if final.score > cap.most:
        final.uncapped, final.cap, final.score = final.score, reason, cap.most


def reset_cap(note: CoachNote) -> None:
    """Give a note the score that the coach gave."""
    if note.uncapped is not None:
        note.score, note.uncapped, note.cap = note.uncapped, None, ""


def _reason(cap: Cap, value: float | None) -> str:
    """Return why a bound holds; "" if it does not."""
    if value is None:
        return f"no {cap.metric}" if cap.missing == "cap" else ""
    if cap.below is not None and value < cap.below:
        return f"{cap.metric} {value:.4g} is below {cap.below:g}"
    if cap.above is not None and value > cap.above:
        return f"{cap.metric} {value:.4g} is above {cap.above:g}"
    return ""
