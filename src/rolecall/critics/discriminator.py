"""Learns to tell what agents say from what experts say, and pays agents for being taken for them.

Adversarial inverse RL (1710.11248), with a scorer f for each agent (MA-AIRL, 1907.13220):
D = exp f / (exp f + pi), where log pi is the policy's own log-prob of the utterance, a mean over
its tokens: a sum would swamp f where utterances are long. f is two layers on what a frozen language
model makes of the prompt and of the utterance. With shaping, gamma h(s') - h(s) is added to f: h is
two layers on the prompt s, and s' is the prompt of the agent's next turn. Legend: M turns, W width
of the model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from rolecall.agents.chat_template import encode
from rolecall.agents.control_tokens import controls
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Episode, Ids, Turn, group_by
from rolecall.critics.inputs import CriticInputs
from rolecall.critics.utilities import read_states
from rolecall.learners.forward import LogProbs
from rolecall.learners.optimizer import Stepper
from rolecall.learners.packing import number_turns, pack
from rolecall.models.attention import layouts

HIDDEN = 128  # numbers of the scorer's hidden layer, as published
LARGEST_REWARD = 5.0
REPLAYED = 4  # steps that a discriminator learns from, the newest included

Reward = Literal["logit", "raw"]


def discrimination_loss(expert: Tensor, policy: Tensor) -> Tensor:
    """Return the cross-entropy of logits f - log pi [M], with label 1 for experts and 0 for
    policies.

    The sum of both halves' means: D = .5 everywhere -> 2 ln 2 = 1.386294.
    """
    return softplus(-expert).mean() + softplus(policy).mean()


def discriminator_reward(scores: Tensor, logprobs: Tensor, *, kind: Reward) -> Tensor:
    """Compute log D - log(1 - D) = f - log pi, or f itself (`raw`), clamped to -5 .. 5: [M].

    f .5, log pi -1: D = .817574, so 1.5.
    """
    rewards = scores - logprobs if kind == "logit" else scores
    return rewards.clamp(-LARGEST_REWARD, LARGEST_REWARD)


def find_followers(turns: Iterable[Turn]) -> dict[Turn, Turn]:
    """Return the next turn in the episode of each of an agent's turns that has one."""
    last: dict[str, Turn] = {}
    followers: dict[Turn, Turn] = {}
    for turn in turns:
        if (before := last.get(turn.episode)) is not None:
            followers[before] = turn
        last[turn.episode] = turn
    return followers


@dataclass(frozen=True, slots=True)
class Seen:
    """Holds what an agent and its experts said in a step, as the scorer read it."""

    agent: str
    expert: Tensor  # [M, 2 W]; with shaping [M, 3 W + 1]: the next prompt, and whether there is one
    expert_logprobs: Tensor  # [M] means over tokens, under the policy of that step
    policy: Tensor  # as `expert`
    policy_logprobs: Tensor  # [M]


