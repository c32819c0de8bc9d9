"""Plans a run that plays beside other weights on this machine."""

from __future__ import annotations

from rolecall.core.errors import ConfigError
from rolecall.setup.plan import Plan, load_plan
from rolecall.storage.run_folder import RunFolder


def load_local_plan(folder: RunFolder, overrides: list[str], *, command: str) -> Plan:
    """Return the plan of a run whose weights play beside those of another one.

    Engines of several runs do not wait for one another's episodes, so none is deterministic. Raises
    ConfigError for a run on a cluster; `command` says who plays.
    """
    plan = load_plan(folder.config, [*overrides, "trainer.deterministic=false"])
    if plan.config.cluster.is_remote:
        raise ConfigError(
            f"cluster.name: {command} on this machine alone, and {folder.path} is a run on Ray; "
            "add cluster=local"
        )
    return plan
