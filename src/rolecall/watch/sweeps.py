"""Groups runs whose configs differ in a few keys only."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from rolecall.core.json_types import JsonObject
from rolecall.watch.configs import flatten_keys

MOST_KEYS = 3  # in which runs of a sweep differ
IGNORED = ("output", "trackers", "trainer.steps")  # say nothing of what is tried out


@dataclass(frozen=True, slots=True)
class FoundSweep:
    """A sweep with the values that its runs have."""

    name: str
    keys: list[str]
    members: dict[str, dict[str, str]]  # run -> key -> value


def find_sweeps(configs: dict[str, JsonObject]) -> list[FoundSweep]:
    """Return the sweeps among runs, by their configs; a run is in one at most.

    Runs of one folder that have the same team, environment and algorithm are a sweep where at
    most three keys differ between any of them.
    """
    flat = {run: _flatten(keys) for run, keys in configs.items() if keys}
    families: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for run, keys in flat.items():
        families[run.rpartition("/")[0], *sorted(keys)].append(run)
    sweeps = []
    for members in families.values():
        differing = _differing_keys([flat[run] for run in members])
        if len(members) > 1 and 0 < len(differing) <= MOST_KEYS:
            values = {run: {key: flat[run][key] for key in differing} for run in members}
            sweeps.append(FoundSweep(" x ".join(differing), differing, values))
    return _number_names(sweeps)


def _flatten(keys: JsonObject) -> dict[str, str]:
    flat = flatten_keys(keys)
    return {
        key: value
        for key, value in flat.items()
        if not any(key == name or key.startswith(f"{name}.") for name in IGNORED)
    }


def _differing_keys(configs: list[dict[str, str]]) -> list[str]:
    first = configs[0]
    return [key for key in first if any(config[key] != first[key] for config in configs[1:])]


def _number_names(sweeps: list[FoundSweep]) -> list[FoundSweep]:
    """Return the sweeps with names of which none occurs twice."""
    counts: dict[str, int] = defaultdict(int)
    named = []
    for sweep in sweeps:
        counts[sweep.name] += 1
        number = counts[sweep.name]
        name = sweep.name if number == 1 else f"{sweep.name} ({number})"
        named.append(FoundSweep(name, sweep.keys, sweep.members))
    return named
