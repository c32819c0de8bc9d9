"""Runs proofs by name and yields their claims one by one as they are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rolecall.runtime.progress import track
from rolecall_lab.proofs import (
    Claim,
    alarms,
    bandits,
    candidates,
    channel_game,
    child_tokens,
    copied_peers,
    diverse_bandit,
    dummy_agent,
    fidelity,
    hidden_profile,
    imitated_bandit,
    independent_bandits,
    kl,
    other_play,
    preferences,
    prisoners_dilemma,
    refined_cooks,
    replays,
    second_moments,
    self_play,
    self_play_collapse,
    sequential,
    shared_weights,
    team_value,
    uneven_calls,
    value_games,
)

PROOFS: dict[str, Callable[[], Iterator[Claim]]] = {  # the cheap ones first
    "kl": kl.claims,
    "child_tokens": child_tokens.claims,
    "replays": replays.claims,
    "preferences": preferences.claims,
    "second_moments": second_moments.claims,
    "team_value": team_value.claims,
    "uneven_calls": uneven_calls.claims,
    "copied_peers": copied_peers.claims,
    "candidates": candidates.claims,
    "dummy_agent": dummy_agent.claims,
    "fidelity": fidelity.claims,
    "refined_cooks": refined_cooks.claims,
    "bandits": bandits.claims,
    "diverse_bandit": diverse_bandit.claims,
    "channel_game": channel_game.claims,
    "self_play": self_play.claims,
    "alarms": alarms.claims,
    "independent_bandits": independent_bandits.claims,
    "sequential": sequential.claims,
    "imitated_bandit": imitated_bandit.claims,
    "value_games": value_games.claims,
    "hidden_profile": hidden_profile.claims,
    "prisoners_dilemma": prisoners_dilemma.claims,
    "self_play_collapse": self_play_collapse.claims,
    "shared_weights": shared_weights.claims,
    "other_play": other_play.claims,
}


def prove(names: Sequence[str] | None = None) -> Iterator[Claim]:
    """Return the claims of these proofs (all, if none is named), lazily and in a fixed order.

    Raises ValueError for an unknown name, before anything is computed.
    """
    unknown = sorted(set(names or ()) - set(PROOFS))
    if unknown:
        raise ValueError(f"no proof {unknown[0]!r}; there are {', '.join(PROOFS)}")
    chosen = [name for name in PROOFS if not names or name in names]
    return (
        claim
        for number, name in enumerate(chosen, 1)
        for claim in track(
            PROOFS[name](), f"proof {name} ({number} of {len(chosen)})", unit="claims"
        )
    )
