"""Audits our own runs: groups and advantages are computed again from what episodes earned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from pathlib import Path
from statistics import fmean

from rolecall.core.credit import Compared, StepAdvantage, TokenAdvantage
from rolecall.core.types import Episode, Turn
from rolecall.explain.audit.checks import Finding, NotPossibleError
from rolecall.explain.audit.samples import Sample
from rolecall.explain.turns import is_reproduced
from rolecall.storage.episode_io import read_parquet

CLOSE = 1e-9
Key = tuple[tuple[str, str], ...]


def read_own(file: Path) -> tuple[list[Episode], list[Sample]]:
    """Return the episodes of a step's file, and its trained turns as samples."""
    episodes = read_parquet(file)
    samples = [
        _sample(turn, episode, file)
        for episode in episodes
        for turn in episode.turns
        if turn.trained and turn.tokens is not None
    ]
    return episodes, samples


def check_advantages(episodes: list[Episode]) -> Iterator[Finding]:
    """Find turns whose advantages are not what their recorded credit comes to."""
    turns = [turn for episode in episodes for turn in episode.turns]
    recorded = [turn for turn in turns if turn.training.credit]
    if not recorded and any(map(_has_unexplained_advantage, turns)):
        raise NotPossibleError(
            "no credit is recorded: the file is of an earlier version, or the algorithm sets "
            "advantages without `give_credit`"
        )
    for turn in recorded:
        if not is_reproduced(turn):
            yield Finding(
                "advantage changed",
                f"the advantage of {turn.id} is not what its credit comes to",
                [turn.id],
            )


def _has_unexplained_advantage(turn: Turn) -> bool:
    """Return whether a turn has an advantage that no record explains; 0 is that of no term."""
    if turn.advantages is None:
        return False
    return turn.training.credit is None or bool(turn.advantages.any())


def check_outcomes(episodes: list[Episode]) -> Iterator[Finding]:
    """Find turns whose credit counts another outcome than their episode has."""
    for episode in episodes:
        for turn in episode.turns:
            if turn.training.inner_reward is not None:
                continue  # a discriminator pays it, and the world's outcome is left out
            for term in turn.training.credit or ():
                if not isinstance(term, Compared | TokenAdvantage | StepAdvantage):
                    continue
                counted = term.made_of.get("outcome")
                paid = turn.paid if isinstance(term, Compared) else None
                expected = episode.outcome(turn.agent) + (paid or 0.0)
                is_mean = isinstance(term, TokenAdvantage)  # where all agents share one chain
                if counted is None or (is_mean and len(episode.rewards) > 1):
                    continue
                if abs(counted - expected) > CLOSE:
                    yield Finding(
                        "reward overwritten",
                        f"the credit of {turn.id} counts the outcome {counted:g}, and its episode "
                        f"has {expected:g}",
                        [turn.id],
                    )


def check_groups(episodes: list[Episode]) -> Iterator[Finding]:
    """Find means that are not those of the turns in the group."""
    groups: dict[Key, list[tuple[Episode, Turn, Compared]]] = defaultdict(list)
    for episode in episodes:
        for turn in episode.turns:
            for term in turn.training.credit or ():
                if not isinstance(term, Compared) or "task" not in term.key:
                    continue
                if term.baseline == "mean" and term.sample != "call":
                    key = (*term.key.items(), ("sample", term.sample))
                    groups[key].append((episode, turn, term))
    for key, members in groups.items():
        means = {term.mean for _, _, term in members if term.mean is not None}
        scores: dict[Hashable, list[float]] = defaultdict(list)
        for episode, turn, term in members:
            scores[_identify_sample(episode, turn, term)].append(term.score)
        expected = fmean(map(fmean, scores.values()))
        name = ", ".join(value for _, value in key[:-1])
        if len(means) > 1 or any(abs(mean - expected) > CLOSE for mean in means):
            yield Finding(
                "wrong mean",
                f"the {len(members)} turns of {name} are measured from "
                f"{', '.join(f'{mean:.4g}' for mean in sorted(means))}, and their mean is "
                f"{expected:.4g}",
                [turn.id for _, turn, _ in members[:3]],
            )


def check_failed(episodes: list[Episode]) -> Iterator[Finding]:
    """Find failed episodes that are trained on."""
    for episode in episodes:
        pushed = [turn for turn in episode.turns if turn.advantages is not None]
        if episode.error is not None and pushed:
            yield Finding(
                "failed episode counted",
                f"episode {episode.id} failed ({episode.error[:60]}) and is trained on",
                [episode.id],
            )


def _identify_sample(episode: Episode, turn: Turn, term: Compared) -> Hashable:
    """Return what tells samples apart, as `algorithms.groups.compare` does."""
    if term.sample != "episode_agent":
        return turn.id
    is_team = term.own is not None and turn.paid is None
    return episode.id, episode.owner(turn.agent) if is_team else turn.agent


def _sample(turn: Turn, episode: Episode, file: Path) -> Sample:
    return Sample(
        id=turn.id,
        source=f"{file.name} {turn.id}",
        group=f"{turn.task}",
        episode=episode.id,
        agent=turn.agent,
        attempt=episode.attempt,
        prompt=episode.task.prompt,
        text=turn.text,
        reward=episode.total(turn),
        advantages=None if turn.advantages is None else turn.advantages.tolist(),
        ids=None if turn.tokens is None else turn.tokens.tolist(),
        sampler_logprobs=None if turn.logprobs is None else turn.logprobs.tolist(),
        error=episode.error or "",
    )
