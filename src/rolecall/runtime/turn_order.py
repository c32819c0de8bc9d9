"""Says which turns of an episode happened at once and which after others.

A turn comes after what its agent said before, after the turns that were passed to its call, and
after those that it has heard of through the world: in a game, who is called after another player
and sees the world anew.
"""

from __future__ import annotations

from collections import defaultdict

from rolecall.core.types import Episode, Turn


def joint_steps(episode: Episode) -> list[list[Turn]]:
    """Return the played turns in steps; turns of a step do not know of each other.

    left(x), right(x), last(x, left, right) -> [[left, right], [last]]. A turn is in the first step
    after all that it may know, so two debaters share a step in each round, whatever order each was
    told the others in.
    """
    return _grouped(episode, after_others=1)


def rounds(episode: Episode) -> list[list[Turn]]:
    """Return the played turns in rounds, in each of which an agent gives at most one answer.

    Within a round agents may hear each other: solver, verifier(solver), solver(verifier) ->
    [[solver, verifier], [solver]]. An answer may take several turns: those that call tools, and
    those that were asked again because they had no use.
    """
    return _grouped(episode, after_others=0)


def _grouped(episode: Episode, *, after_others: int) -> list[list[Turn]]:
    """Group played turns by their numbers.

    A number is above that of the agent's turn before, and at least `after_others` above those of
    other agents' turns that the turn may know of. Without a distance to others, the turns of one
    answer have one number.
    """
    number: dict[str, int] = {}
    newest: dict[str, Turn] = {}  # by agent
    shown: dict[tuple[int, ...], list[tuple[str | None, int]]] = defaultdict(list)  # by call
    for turn in _parents_first(episode.turns):
        call = turn.path[:-1]  # tasks that run at once have their own
        positions = [number[name] for name in turn.parents if name in number]
        if turn.observation is not None:
            positions += [old for seen, old in shown[call] if seen != turn.observation]
        after = max(positions, default=-after_others)
        if turn.chosen:
            after += after_others
            if (before := newest.get(turn.agent)) is not None:
                goes_on = not after_others and continues(turn, before)
                after = max(after, number[before.id] + (not goes_on))
            newest[turn.agent] = turn
            shown[call].append((turn.observation, after))
        number[turn.id] = after
    played = [turn for turn in episode.turns if turn.chosen]
    last = max((number[turn.id] for turn in played), default=-1)
    groups: list[list[Turn]] = [[] for _ in range(1 + last)]
    for turn in played:
        groups[number[turn.id]].append(turn)
    return groups


def turns_known_before(turn: Turn, episode: Episode) -> list[Turn]:
    """Return the played turns of an unfinished episode that were surely over before a turn's call.

    They are those it read, those that these read, and those before it in its own line of calls.
    What others say at the same time is left out: it depends on who is faster.
    """
    earlier = sorted((t for t in episode.turns if t.path < turn.path), key=lambda t: t.path)
    ids = set(turn.parents)
    for other in reversed(earlier):
        if other.id in ids:
            ids.update(other.parents)
    line = [t.id for t in earlier if turn.path[: len(t.path) - 1] == t.path[:-1]]
    return [t for t in earlier if t.chosen and (t.id in ids or t.id in line)]


def continues(turn: Turn, before: Turn) -> bool:
    """Return whether a turn belongs to the same answer as its agent's turn `before`.

    It does if it reads what the tools said that this one called, or if the agent was asked the same
    again because this one had no use.
    """
    if before.tools.calls and turn.parents == (before.id,):
        return True
    same = turn.parents == before.parents and _newest_words(turn) == _newest_words(before)
    return not before.valid and same


def _newest_words(turn: Turn) -> str:
    return turn.messages[-1].content if turn.messages else ""


def _parents_first(turns: list[Turn]) -> list[Turn]:
    """Sort turns so that each stands behind its parents, and otherwise as they are."""
    by_id = {turn.id: turn for turn in turns}
    done: dict[str, Turn] = {}
    for turn in turns:
        waiting = {turn.id: turn}
        while waiting:
            name, top = next(reversed(waiting.items()))
            first = next((p for p in top.parents if p in by_id and p not in done | waiting), None)
            if first is not None:
                waiting[first] = by_id[first]
            else:
                del waiting[name]
                done[name] = top
    return list(done.values())
