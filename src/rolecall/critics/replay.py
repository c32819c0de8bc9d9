"""Learns utilities from a replay of earlier episodes, as VDN and QMIX do, and ranks candidates.

Every agent samples several candidates; q of each is read off where it ends. The team's value is
learned by double Q-learning towards a copy of the heads and the mixer (1706.05296, 1803.11485).
"""

from __future__ import annotations

import copy
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rolecall.core.types import Episode, Turn
from rolecall.critics.mixers import double_q_target
from rolecall.critics.utilities import UtilityCritic
from rolecall.runtime.turn_order import joint_steps
from rolecall.storage.episode_io import from_json, to_json

Remembered = tuple[Episode, list[float]]  # an episode, and the reward of each joint step


@dataclass(slots=True)
class Rows:
    """Joint steps of some episodes; U = most candidates that one of their agents had."""

    active: Tensor  # [B, A] bool
    there: Tensor  # [B, A, U] bool: candidates that there were
    played: Tensor  # [B, A] number of the candidate that was played
    features: list[tuple[str, Tensor, Tensor]]  # policy, places [n, 3] in B, A, U, states [n, W]
    state: Tensor  # [B, W] of the mixer's reader
    reward: Tensor  # [B]
    after: Tensor  # [B] row of the next joint step; its own, where the episode is over
    done: Tensor  # [B] bool


