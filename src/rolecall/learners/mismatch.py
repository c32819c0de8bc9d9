"""Warns of what sampler and learner disagree on, and says when to stop.

Before the first optimizer step of a batch both have the same weights, so d = learner - sampler is
rounding alone. A large d says that one of them computes something else, and then nothing that
is trained means what it says. d is in nats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LARGEST_EXACT = 1e-4  # |d| of one token, in float32 on a CPU
LARGEST_MEAN = 0.02  # |d| otherwise
LARGEST_SHARE = 0.01  # of tokens whose ratio exp(d) is outside [.5, 2]
HOPELESS = 0.2  # mean |d|, ten times what is warned of


class MismatchError(RuntimeError):
    """Sampler and learner do not compute the same model."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Holds the limits of a run."""

    exact: bool  # float32 on a CPU

    def warning(self, found: Mapping[str, float]) -> str:
        """Return what is out of bounds, or "". mean .03 -> `mean=0.03 limit=0.02`."""
        if self.exact:
            limits = {"max": LARGEST_EXACT}
        else:
            limits = {"mean": LARGEST_MEAN, "outside": LARGEST_SHARE}
        for name, limit in limits.items():
            value = found.get(f"mismatch_{name}", 0.0)
            if not value <= limit:
                return f"{name}={value:g} limit={limit:g}"
        return ""

    def check(self, agent: str, found: Mapping[str, float], *, first: bool) -> None:
        """Check a step's mismatch; raises MismatchError if it shows that no step can be right.

        In the `first` step of a run the weights are those of the base. Later only a learner without
        rounding is certain: a model that has become extreme may turn rounding into much.
        """
        mean = found.get("mismatch_mean", 0.0)
        later = self.exact and mean > HOPELESS  # NaN is no mismatch: such an update is skipped
        if mean <= HOPELESS or not (first or later):
            return
        advice = (
            "Compare with learner.dtype=float32 and learner.device=cpu; if that is right, this "
            "device or dtype is not to be trusted with this model"
            if first
            else "The sampler has kept earlier weights, which is a fault of rolecall: please report"
        )
        raise MismatchError(
            f"in {'the first' if first else 'a later'} step the learner's log-probs of {agent!r} "
            f"are {mean:.3g} nats from the sampler's in the mean (at most {HOPELESS:g}): they do "
            f"not compute the same model. {advice}"
        )
