"""Makes rows of demonstrations or preferences from episodes; `offline_data` reads them back.

Rows hold the tokens as they were sampled beside their text, so what is imitated is what was said.
Episodes [reward 1: "4", reward 0: "5"] of one prompt give, with `least: 1`, the demonstration
{"prompt": .., "completion": "4", ..}, and with `pairs` {"prompt": .., "chosen": "4", "rejected":
"5", ..}. Of an answer that a teacher went on with, "4\\n5" after a wrong "4", the wrong part
has weight 0: {"completion": [{"text": "4\\n", "weight": 0}, {"text": "5", "weight": 1}], ..}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rolecall.agents.corrections import IS_WRONG, is_written, wrong_beginning
from rolecall.algorithms.best_of import best_attempts, is_right
from rolecall.algorithms.dpo import Dpo
from rolecall.algorithms.groups import CreditedTurn
from rolecall.config.data_set_export import CollectConfig
from rolecall.core.types import Episode, Turn
from rolecall.data.files import Row

WHAT_NEXT = "What will you be shown next?"  # the question of a row about the world
_COMMON = {
    "id": "text", "task": "text", "episode": "text", "agent": "text", "prompt": "messages",
}  # fmt: skip
_AS_SAMPLED = {"prompt_ids": "ints", "tokenizer": "text"}
COLUMNS = {  # kind of data set -> column -> type, as `rows.writing` knows them
    "demonstrations": _COMMON
    | {
        "completion": "text",
        "parts": "parts",
        "finish": "text",
        "reward": "number",
        "weight": "number",
    }
    | _AS_SAMPLED
    | {"completion_ids": "ints"},
    "preferences": _COMMON
    | {"chosen": "text", "rejected": "text", "chosen_reward": "number", "rejected_reward": "number"}
    | _AS_SAMPLED
    | {"chosen_ids": "ints", "rejected_ids": "ints"},
}


def make_rows(
    episodes: Iterable[Episode], options: CollectConfig, *, tokenizers: Mapping[str, str]
) -> list[Row]:
    """Return the rows that these episodes give; episodes that failed give none.

    `tokenizers`: the fingerprint of each policy's.
    """
    turns = [
        one for episode in episodes if episode.error is None for one in _said(episode, options)
    ]
    if options.pairs:
        return _pairs(turns, options, tokenizers)
    turns = [(episode, turn) for episode, turn in turns if turn.chosen]
    rows: list[Row] = []
    if options.imitate != "world":
        rows += _weighed(_imitated(turns, options, tokenizers), options)
    if options.imitate != "agent":
        rows += _next_states(turns, options.world_weight)
    return rows


def _weighed(rows: list[Row], options: CollectConfig) -> list[Row]:
    """Return rows with their rewards as weights, if that is asked, without those that earned 0."""
    if options.weigh == "alike":
        return rows
    return [row | {"weight": row["reward"]} for row in rows if row["reward"] > 0]


def _imitated(
    found: list[CreditedTurn], options: CollectConfig, tokenizers: Mapping[str, str]
) -> list[Row]:
    """Return the turns that agents said, where it was worth it, as rows."""
    best = found if options.best_of is None else best_attempts(found, options.best_of)
    return [
        _shared(turn)
        | (_as_written(turn) if is_written(turn) else _imitated_tokens(turn, tokenizers))
        | {"finish": turn.finish, "reward": episode.total(turn)}
        for episode, turn in best
        if _is_worth_it(episode, turn, options)
    ]


def _imitated_tokens(turn: Turn, tokenizers: Mapping[str, str]) -> Row:
    completion = {"completion": turn.text, "completion_ids": turn.ids[1].tolist()}
    return _as_sampled(turn, tokenizers) | completion


def _as_written(turn: Turn) -> Row:
    """Return the words that a teacher wrote for an agent, those before them with weight 0."""
    wrong = wrong_beginning(turn)
    if not wrong:
        return {"completion": turn.text}
    right = turn.text[len(wrong) :]
    return {"completion": [{"text": wrong, "weight": 0}, {"text": right, "weight": 1}]}


def _is_worth_it(episode: Episode, turn: Turn, options: CollectConfig) -> bool:
    """Return whether a turn earned enough to learn from.

    With `step_least` a step may be wrong in an attempt that was right, so the outcome and the
    step's own reward are checked apart. What a teacher wrote must have led to a right end by the
    score of the world, by default 1.
    """
    if turn.info.get(IS_WRONG):
        return False
    if is_written(turn):
        return (episode.headline or 0.0) >= (1.0 if options.least is None else options.least)
    if options.step_least is None:
        return _earned_enough(episode.total(turn), options)
    right = is_right(turn, options.step_least)
    return right and _earned_enough(episode.outcome(turn.agent), options)


def _next_states(found: list[CreditedTurn], weight: float) -> list[Row]:
    """Return rows in which an agent answers with what the world showed after its words.

    The world is right whatever an agent did, so these are of all turns after which somebody, the
    agent itself or a teammate, was told of the turn and of what came of it.
    """
    successors = {
        name: turn for _, turn in reversed(found) for name in turn.parents
    }  # the first one
    rows = []
    for _, turn in found:
        later = successors.get(turn.id)
        if later is None or not _was_shown_after(later, turn):
            continue
        row = _shared(turn)
        spoken = {"role": "assistant", "content": turn.text}
        row["prompt"] = [*row["prompt"], spoken, {"role": "user", "content": WHAT_NEXT}]
        row |= {"id": f"{turn.id}/next", "completion": later.observation}
        rows.append(row if weight == 1.0 else row | {"weight": weight})
    return rows


def _said(episode: Episode, options: CollectConfig) -> list[CreditedTurn]:
    """Return the turns that a policy sampled, of the agents asked for or of all trained ones.

    What a teacher wrote for an agent is among them, but not in pairs, which compare tokens.
    """
    return [
        (episode, turn)
        for turn in episode.turns
        if not (options.agents and turn.agent not in options.agents)
        if (is_written(turn) and not options.pairs)
        or ((options.agents or turn.trained) and _was_sampled(turn))
        if not (options.pairs and turn.info.get(IS_WRONG))
    ]


def _was_sampled(turn: Turn) -> bool:
    has_tokens = turn.prompt is not None and turn.tokens is not None and len(turn.tokens) > 0
    return has_tokens and not turn.candidate_error


def _was_shown_after(later: Turn, turn: Turn) -> bool:
    """Return whether a turn was told what the world showed after another, and not only before."""
    text = "\n".join(message.content for message in later.messages)
    words = text.rfind(turn.visible) + len(turn.visible)
    return bool(later.observation) and text.find(str(later.observation), words) >= 0


def _pairs(
    found: list[CreditedTurn], options: CollectConfig, tokenizers: Mapping[str, str]
) -> list[Row]:
    """Return the best with the worst answer to identical prompts, where their tokens differ."""
    for episode, turn in found:
        turn.training.preference = episode.total(turn)
    pairs = Dpo().pairs([turn for _, turn in found])
    return [
        _shared(better)
        | _as_sampled(better, tokenizers)
        | {
            "chosen": better.text,
            "rejected": worse.text,
            "chosen_reward": better.training.preference,
            "rejected_reward": worse.training.preference,
            "chosen_ids": better.ids[1].tolist(),
            "rejected_ids": worse.ids[1].tolist(),
        }
        for better, worse in pairs
        if better.training.preference is not None
        and _earned_enough(better.training.preference, options)
    ]


def _earned_enough(reward: float, options: CollectConfig) -> bool:
    return options.least is None or reward >= options.least


def _shared(turn: Turn) -> Row:
    messages = [{"role": m.role, "content": m.content} for m in turn.messages]
    return {
        "id": turn.id,
        "task": turn.task,
        "episode": turn.episode,
        "agent": turn.agent,
        "prompt": messages,
    }


def _as_sampled(turn: Turn, tokenizers: Mapping[str, str]) -> Row:
    return {"prompt_ids": turn.ids[0].tolist(), "tokenizer": tokenizers[turn.policy]}
