"""SPIN (2401.01335): prefer the answer of a data set to what the policy says itself.

The opponent is the policy's last version: `policies.NAME.reference_update_every` says for how many
steps it stays. Known answer: right after it is refreshed the loss is ln 2 for every pair.
Degenerate: where the policy says what the data set says there is no pair.
"""

from __future__ import annotations

from typing import ClassVar

from rolecall.algorithms.base import Rows
from rolecall.algorithms.dpo import Dpo


class Spin(Dpo):
    """DPO whose better answer is a demonstration's (`rollout.data`) and whose worse one the
    policy's own, sampled anew in each step."""

    takes_data: ClassVar[Rows | None] = "demonstrations"
    answers_data: ClassVar[bool] = True
