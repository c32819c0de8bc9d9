"""Pays what a scalar reward model says: a sequence classifier that reads task and answer.

A conversation is written in the classifier's own chat template, as it was trained on.
"""

from __future__ import annotations

import asyncio
import json
import threading
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from rolecall.agents.control_tokens import controls
from rolecall.agents.plain_frames import warn_of_plain_frame
from rolecall.core.errors import first_line
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Chat = list[dict[str, str]]


class RewardModel:
    """Scores the team's answer, or each trained action with what the agent was told.

    The weights are loaded with the first score, by each process that plays episodes; the texts of
    an episode are one batch, so that scores do not depend on who else is playing.

    model: a folder or hub name of a model for sequence classification.
    scores: the team's answer to the task, as its reward, or each trained action, as its own.
    label: index of the output that is the score, if the model has several.
    squash: `sigmoid` brings scores into 0..1.
    times: multiplier of the scores, after `squash`.
    device: device of the model: cpu, cuda, cuda:1, mps, or auto.
    dtype: data type of its weights.
    max_tokens: most tokens of a conversation; the beginning of a longer one is cut.

    Raises ValueError for a model without a trained head of that many outputs.
    """

    weighs_itself = True  # by `times`: the scores of actions are in the turns

    def __init__(
        self,
        model: str,
        scores: Literal["answer", "actions"] = "answer",
        label: int | None = None,
        squash: Literal["none", "sigmoid"] = "none",
        times: float = 1.0,
        device: str = "cpu",
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        max_tokens: int = 4096,
    ) -> None:
        self.scores, self.squash, self.times, self.max_tokens = scores, squash, times, max_tokens
        self.device, self.dtype = _device(device), getattr(torch, dtype)
        self.path = _found(model)
        self.label = _checked_label(self.path, model, label)
        self._lock = threading.Lock()
        self._own_padding = False  # whether the model's config names a token for it

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        if self.scores == "answer":
            question: Chat = [{"role": "user", "content": episode.task.prompt}]
            [score] = await self._scored([_answered(question, episode.answer)])
            return {"team": score}
        turns = [turn for turn in episode.turns if turn.trained and not turn.candidate_error]
        for turn, score in zip(turns, await self._scored(list(map(_chat, turns))), strict=True):
            turn.rewards["reward_model"] = score
        return {}

    async def _scored(self, chats: list[Chat]) -> list[float]:
        return await asyncio.to_thread(self.score, chats) if chats else []

    def score(self, chats: list[Chat]) -> list[float]:
        """Return the model's scores of conversations that each end with what is to be scored."""
        with self._lock, torch.no_grad():
            tokenizer, model = self._loaded
            rows = [self._ids(tokenizer, chat)[-self.max_tokens :] for chat in chats]
            longest = max(map(len, rows))
            padding = model.config.pad_token_id if self._own_padding else _unused(rows)
            model.config.pad_token_id = padding
            ids = torch.full((len(rows), longest), padding)
            mask = torch.zeros_like(ids)
            for number, row in enumerate(rows):  # padded on the right: it reads each row's end
                ids[number, : len(row)] = torch.tensor(row)
                mask[number, : len(row)] = 1
            logits: Tensor = model(ids.to(self.device), attention_mask=mask.to(self.device)).logits
            scores = logits[:, self.label].double()
            if self.squash == "sigmoid":
                scores = scores.sigmoid()
            return [self.times * score for score in scores.tolist()]

    def _ids(self, tokenizer: PreTrainedTokenizerBase, chat: Chat) -> list[int]:
        """Return the prompt, in which no answer and no task can open a message of its own."""
        forbidden = controls(tokenizer)
        chat = [
            message
            | {"content": forbidden.broken(message["content"], framed=message["role"] == "tool")}
            for message in chat
        ]
        if tokenizer.chat_template:
            text = tokenizer.apply_chat_template(chat, tokenize=False)
            return list(tokenizer(text, add_special_tokens=False).input_ids)
        return list(tokenizer("\n\n".join(message["content"] for message in chat)).input_ids)

    @cached_property
    def _loaded(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        tokenizer = AutoTokenizer.from_pretrained(self.path)
        warn_of_plain_frame(tokenizer, key=f"reward model {self.path}")
        model = AutoModelForSequenceClassification.from_pretrained(self.path, dtype=self.dtype)
        self._own_padding = model.config.pad_token_id is not None
        return tokenizer, model.to(self.device).eval()


def _unused(rows: list[list[int]]) -> int:
    """Return a token that no row holds.

    transformers scores the last token that is no padding: with the end token as padding, it would
    be the one before each row's end.
    """
    used = {token for row in rows for token in row}
    return next(token for token in range(len(used) + 1) if token not in used)


def _device(name: str) -> torch.device:
    """Return a device; raises ValueError if this machine lacks it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r}: {first_line(error)}") from error
    return torch.device(name)


def _found(model: str) -> str:
    """Return a folder, else a model's name on the hub; raises ValueError for a missing folder."""
    path = Path(model).expanduser()
    if not path.is_dir() and (model.startswith((".", "/", "~")) or model.count("/") != 1):
        raise ValueError(f"reward model {model!r}: there is no such folder")
    return str(path) if path.is_dir() else model


def _answered(chat: Chat, text: str) -> Chat:
    return [*chat, {"role": "assistant", "content": text}]


def _chat(turn: Turn) -> Chat:
    chat: Chat = [{"role": m.role, "content": m.content} for m in turn.messages]
    return _answered(chat, turn.visible)


def _checked_label(path: str, model: str, label: int | None) -> int:
    """Return the output that is the score. Raises ValueError where the weights have no head."""
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"reward model {model!r}: {first_line(error)}") from error
    kinds = config.architectures or ["nothing"]
    if not any(kind.endswith("ForSequenceClassification") for kind in kinds) or not _has_head(path):
        raise ValueError(
            f"{model!r} is {', '.join(kinds)} and has no head that scores; name a model for "
            "sequence classification"
        )
    if label is None and config.num_labels > 1:
        raise ValueError(f"{model!r} has {config.num_labels} outputs; say which by `label`")
    if label is not None and not 0 <= label < config.num_labels:
        raise ValueError(f"label {label}: {model!r} has outputs 0 to {config.num_labels - 1}")
    return label or 0


def _has_head(path: str) -> bool:
    """Return whether weights in a folder hold more than the body; of a hub's model its config
    decides.
    """
    names: set[str] = set()
    try:
        for file in Path(path).glob("*.safetensors"):
            with safe_open(file, framework="pt") as opened:
                names |= set(opened.keys())
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {first_line(error)}") from error
    return not names or any(name.startswith(("score.", "classifier.", "v_head.")) for name in names)
