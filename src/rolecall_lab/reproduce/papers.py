"""Names the papers of which one result is proven on a game whose answer is known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper, and the proof of `rolecall prove` that has its result."""

    title: str
    arxiv: str
    proof: str


PAPERS = {
    "at_grpo": Paper("AT-GRPO: groups of one agent and one state", "2510.11062", "candidates"),
    "coma": Paper("COMA: what would have been earned without an action", "1705.08926",
                  "dummy_agent"),
    "cory": Paper("CORY: a shared reward teaches the agent that speaks first", "2410.06101",
                  "channel_game"),
    "happo": Paper("HAPPO: agents updated one after the other", "2109.11251", "sequential"),
    "hidden_profile": Paper("Hidden profiles: a team that repeats what all know is wrong",
                            "2505.11556", "hidden_profile"),
    "ma_airl": Paper("MA-AIRL: a discriminator's reward leads to the experts' policy", "1907.13220",
                     "imitated_bandit"),
    "mappo": Paper("MAPPO: a critic that sees the whole team", "2103.01955", "team_value"),
    "matpo": Paper("MATPO: a planner's advantage on its workers' tokens", "2510.04678",
                   "child_tokens"),
    "mgrpo": Paper("M-GRPO: sub-agents that are called unequally often", "2511.13288",
                   "uneven_calls"),
    "mlpo": Paper("MLPO: a leader that reads frozen peers", "2507.08960", "copied_peers"),
    "other_play": Paper("Other-play: conventions that strangers share", "2003.02979",
                        "other_play"),
    "prisoners_dilemma": Paper("Advantage Alignment: reciprocal agents do not defect",
                               "2406.14662", "prisoners_dilemma"),
    "qmix": Paper("QMIX: the two-step game that a sum of utilities cannot fit", "1803.11485",
                  "value_games"),
    "read": Paper("ReAd: cooks whose proposals are refined by their advantages", "2405.14314",
                  "refined_cooks"),
    "self_play_collapse": Paper("Fictitious self-play: a pool of earlier weights", "1603.01121",
                                "self_play_collapse"),
    "shared_weights": Paper("Dr. MAS: the role with most gradient captures shared weights",
                            "2602.08847", "shared_weights"),
}  # fmt: skip
