"""A new reward on one page: the verifier's reward on a ten times larger scale than the solver's."""

from rolecall import Episode, World


async def role_bonus(episode: Episode, world: World) -> dict[str, float]:
    """10 to the verifier if its last word fits the outcome: approve what is right, reject the rest.

    The solver gets nothing here. Listed under `rewards:` with a weight, beside `correct`.
    """
    verdicts = [t.tag("verify") for t in episode.turns if t.agent == "verifier"]
    if not verdicts:
        return {}
    expected = "approve" if episode.scores["team"] == 1.0 else "reject"
    return {"verifier": 10.0 * (verdicts[-1] == expected)}
