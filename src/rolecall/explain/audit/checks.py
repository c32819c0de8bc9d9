"""Faults of credit that a dump of samples shows, each found by one function.

A check yields findings, or raises `NotPossibleError` where the dump does not have what it needs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, pstdev

from rolecall.explain.audit.samples import Sample, by_agent, by_group, list_rewards

TOLERANCE = 1e-3  # relative, of advantages that dumps round
LARGEST_GAP = 0.1  # mean difference of log-probs, in nats, between engines with the same weights
LEAST_WORDS = 8  # letters of a turn that is looked for in later prompts
CHANCE = -20.0  # log-probability below which the same answer is not sampled twice
TOOL_MARKS = ("<tool_response>", "<information>", "<result>", "<observation>", "<output>")


class NotPossibleError(Exception):
    """Says what a dump lacks for a check."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault, in one line, and where it is."""

    check: str
    message: str
    places: list[str] = field(default_factory=list)


Check = Callable[[list[Sample]], Iterator[Finding]]


def mixed_prompts(samples: list[Sample]) -> Iterator[Finding]:
    """Find groups whose samples answer different prompts."""
    groups = _groups(samples)
    if all(sample.prompt is None and sample.prompt_ids is None for sample in samples):
        raise NotPossibleError("there are no prompts")
    for name, members in groups.items():
        for agent, spoken in by_agent(_first_turns(members)).items():
            prompts = {_prompt_key(sample) for sample in spoken} - {None}
            if len(prompts) > 1:
                whose = f" of {agent}" if agent else ""
                yield Finding(
                    "mixed prompts",
                    f"group {name} compares answers{whose} to {len(prompts)} different prompts",
                    _places(spoken),
                )


def mixed_roles(samples: list[Sample]) -> Iterator[Finding]:
    """Find groups in which agents are measured from one mean, though their rewards differ."""
    groups = _groups(samples)
    if len(by_agent(samples)) < 2:
        raise NotPossibleError("no agents are named")
    _need_advantages(samples)
    for name, members in groups.items():
        credited = [s for s in members if s.reward is not None and s.advantage is not None]
        agents = by_agent(credited)
        means = [fmean(list_rewards(own)) for own in agents.values()]
        spread = pstdev(list_rewards(credited)) if len(credited) > 1 else 0.0
        if len(agents) < 2 or not spread or max(means) - min(means) < 0.25 * spread:
            continue
        if _is_relative_to(credited) and not all(map(_is_relative_to, agents.values())):
            yield Finding(
                "mixed roles",
                f"group {name} measures {', '.join(sorted(agents))} from one mean, although their "
                f"own means are {', '.join(f'{mean:.3g}' for mean in means)}",
                _places(credited),
            )


def groups_of_one(samples: list[Sample]) -> Iterator[Finding]:
    """Find samples that are compared with nobody and are pushed all the same."""
    groups = _groups(samples)
    sizes = {name: len(_episodes(members)) for name, members in groups.items()}
    if all(size == 1 for size in sizes.values()) and len(groups) > 1:
        raise NotPossibleError("every group is of one sample, as where a critic gives credit")
    for name, members in groups.items():
        if sizes[name] == 1 and any(s.is_pushed is not False for s in members):
            advantage = members[0].advantage
            pushed = "" if advantage is None else f", and has the advantage {advantage:+.3g}"
            yield Finding(
                "group of one",
                f"group {name} has a single sample, which is compared with nobody{pushed}",
                _places(members),
            )


def failed_as_zero(samples: list[Sample]) -> Iterator[Finding]:
    """Find failed episodes that count as if they had earned 0."""
    if all(sample.error is None for sample in samples):
        raise NotPossibleError("nothing says which episodes failed")
    for sample in samples:
        if sample.error and sample.reward is not None and sample.is_pushed is not False:
            yield Finding(
                "failed episode counted",
                f"sample {sample.id} failed ({sample.error[:60]}) and counts with the reward "
                f"{sample.reward:g}; leave it out of its group",
                [sample.source],
            )


def truncated_as_zero(samples: list[Sample]) -> Iterator[Finding]:
    """Find answers that were cut off, and count as if they were wrong."""
    if all(sample.is_truncated is None for sample in samples):
        raise NotPossibleError("nothing says which answers were cut off")
    for sample in samples:
        is_counted = sample.reward == 0.0 and sample.is_pushed is not False
        if sample.is_truncated and is_counted and not sample.error:
            yield Finding(
                "truncated sample counted",
                f"sample {sample.id} was cut by its length limit and counts as 0; mask it, or "
                "pay it for what it is",
                [sample.source],
            )