class ReplayCritic(UtilityCritic):
    """Utilities of candidates, their copy, and the episodes that they are learned from."""

    def __init__(self, *arguments: Any, buffer: int, seed: int = 0, **options: Any) -> None:
        """`buffer`: most episodes; the oldest give way."""
        super().__init__(*arguments, seed=seed, **options)
        self.copied = copy.deepcopy(self.whole)
        self.episodes: deque[Remembered] = deque(maxlen=buffer)
        self.since_copy = 0  # episodes played since the copy was made
        self.num_learned = 0  # optimizer steps; the replay's draws derive from it
        self.seed = seed

    async def predict_values(self, turns: list[Turn]) -> list[float]:
        """Return q of each of an agent's candidates."""
        with torch.no_grad():
            seen = self._read_turns(turns)
            states = torch.stack([seen[turn][1] for turn in turns])
            return [float(q) for q in self.heads[turns[0].policy](states)[:, 1]]

    async def annotate(self, episodes: list[Episode]) -> None:
        """Write `preference` on every turn of the team: its q."""
        turns = [t for e in episodes for t in e.turns if t.policy in self.models and t.trained]
        with torch.no_grad():
            seen = self._read_turns(turns)
            for turn in turns:
                turn.training.preference = float(self.heads[turn.policy](seen[turn][1])[1])

    def remember(self, episodes: Sequence[Remembered]) -> None:
        self.episodes.extend(episodes)
        self.since_copy += len(episodes)

    def learn(self, *, gamma: float, batch: int, updates: int, copy_every: int) -> dict[str, float]:
        """Optimizer steps on episodes drawn from the replay; the mean loss of them.

        `copy_every`: episodes after which the copy is made anew.
        """
        if not self.episodes:
            return {}
        losses, values = [], []
        for _ in range(updates):
            random = np.random.default_rng((self.seed, self.num_learned))
            number = min(batch, len(self.episodes))
            drawn = random.choice(len(self.episodes), number, replace=False)
            rows = self._make_rows([self.episodes[index] for index in sorted(drawn)])
            team = self._team_values(rows)
            targets = self._targets(rows, gamma=gamma)
            loss = ((team - targets) ** 2).sum()
            loss.backward()
            self.stepper.step(len(targets))
            self.num_learned += 1
            losses.append(loss.item() / len(targets))
            values.append(float(targets.mean()))
        if self.since_copy >= copy_every:
            self.copied.load_state_dict(self.whole.state_dict())
            self.since_copy = 0
        return {
            "loss": float(np.mean(losses)), "target": float(np.mean(values)),
            "replay": float(len(self.episodes)), "updates": float(len(losses)),
        }  # fmt: skip

    def _team_values(self, rows: Rows) -> Tensor:
        """Return the team's values of what was played: [B]."""
        q = _utilities(self.heads, rows)
        mine = q.gather(-1, rows.played[..., None])[..., 0]
        values: Tensor = self.mixer(mine, self.project(rows.state), rows.active)
        return values

    @torch.no_grad()
    def _targets(self, rows: Rows, *, gamma: float) -> Tensor:
        heads, project, mixer = self.copied
        live = _utilities(self.heads, rows).masked_fill(~rows.there, -torch.inf)
        return double_q_target(
            mixer,
            rows.reward,
            done=rows.done,
            live=live[rows.after],
            target=_utilities(heads, rows)[rows.after],
            state=project(rows.state)[rows.after],
            active=rows.active[rows.after],
            gamma=gamma,
        )

    def _make_rows(self, remembered: list[Remembered]) -> Rows:
        episodes = [episode for episode, _ in remembered]
        joint = self._joint_steps(episodes)
        candidates = [_candidates(episode) for episode in episodes]
        device = joint.active.device
        played_turns: list[tuple[int, int, list[Turn], int]] = []  # row, column, candidates, played
        after, done, row = [], [], 0
        for episode, siblings in zip(episodes, candidates, strict=True):
            steps = joint_steps(episode)
            for number, step in enumerate(steps):
                last = number == len(steps) - 1
                after.append(row if last else row + 1)
                done.append(last)
                for turn in step:
                    those = siblings.get(turn.id, [turn])
                    played_turns.append(
                        (row, self.agents.index(turn.agent), those, those.index(turn))
                    )
                row += 1
        most = max(len(those) for _, _, those, _ in played_turns)
        shape = (row, len(self.agents))
        there = torch.zeros(*shape, most, dtype=torch.bool)
        there[..., 0] = True  # so that an agent without a turn has an argmax, which nobody reads
        played = torch.zeros(shape, dtype=torch.long)
        with torch.no_grad():
            seen = self._read_turns([turn for _, _, those, _ in played_turns for turn in those])
        of_policy: dict[str, list[tuple[tuple[int, int, int], Tensor]]] = {}
        for b, a, those, number in played_turns:
            played[b, a] = number
            for u, turn in enumerate(those):
                there[b, a, u] = True
                of_policy.setdefault(turn.policy, []).append(((b, a, u), seen[turn][1]))
        rewards = [reward for _, earned in remembered for reward in earned]
        return Rows(
            active=joint.active,
            there=there.to(device),
            played=played.to(device),
            features=[
                (policy, torch.tensor([index for index, _ in those]).to(device),
                 torch.stack([state for _, state in those]))
                for policy, those in sorted(of_policy.items())
            ],
            state=joint.state,
            reward=torch.tensor(rewards, dtype=torch.float32, device=device),
            after=torch.tensor(after, device=device),
            done=torch.tensor(done, device=device),
        )  # fmt: skip

    def save(self, folder: Path) -> None:
        super().save(folder)
        with (folder / "replay.jsonl").open("w") as file:
            for episode, rewards in self.episodes:
                file.write(f"{to_json(episode)}\n{json.dumps(rewards)}\n")
        counts = {"since_copy": self.since_copy, "num_learned": self.num_learned}
        torch.save(counts | {"copied": self.copied.state_dict()}, folder / "replay.pt")

    def load(self, folder: Path) -> None:
        super().load(folder)
        lines = (folder / "replay.jsonl").read_text().splitlines()
        self.episodes.clear()
        for episode, rewards in zip(lines[::2], lines[1::2], strict=True):
            self.episodes.append((from_json(episode), json.loads(rewards)))
        state = torch.load(folder / "replay.pt", weights_only=True)
        self.since_copy, self.num_learned = state["since_copy"], state["num_learned"]
        self.copied.load_state_dict(state["copied"])


def _utilities(heads: Any, rows: Rows) -> Tensor:
    """Return q of all candidates by the policies' heads: [B, A, U]; 0 where there is none."""
    utilities = torch.zeros(rows.there.shape, device=rows.there.device)
    for policy, places, states in rows.features:
        utilities = utilities.index_put(tuple(places.T), heads[policy](states)[:, 1])
    return utilities


def _candidates(episode: Episode) -> dict[str, list[Turn]]:
    """Return, by the id of each played candidate, all that were sampled with it."""
    calls: dict[tuple[int, ...], list[Turn]] = {}
    for turn in episode.turns:
        if turn.candidate is not None and not turn.candidate_error:
            calls.setdefault(turn.path[:-1], []).append(turn)
    return {turn.id: those for those in calls.values() for turn in those if turn.chosen}
