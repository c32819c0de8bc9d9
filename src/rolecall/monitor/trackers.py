"""A step's numbers in, another system's records out. metrics.jsonl is always written beside."""

from __future__ import annotations

from pathlib import Path

from rolecall.config_errors import ConfigError


class TensorBoard:
    """Event files in the run folder, for `tensorboard --logdir runs`."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "trackers: tensorboard is not installed: pip install 'rolecall[tensorboard]'"
            ) from error
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, record: dict[str, float]) -> None:
        for name, value in record.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