def constant_rewards(samples: list[Sample]) -> Iterator[Finding]:
    """Find groups whose rewards are equal and whose advantages are not 0."""
    groups = _groups(samples)
    _need_advantages(samples)
    if not _is_group_relative(groups):
        raise NotPossibleError("advantages do not follow from the groups' means")
    for name, members in groups.items():
        rewards = list_rewards(members)
        pushed = [sample for sample in members if sample.is_pushed]
        if len(members) > 1 and len(rewards) == len(members) and len({*rewards}) == 1 and pushed:
            yield Finding(
                "constant rewards pushed",
                f"all {len(members)} samples of group {name} earned {rewards[0]:g}, yet have the "
                f"advantage {pushed[0].advantage:+.3g}",
                _places(pushed),
            )


def loss_on_prompt(samples: list[Sample]) -> Iterator[Finding]:
    """Find tokens of a prompt, a tool or the world that have a loss."""
    if all(sample.mask is None for sample in samples):
        raise NotPossibleError("there is no loss mask")
    for sample in samples:
        if sample.mask is None:
            continue
        response, prompt = _split_mask(sample)
        foreign = sample.is_foreign or [False] * len(response)
        on_foreign = sum(m and f for m, f in zip(response, foreign, strict=False))
        marks = [mark for mark in TOOL_MARKS if mark in sample.text]
        if any(prompt):
            what = f"{sum(prompt)} tokens of its prompt"
        elif on_foreign:
            what = f"{on_foreign} tokens of a tool"
        elif marks and response and all(response):
            what = f"all tokens, those in {marks[0]} among them"
        else:
            continue
        yield Finding(
            "loss on foreign tokens", f"sample {sample.id} has a loss on {what}", [sample.source]
        )


def tokenised_again(samples: list[Sample]) -> Iterator[Finding]:
    """Find turns whose words stand in a later prompt with other tokens than were sampled."""
    chains: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.episode is not None and sample.prompt_ids is not None and sample.ids is not None:
            chains[sample.episode, sample.agent].append(sample)
    turns = [chain for chain in chains.values() if len(chain) > 1]
    if not turns:
        raise NotPossibleError("there are no token ids of several turns of an episode")
    for chain in turns:
        for before, after in pairwise(chain):
            ids, prompt = before.ids or [], after.prompt_ids or []
            says_it = len(before.text) >= LEAST_WORDS and before.text in (after.prompt or "")
            if says_it and len(ids) > 1 and not _contains(prompt, ids[:-1]):
                yield Finding(
                    "tokenised again",
                    f"the prompt of {after.id} has the words of {before.id} with other tokens than "
                    "were sampled",
                    [before.source, after.source],
                )


def other_version(samples: list[Sample]) -> Iterator[Finding]:
    """Find log-probs that are not of the weights that sampled, or not of the sampled tokens."""
    has_versions = any(s.versions and s.trainer_version is not None for s in samples)
    if all(s.sampler_logprobs is None for s in samples) and not has_versions:
        raise NotPossibleError("there are no log-probs and no versions")
    for sample in samples:
        old = [v for v in sample.versions or [] if v != sample.trainer_version]
        problem = _logprob_problem(sample)
        if problem:
            yield Finding("log-probs differ", f"sample {sample.id} {problem}", [sample.source])
        elif sample.trainer_version is not None and old and sample.sampler_logprobs is None:
            yield Finding(
                "log-probs of another version",
                f"sample {sample.id} was sampled by version {old[0]} and is trained on by version "
                f"{sample.trainer_version} without the log-probs of its sampler",
                [sample.source],
            )


def rewards_overwritten(samples: list[Sample]) -> Iterator[Finding]:
    """Find rewards that are not the sum of their terms."""
    if not any(sample.reward_parts for sample in samples):
        raise NotPossibleError("rewards are not told apart by name or step")
    for sample in samples:
        if not sample.reward_parts or sample.reward is None:
            continue
        total = sum(sample.reward_parts.values())
        if abs(total - sample.reward) > TOLERANCE * max(1.0, abs(total)):
            terms = ", ".join(f"{name} {v:g}" for name, v in sample.reward_parts.items())
            yield Finding(
                "reward overwritten",
                f"sample {sample.id} has the reward {sample.reward:g}, but {terms} make {total:g}",
                [sample.source],
            )


def duplicates(samples: list[Sample]) -> Iterator[Finding]:
    """Find samples that stand in the dump twice: by their id, or by an answer that is too unlikely
    to be sampled a second time.
    """
    seen: dict[object, Sample] = {}
    for sample in samples:
        keys: list[object] = [("id", sample.id)]
        if sample.ids is not None and sum(sample.sampler_logprobs or []) < CHANCE:
            keys.append((sample.group, sample.agent, tuple(sample.ids)))
        for key in keys:
            first = seen.setdefault(key, sample)
            if first is not sample:
                yield Finding(
                    "duplicated sample",
                    f"sample {sample.id} is there twice",
                    [first.source, sample.source],
                )
                break


