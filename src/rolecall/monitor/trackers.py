"""Sends a step's numbers to other trackers; metrics.jsonl is always written beside.

A run that is resumed goes on in the same record: its name there is made of the run folder.
"""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path
from typing import Literal

from rolecall.config.errors import ConfigError
from rolecall.optional import optional

_FORBIDDEN = re.compile(r"[^\w\-. /]", re.ASCII)  # in MLflow's names


class TensorBoard:
    """Event files in the run folder, for `tensorboard --logdir runs`."""

    def __init__(self, folder: Path) -> None:
        module = optional("torch.utils.tensorboard", extra="tensorboard", key="trackers")
        self._writer = module.SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, record: dict[str, float]) -> None:
        for name, value in record.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Weights & Biases, on its server or as files.

    project: name under which runs stand.
    entity: W&B team or user; by default your own.
    mode: `offline` writes to the run folder, for `wandb sync`.
    """

    def __init__(
        self,
        folder: Path,
        project: str = "rolecall",
        entity: str | None = None,
        mode: Literal["online", "offline"] = "online",
    ) -> None:
        wandb = optional("wandb", extra="wandb", key="trackers")
        name, resumed = _identity(folder)
        try:
            self._run = wandb.init(
                project=project, entity=entity, mode=mode, dir=str(folder), id=resumed, name=name,
                resume="allow", settings=wandb.Settings(silent=True),
            )  # fmt: skip
        except wandb.Error as error:
            raise ConfigError(f"trackers: wandb: {error}") from error

    def log(self, step: int, record: dict[str, float]) -> None:
        self._run.log(record, step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """MLflow; by default a database in the run folder, for `mlflow ui --backend-store-uri`."""

    def __init__(self, folder: Path, uri: str | None = None, experiment: str = "rolecall") -> None:
        """uri: of a tracking server; by default a database in the run folder.
        experiment: name under which runs stand.

        Raises ConfigError if the server cannot be used.
        """
        mlflow = optional("mlflow", extra="mlflow", key="trackers")
        self._metric = optional("mlflow.entities", extra="mlflow", key="trackers").Metric
        name, resumed = _identity(folder)
        try:
            self._client = mlflow.MlflowClient(uri or f"sqlite:///{folder.resolve()}/mlflow.db")
            found = self._client.get_experiment_by_name(experiment)
            place = found.experiment_id if found else self._client.create_experiment(experiment)
            runs = self._client.search_runs([place], f"tags.rolecall = '{resumed}'")
            run = runs[0] if runs else self._client.create_run(
                place, run_name=name, tags={"rolecall": resumed}
            )  # fmt: skip
        except mlflow.MlflowException as error:
            raise ConfigError(f"trackers: mlflow: {error}") from error
        self._run_id = run.info.run_id

    def log(self, step: int, record: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        named = ((_FORBIDDEN.sub("_", n.replace("@", "_at_")), v) for n, v in record.items())
        self._client.log_batch(self._run_id, [self._metric(n, v, now, step) for n, v in named])

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


class Trackio:
    """trackio: files in its own folder on this machine, for `trackio show`.

    project: name under which runs stand.
    """

    def __init__(self, folder: Path, project: str = "rolecall") -> None:
        trackio = optional("trackio", extra="trackio", key="trackers")
        name, _ = _identity(folder)
        self._run = trackio.init(
            project=project, name=name, resume="allow", embed=False, auto_log_cpu=False,
            auto_log_gpu=False,
        )  # fmt: skip

    def log(self, step: int, record: dict[str, float]) -> None:
        self._run.log(dict(record), step=step)

    def close(self) -> None:
        self._run.finish()


def _identity(folder: Path) -> tuple[str, str]:
    """What people call a run, and what tells it from others of that name."""
    whole = str(folder.resolve())
    return folder.resolve().name, hashlib.sha256(whole.encode()).hexdigest()[:16]
