"""PPO (1707.06347) with a critic that has a model of its own, beside the agents' policies.

Credit and policy loss are those of `ppo`; the values come from `critics.token.base`, which reads
the ids that an agent read and learns after the policies. Degenerate: lam = gamma = 1 gives
A = G - V.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rolecall.algorithms.losses import value_loss
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.algorithms.ppo import ValueHeadCredit
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.critic import Critic
from rolecall.core.types import Episode
from rolecall.critics.inputs import CriticInputs

if TYPE_CHECKING:
    from rolecall.critics.tokens import TokenCritic


class PpoCritic(ClippedLoss, ValueHeadCredit):
    """Credit of a token: what came after it, less what a separate model expected."""

    critic: ClassVar[str | None] = "token"
    critic_reads: ClassVar[bool] = True

    epochs: int = Field(4, ge=1, le=1000)
    critic_epochs: int = Field(4, ge=1, le=1000)
    """Passes of the critic over the turns of a step, each with one optimizer step."""
    clip_value: float = Field(0.2, gt=0, le=1e6)
    """The value of a token may move this far in one step of the run."""

    def make_critic(self, parts: CriticInputs) -> Critic:
        """Load the critic's model. Raises ConfigError where it has other tokens than a policy."""
        from rolecall.critics.tokens import TokenCritic

        model = parts.load()
        words = model.tokenizer.get_vocab()
        for name, policy in sorted(parts.models.items()):
            if policy.tokenizer.get_vocab() != words:
                raise ConfigError(
                    f"critics.token.base: it has another vocabulary than policies.{name}.base, "
                    "whose ids it reads; name a model of the same family"
                )
        return TokenCritic(
            model,
            parts.optimizer,
            budget=parts.budget,
            total_updates=parts.steps * self.critic_epochs,
        )

    def fit(self, episodes: list[Episode], critic: TokenCritic) -> dict[str, float]:
        """Regress the critic on the returns of the tokens, with PPO's clip."""
        loss = partial(value_loss, clip=self.clip_value)
        return critic.fit(episodes, loss, epochs=self.critic_epochs)