def missing(samples: list[Sample]) -> Iterator[Finding]:
    """Find groups that have fewer attempts than the others."""
    groups = _groups(samples)
    sizes = {name: len(_episodes(members)) for name, members in groups.items()}
    usual, number = Counter(sizes.values()).most_common(1)[0]
    if number * 2 <= len(sizes):
        raise NotPossibleError("groups have no usual size")
    for name, size in sizes.items():
        if 1 < size < usual:
            yield Finding(
                "missing samples",
                f"group {name} has {size} attempts of {usual}",
                _places(groups[name])[:1],
            )


CHECKS: dict[str, Check] = {
    "mixed prompts": mixed_prompts,
    "mixed roles": mixed_roles,
    "group of one": groups_of_one,
    "failed episode counted": failed_as_zero,
    "truncated sample counted": truncated_as_zero,
    "constant rewards pushed": constant_rewards,
    "loss on foreign tokens": loss_on_prompt,
    "tokenised again": tokenised_again,
    "log-probs of another version": other_version,
    "reward overwritten": rewards_overwritten,
    "duplicated sample": duplicates,
    "missing samples": missing,
}


# --- what checks share ---


def _groups(samples: list[Sample]) -> dict[str, list[Sample]]:
    groups = by_group(samples)
    if not groups:
        raise NotPossibleError("nothing says which samples are compared")
    return groups


def _need_advantages(samples: list[Sample]) -> None:
    if all(sample.advantages is None for sample in samples):
        raise NotPossibleError("there are no advantages")


def _episodes(samples: list[Sample]) -> set[str]:
    return {sample.episode or sample.id for sample in samples}


def _first_turns(samples: list[Sample]) -> list[Sample]:
    """Return each agent's first sample of each episode: later prompts hold what was said."""
    first: dict[tuple[str, str], Sample] = {}
    for sample in samples:
        first.setdefault((sample.episode or sample.id, sample.agent), sample)
    return list(first.values())


def _prompt_key(sample: Sample) -> str | None:
    if sample.prompt is not None:
        return " ".join(sample.prompt.split())
    return None if sample.prompt_ids is None else str(sample.prompt_ids)


def _places(samples: list[Sample]) -> list[str]:
    return [sample.source for sample in samples]


def _is_relative_to(samples: list[Sample]) -> bool:
    """Return whether the advantages are (reward - mean) times one number that is above 0."""
    rewards, advantages = list_rewards(samples), [s.advantage or 0.0 for s in samples]
    if len(rewards) != len(advantages) or len(rewards) < 2:
        return False
    mean = fmean(rewards)
    gains = [reward - mean for reward in rewards]
    square = sum(gain * gain for gain in gains)
    if not square:
        return False
    scale = sum(g * a for g, a in zip(gains, advantages, strict=True)) / square
    worst = max(abs(scale * g - a) for g, a in zip(gains, advantages, strict=True))
    return scale > 0 and worst <= 10 * TOLERANCE * max(1.0, max(map(abs, advantages)))


def _is_group_relative(groups: dict[str, list[Sample]]) -> bool:
    """Return whether most groups with different rewards have advantages from their mean."""
    varied = [members for members in groups.values() if len({*list_rewards(members)}) > 1]
    return sum(map(_is_relative_to, varied)) * 2 >= len(varied)


def _split_mask(sample: Sample) -> tuple[list[bool], list[bool]]:
    """Return the mask of the response, and of the prompt where it is in it."""
    mask = [bool(one) for one in sample.mask or []]
    if sample.ids is None or len(mask) <= len(sample.ids):
        return mask, []
    return mask[-len(sample.ids) :], mask[: -len(sample.ids)]


def _contains(ids: list[int], term: list[int]) -> bool:
    first, size = term[0], len(term)
    starts = (i for i, one in enumerate(ids[: len(ids) - size + 1]) if one == first)
    return any(ids[start : start + size] == term for start in starts)


def _logprob_problem(sample: Sample) -> str:
    logprobs, others = sample.sampler_logprobs, sample.trainer_logprobs
    if logprobs is None:
        return ""
    lengths = {len(sample.ids)} if sample.ids is not None else set()
    if sample.mask is not None:
        lengths.add(sum(map(bool, sample.mask)))
    if lengths and len(logprobs) not in lengths:
        return f"has {len(logprobs)} log-probs for {max(lengths)} tokens"
    if any(value > 1e-4 for value in logprobs):
        return f"has the log-prob {max(logprobs):+.3g}, which is above 0"
    if others is not None and len(others) == len(logprobs) and logprobs:
        gap = fmean(abs(a - b) for a, b in zip(logprobs, others, strict=True))
        if gap > LARGEST_GAP:
            return (
                f"has log-probs that differ by {gap:.2g} nats a token between sampler and learner: "
                "they are of other weights, another temperature or other tokens"
            )
    return ""
