"""Records what a teacher writes for an agent as that agent's own words (STeP, 2505.20023).

Nobody sampled such words, so a written turn has no tokens and no algorithm trains on it in the
episode. `rolecall collect` makes rows of it, which the agent's own tokenizer reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from rolecall.agents.agent import Said, quoted_turns
from rolecall.agents.team import Member
from rolecall.core.tags import encodable
from rolecall.core.types import Message, Turn
from rolecall.runtime import call_tree

WRITTEN_BY = "written_by"  # note on a written turn: the agent whose words they are
WRONG_CHARS = "wrong_chars"  # note on a written turn: the length of its wrong beginning
IS_WRONG = "is_wrong"  # note on a turn that a teacher has corrected


def extend_answer(member: Member, wrong: Turn, teacher: Turn) -> Turn:
    """Record the answer that begins with a wrong one and goes on with the teacher's words.

    "It is 12." and "Wait: 2+6 is 8." -> "It is 12.\\nWait: 2+6 is 8.", of which the first line is
    wrong. The wrong answer stays as a turn that was not played.
    """
    wrong.chosen = False
    beginning = f"{wrong.text}\n"
    turn = _record(member, f"{beginning}{teacher.visible}", teacher, wrong.messages, [wrong])
    turn.info[WRONG_CHARS] = len(beginning)
    turn.observation, turn.state = wrong.observation, wrong.state
    _mark_wrong(wrong)
    return turn


def write_next(member: Member, wrong: Turn, teacher: Turn, *said: Said) -> Turn:
    """Record the teacher's words as the turn in which a member answers to `said`.

    The wrong turn was played, so later turns are shown it.
    """
    earlier = [t for t in member.team.episode.turns if t.agent == member.agent.name and t.chosen]
    messages = member.agent.messages(said, earlier=earlier)
    turn = _record(member, teacher.visible, teacher, messages, quoted_turns(said))
    turn.state = member.team.state_for(member.agent.name)
    turn.observation = member.team.observation.text or None
    _mark_wrong(wrong)
    return turn


def wrong_beginning(turn: Turn) -> str:
    """Return the part of a turn's text that is shown and not imitated; "" if there is none."""
    return turn.text[: int(turn.info.get(WRONG_CHARS, 0))]


def is_written(turn: Turn) -> bool:
    """Return whether a teacher wrote the turn for its agent."""
    return WRITTEN_BY in turn.info


def _mark_wrong(turn: Turn) -> None:
    """Keep a wrong turn out of every loss: what its episode earns is the teacher's merit."""
    turn.info[IS_WRONG] = True
    turn.trained = False


def _record(
    member: Member, text: str, teacher: Turn, messages: list[Message], parents: Sequence[Turn]
) -> Turn:
    episode, agent = member.team.episode, member.agent
    path = call_tree.current().next_path()
    turn = Turn(
        id=f"{episode.id}/{'.'.join(map(str, path))}",
        index=member.count_turns_before(path),
        task=episode.task.id,
        episode=episode.id,
        agent=agent.name,
        policy=agent.policy.name,
        path=path,
        group="" if episode.step is None else str(episode.step),
        parents=tuple(one.id for one in (*parents, teacher)),
        messages=messages,
        text=encodable(text),
        finish="stop",
        trained=False,
        info={WRITTEN_BY: teacher.agent},
    )
    if agent.parser is not None:
        turn.valid = agent.parser(turn) is not None
    episode.turns.append(turn)
    episode.count("corrections")
    return turn
