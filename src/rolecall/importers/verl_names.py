"""Names what verl's keys have in common, and the reasons that several of them share."""

from __future__ import annotations

ENGINE = "the embedded engine samples with the weights being trained; engine has others"
SHARDS = "learner.name: fsdp shards weights, learner.offload keeps moments off the GPU"
LEARNER = "learner.tokens_per_batch bounds a forward pass"
PACKED = "turns are always packed without padding"
PROMPTS = "a prompt that leaves no room for an answer ends its episode"
ROWS = "columns are found by their names"
NEVER = 1_000_000  # more than there are of rows, steps or tokens of a turn
BASE = "actor_rollout_ref"
ACTOR, ROLLOUT, MODEL, REF = (f"{BASE}.{name}" for name in ("actor", "rollout", "model", "ref"))
OWN = "agent.agent_specific_parameters"
