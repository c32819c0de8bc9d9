"""A critic that learns each agent's utility and mixes them into the team's value (VDN, QMIX).

Two heads read each policy's own model, frozen for this purpose: v where the prompt ends, q where
the turn ends. The mixer reads the conversation so far through a frozen language model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from rolecall.config.optimizer import Optimizer
from rolecall.core.types import Episode, Turn, Utility
from rolecall.critics.inputs import CriticInputs
from rolecall.critics.mixers import Qmix, Vdn, advantages
from rolecall.critics.transcript import Transcript, transcripts
from rolecall.learners.optimizer import Stepper
from rolecall.learners.packing import number_turns, pack
from rolecall.models.attention import layouts
from rolecall.models.language_model import LanguageModel
from rolecall.runtime.turn_order import joint_steps

HIDDEN = 64  # numbers of the utilities' hidden layer, and of the mixer's state


@dataclass(slots=True)
class JointSteps:
    """All joint steps of some episodes, agents in the order of the team."""

    turns: list[list[Turn]]  # [B]
    active: Tensor  # [B, A] bool
    state: Tensor  # [B, hidden size of the reader], zeros for VDN


class UtilityCritic:
    """q and v of every turn, and the mixer; trained together on the team's targets."""

    def __init__(
        self,
        models: dict[str, LanguageModel],
        optimizer: Optimizer,
        *,
        agents: list[str],
        mixer: Literal["vdn", "qmix"],
        reader: LanguageModel | None,
        budget: int,
        total_updates: int,
        seed: int = 0,
        share_prefixes: bool = True,
    ) -> None:
        self.share_prefixes = share_prefixes
        assert reader is not None or mixer == "vdn", "QMIX needs a model that reads the state"
        self.models, self.agents, self.reader, self.budget = models, agents, reader, budget
        device = next(iter(models.values())).device
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            widths = {name: model.hidden_size for name, model in sorted(models.items())}
            self.heads = nn.ModuleDict({name: _head(width) for name, width in widths.items()})
            self.project = nn.Linear(1 if reader is None else reader.hidden_size, HIDDEN)
        self.mixer = Vdn() if mixer == "vdn" else Qmix(len(agents), HIDDEN, seed=seed)
        self.whole = nn.ModuleList([self.heads, self.project, self.mixer]).to(device)
        parameters = list(self.whole.parameters())
        self.stepper = Stepper(parameters, optimizer, total=total_updates, module=self.whole)
        self._seen: dict[Turn, Tensor] = {}  # [2, hidden]: where the prompt and the turn end

    @classmethod
    def from_inputs(
        cls,
        parts: CriticInputs,
        *,
        mixer: Literal["vdn", "qmix"],
        reads: bool,
        total_updates: int,
        **options: Any,
    ) -> Self:
        """Build it from the parts of a run; `reads`: whether the mixer reads the conversation."""
        return cls(
            parts.models,
            parts.optimizer,
            agents=parts.agents,
            mixer=mixer,
            reader=parts.load() if reads else None,
            budget=parts.budget,
            total_updates=total_updates,
            seed=parts.seed,
            share_prefixes=parts.share_prefixes,
            **options,
        )

    async def annotate(self, episodes: list[Episode]) -> None:
        """Write `utility` of every played turn."""
        with torch.no_grad():
            self._read(episodes)
            batch = self._joint_steps(episodes)
            v, q = self._utilities(batch)
            state = self._project(batch)
            gains = advantages(self.mixer, q, v, state, batch.active)
            mixed_q = self.mixer(q, state, batch.active).tolist()
            mixed_v = self.mixer(v, state, batch.active).tolist()
        for row, turns in enumerate(batch.turns):
            for turn in turns:
                column = self.agents.index(turn.agent)
                turn.training.utility = Utility(
                    q=float(q[row, column]),
                    v=float(v[row, column]),
                    gain=float(gains[row, column]),
                    mixed_q=mixed_q[row],
                    mixed_v=mixed_v[row],
                )

    def fit(
        self, episodes: list[Episode], targets: list[list[float]], *, epochs: int
    ) -> dict[str, float]:
        """Minimise (Q - y)^2 + mean of (v_i - q_i)^2 over joint steps; `targets` by episode.

        `cut`: rows of transcripts whose oldest turns were dropped because all were too long.
        """
        if not any(targets):
            return {}
        batch = self._joint_steps(episodes)
        target = torch.tensor([y for one in targets for y in one], device=batch.active.device)
        first = {}
        for number in range(epochs):
            v, q = self._utilities(batch)
            team = self.mixer(q, self._project(batch), batch.active)
            own = ((v - q.detach()) ** 2)[batch.active]
            loss_q, loss_v = ((team - target) ** 2).sum(), own.sum()
            (loss_q + loss_v).backward()
            self.stepper.step(len(target))
            if number == 0:
                first = {"loss": loss_q.item() / len(target), "loss_v": loss_v.item() / len(own)}
        return first | {"cut": float(sum(row.cut for row in self._rows(episodes)))}

    def _utilities(self, found: JointSteps) -> tuple[Tensor, Tensor]:
        """Return v and q, [B, A] each; zeros for inactive agents."""
        values = torch.zeros(*found.active.shape, 2, device=found.active.device)
        for policy, head in self.heads.items():
            places = [
                (row, self.agents.index(turn.agent), self._seen[turn])
                for row, turns in enumerate(found.turns)
                for turn in turns
                if turn.policy == policy
            ]
            if places:
                rows, columns, seen = zip(*places, strict=True)
                both = head(torch.stack(seen))  # [n, 2 places, 2 heads]
                own = torch.stack([both[:, 0, 0], both[:, 1, 1]], -1)
                values = values.index_put((torch.tensor(rows), torch.tensor(columns)), own)
        return values[..., 0], values[..., 1]

    def _project(self, found: JointSteps) -> Tensor:
        state: Tensor = self.project(found.state)
        return state

    def _joint_steps(self, episodes: list[Episode]) -> JointSteps:
        turns = [joint_step for episode in episodes for joint_step in joint_steps(episode)]
        device = next(self.project.parameters()).device
        active = torch.zeros(len(turns), len(self.agents), dtype=torch.bool, device=device)
        for row, joint_step in enumerate(turns):
            for turn in joint_step:
                active[row, self.agents.index(turn.agent)] = True
        return JointSteps(turns, active, self._state(episodes).to(device))

    def _state(self, episodes: list[Episode]) -> Tensor:
        """Mean hidden state of the transcript before each joint step: [B, hidden size]."""
        if self.reader is None:
            return torch.zeros(sum(len(joint_steps(e)) for e in episodes), 1)
        states, reader = [], self.reader
        with torch.no_grad():
            for row in self._rows(episodes):
                layout = layouts.Rows([len(row.ids)], device=reader.device)
                tokens = torch.from_numpy(row.ids).long().to(reader.device)
                hidden = read_states(reader, tokens, layout)
                reads = torch.from_numpy(row.reads).long().to(reader.device)
                states.append(hidden.cumsum(0)[reads] / (reads[:, None] + 1))
        return torch.cat([*states, torch.zeros(0, reader.hidden_size, device=reader.device)])

    def _rows(self, episodes: list[Episode]) -> list[Transcript]:
        if self.reader is None:
            return []
        tokenizer, longest = self.reader.tokenizer, self.reader.max_length
        return [row for e in episodes for row in transcripts(e, tokenizer, longest=longest)]

    def _read(self, episodes: list[Episode]) -> None:
        """Read every played turn."""
        self._seen = self._read_turns([t for e in episodes for t in e.turns if t.chosen])

    def _read_turns(self, asked: list[Turn]) -> dict[Turn, Tensor]:
        """Return the hidden states where the prompt and where the turn ends, [2, hidden size].

        By turn, not by its id: a replay holds episodes of several stages, which repeat ids.
        """
        seen: dict[Turn, Tensor] = {}
        for policy, model in sorted(self.models.items()):
            original, turns = number_turns([turn for turn in asked if turn.policy == policy])
            share = self.share_prefixes and model.shares_prefixes
            for batch in pack(turns, budget=self.budget, share=share) if turns else []:
                sampled = [
                    np.flatnonzero((batch.turn == number) & (batch.mask > 0))
                    for number in range(len(batch.turn_ids))
                ]
                ends = [(batch.parent[places[0]], places[-1]) for places in sampled]
                device = model.device
                _, hidden = model.forward(
                    torch.from_numpy(batch.tokens).long().to(device),
                    torch.from_numpy(batch.positions).long().to(device),
                    layout=layouts.make_layout(batch.parent, batch.positions, device=device),
                    keep=torch.from_numpy(np.array(ends).ravel()).long().to(device),
                    hidden=True,
                )
                assert hidden is not None
                pairs = hidden.reshape(len(ends), 2, -1)
                turns_of_batch = [original[name] for name in batch.turn_ids]
                seen |= dict(zip(turns_of_batch, pairs, strict=True))
        return seen

    def save(self, folder: Path) -> None:
        state = {"whole": self.whole.state_dict(), "stepper": self.stepper.state_dict()}
        torch.save(state, folder / "critic.pt")

    def load(self, folder: Path) -> None:
        state = torch.load(folder / "critic.pt", weights_only=True)
        self.whole.load_state_dict(state["whole"])
        self.stepper.load_state_dict(state["stepper"])


def read_states(reader: LanguageModel, tokens: Tensor, layout: layouts.Rows) -> Tensor:
    """Return what the head reads at each token, in float32: [N, hidden size].

    Logits would be far larger.
    """
    everywhere = torch.arange(len(tokens), device=reader.device)
    if not reader.capabilities.scales_logits:
        return reader.states(tokens, layout.position, layout=layout, keep=everywhere).float()
    _, hidden = reader.forward(tokens, layout.position, layout=layout, keep=everywhere, hidden=True)
    assert hidden is not None
    return hidden


def num_weights(widths: list[int], *, agents: int, reader: int | None) -> int:
    """Count what is trained beside policies of these widths.

    `reader`: the width of QMIX's reader, else None.
    """
    with torch.device("meta"):
        parts: list[nn.Module] = [_head(width) for width in widths]
        parts.append(nn.Linear(reader or 1, HIDDEN))
        if reader is not None:
            parts.append(Qmix(agents, HIDDEN))
    return sum(p.numel() for module in parts for p in module.parameters())


def _head(width: int) -> nn.Sequential:
    """Two utilities of a hidden state; zero at first."""
    last = nn.Linear(HIDDEN, 2)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), last)
