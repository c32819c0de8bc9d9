"""An episode in, its joint transcript as ids out: all that was said and seen, in one order.

[task]
2+2?

[solver]
4

The transcript before a stage is a prefix of the one before the next stage, so one row of ids holds
the whole episode and a critic reads one position of it for each stage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rolecall.chat import Tokenizer, encode
from rolecall.core import Episode, Ids, stages


@dataclass(slots=True)
class Transcript:
    """One episode as a critic reads it."""

    ids: Ids  # [N]
    reads: Ids  # [stages] index of the last id before each stage


def transcript(episode: Episode, tokenizer: Tokenizer, *, longest: int) -> Transcript:
    """What stood before each stage. Raises ValueError if it is longer than the critic can read."""
    chain = stages(episode)
    pieces = [encode(tokenizer, f"[task]\n{episode.task.prompt}\n\n")]
    reads = []
    for stage in chain:
        seen = next((t.info["observation"] for t in stage if "observation" in t.info), "")
        if seen:
            pieces.append(encode(tokenizer, f"[world]\n{seen}\n\n"))
        reads.append(sum(map(len, pieces)) - 1)
        for turn in sorted(stage, key=lambda turn: turn.agent):
            pieces.append(encode(tokenizer, f"[{turn.agent}]\n{turn.visible}\n\n"))
    ids = np.concatenate(pieces)[: reads[-1] + 1]  # nothing is read after the last stage began
    if len(ids) > longest:
        raise ValueError(
            f"the transcript of {episode.id} has {len(ids)} ids; the critic reads at most {longest}"
        )
    return Transcript(ids.astype(np.int32), np.array(reads, dtype=np.int32))