class Discriminator:
    """A scorer for each agent, whom its experts, and how both learn."""

    def __init__(
        self,
        parts: CriticInputs,
        experts: dict[str, list[Turn]],
        *,
        reward: Reward = "logit",
        shaping: float | None = None,
    ) -> None:
        """Make the scorers of the agents of `experts`, the turns that each should have said.

        `shaping`: gamma of the potential; None: there is none.
        """
        self.reader, self.models, self.budget = parts.load(), parts.models, parts.budget
        self.experts, self.reward, self.seed = experts, reward, parts.seed
        self.shaping, self.width = shaping, self.reader.hidden_size
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(parts.seed)
            scorers = {agent: _scorer(2 * self.width) for agent in sorted(experts)}
            if shaping is not None:
                potentials = {f"h/{agent}": _scorer(self.width) for agent in sorted(experts)}
                scorers |= potentials
            self.scorers = nn.ModuleDict(scorers)
        self.scorers.to(self.reader.device)
        parameters = list(self.scorers.parameters())
        self.stepper = Stepper(parameters, parts.optimizer, total=parts.steps)
        self.replay: deque[list[Seen]] = deque(maxlen=REPLAYED)
        self._seen: list[Seen] = []

    async def annotate(self, episodes: list[Episode]) -> None:
        """Write the inner reward of each trained turn."""
        trained = [t for e in episodes for t in e.turns if t.trained and t.chosen]
        sampled = [t for t in trained if t.tokens is not None and t.agent in self.experts]
        self._seen = []
        with torch.no_grad():
            for turns in group_by(sampled, "agent"):
                seen = self._read(turns)
                scores = self._scores(seen.agent, seen.policy)
                rewards = discriminator_reward(scores, seen.policy_logprobs, kind=self.reward)
                for turn, reward in zip(turns, rewards.tolist(), strict=True):
                    turn.training.inner_reward = reward
                self._seen.append(seen)

    def fit(self) -> dict[str, float]:
        """Take one step on the turns that were annotated last and on those of the steps before."""
        if not self._seen:
            return {}
        self.replay.append(self._seen)
        self._seen = []
        examples = [seen for step in self.replay for seen in step]
        losses, experts, policies = [], [], []
        for seen in examples:
            expert = self._scores(seen.agent, seen.expert) - seen.expert_logprobs
            policy = self._scores(seen.agent, seen.policy) - seen.policy_logprobs
            losses.append(discrimination_loss(expert, policy))
            experts.append(expert.detach().sigmoid().mean())
            policies.append(policy.detach().sigmoid().mean())
        loss = torch.stack(losses).sum()
        loss.backward()
        self.stepper.step(len(losses))
        return {
            "loss": loss.item() / len(losses),
            "taken_for_expert/experts": torch.stack(experts).mean().item(),
            "taken_for_expert/agents": torch.stack(policies).mean().item(),
        }

    def _read(self, turns: list[Turn]) -> Seen:
        """Return the features of an agent's turns and of as many of its experts' turns."""
        agent, demonstrations = turns[0].agent, self.experts[turns[0].agent]
        random = Random(derive_seed(self.seed, agent, self.stepper.num_steps))
        whole, rest = divmod(len(turns), len(demonstrations))
        experts = demonstrations * whole + random.sample(demonstrations, rest)
        assert all(turn.logprobs is not None for turn in turns), "an engine has sampled them"
        own = [float(np.mean(turn.logprobs)) for turn in turns]  # type: ignore[arg-type]
        logprobs = self._logprobs(experts, turns[0].policy)
        return Seen(
            agent=agent,
            expert=self._states(experts, demonstrations),
            expert_logprobs=logprobs.to(self.reader.device),
            policy=self._states(turns, turns),
            policy_logprobs=torch.tensor(own, device=self.reader.device),
        )

    def _logprobs(self, turns: list[Turn], policy: str) -> Tensor:
        """Return the policy's mean log-prob of the tokens of each turn, which others said: [M]."""
        model, means = self.models[policy], dict[Turn, Tensor]()
        original, distinct = number_turns(list(dict.fromkeys(turns)))
        for batch in pack(distinct, budget=self.budget, share=model.shares_prefixes):
            logprobs, _, _ = LogProbs(model)(batch, entropy=False, hidden=False)
            of = batch.turn[batch.mask > 0]
            for number, name in enumerate(batch.turn_ids):
                means[original[name]] = logprobs[torch.from_numpy(of == number)].mean()
        return torch.stack([means[turn] for turn in turns])

    def _states(self, turns: list[Turn], conversations: list[Turn]) -> Tensor:
        """Return the features of turns, with shaping those of the prompts after them: see Seen.

        `conversations`: all turns of their episodes, in order.
        """
        features = self._features(turns)
        if self.shaping is None:
            return features
        followers = find_followers(conversations)
        followed = [turn for turn in turns if turn in followers]
        after = features.new_zeros(len(turns), self.width + 1)
        if followed:
            rows = torch.tensor([number for number, turn in enumerate(turns) if turn in followers])
            prompts = self._features([followers[turn] for turn in followed])[:, : self.width]
            after[rows, :-1], after[rows, -1] = prompts, 1.0
        return torch.cat([features, after], 1)

    def _features(self, turns: list[Turn]) -> Tensor:
        """Mean hidden state of the prompt, and of the utterance, of each turn: [M, 2 W]."""
        features = []
        for rows in self._batches(turns):
            lengths = [len(prompt) + len(utterance) for prompt, utterance in rows]
            layout = layouts.Rows(lengths, device=self.reader.device)
            tokens = torch.from_numpy(np.concatenate([ids for row in rows for ids in row]))
            hidden = read_states(self.reader, tokens.long().to(self.reader.device), layout)
            sizes = [len(ids) for row in rows for ids in row]
            means = [states.mean(0) for states in hidden.split(sizes)]
            features.append(torch.stack(means).reshape(len(rows), -1))
        return torch.cat(features)

    def _batches(self, turns: list[Turn]) -> Iterator[list[tuple[Ids, Ids]]]:
        rows: list[tuple[Ids, Ids]] = []
        size = 0
        for turn in turns:
            prompt, utterance = self._as_read(turn)
            if rows and size + len(prompt) + len(utterance) > self.budget:
                yield rows
                rows, size = [], 0
            rows.append((prompt, utterance))
            size += len(prompt) + len(utterance)
        yield rows

    def _as_read(self, turn: Turn) -> tuple[Ids, Ids]:
        """Prompt and utterance in the reader's tokens; of long ones the prompt's end stays."""
        tokenizer = self.reader.tokenizer
        control_tokens, longest = controls(tokenizer), self.reader.max_length

        def ids(name: str, text: str) -> Ids:
            return encode(tokenizer, f"[{name}]\n{control_tokens.broken(text, framed=True)}\n\n")

        prompt = np.concatenate([ids(m.role, m.content) for m in turn.messages])
        utterance = ids(turn.agent, turn.text)[: longest - 1]
        return prompt[-(longest - len(utterance)) :].astype(np.int32), utterance.astype(np.int32)

    def _scores(self, agent: str, features: Tensor) -> Tensor:
        """Return f [M], an agent's scores of its turns."""
        scores: Tensor = self.scorers[agent](features[:, : 2 * self.width])[:, 0]
        if self.shaping is None:
            return scores
        potential = self.scorers[f"h/{agent}"]
        after, follows = features[:, 2 * self.width : -1], features[:, -1]
        added = self.shaping * follows * potential(after)[:, 0]
        return scores + added - potential(features[:, : self.width])[:, 0]

    def save(self, folder: Path) -> None:
        """Save the scorers, the optimizer's state and the replay."""
        replay = [[_as_state(seen) for seen in step] for step in self.replay]
        state = {
            "scorers": self.scorers.state_dict(), "stepper": self.stepper.state_dict(),
            "replay": replay,
        }  # fmt: skip
        torch.save(state, folder / "critic.pt")

    def load(self, folder: Path) -> None:
        where = self.reader.device
        state = torch.load(folder / "critic.pt", weights_only=True, map_location=where)
        self.scorers.load_state_dict(state["scorers"])
        self.stepper.load_state_dict(state["stepper"])
        self.replay.clear()
        self.replay.extend([Seen(**seen) for seen in step] for step in state["replay"])


def _as_state(seen: Seen) -> dict[str, str | Tensor]:
    return {name: getattr(seen, name) for name in Seen.__slots__}


def _scorer(width: int) -> nn.Sequential:
    """Make the network that computes f of a turn; f is zero at first."""
    last = nn.Linear(HIDDEN, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), last)
