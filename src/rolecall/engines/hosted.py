"""The embedded engine with weights of its own, in a process that holds nothing else."""

from __future__ import annotations

from pathlib import Path

from rolecall.engines.local import LocalEngine
from rolecall.interfaces.publisher import FileEngine


class HostedEngine(LocalEngine, FileEngine):
    """Reads published weights from files."""

    async def load_files(self, policy: str, version: int, folder: Path) -> None:
        """Rows in flight go on with the new weights."""
        self._schedulers[policy].policies[policy].load(folder)
        self.load(policy, version, None)
