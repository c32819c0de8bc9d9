"""Sends a step's numbers to other trackers; metrics.jsonl is always written beside.

A run that is resumed goes on in the same record: its name there is made of the run folder.
"""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path
from typing import Literal

import yaml

from rolecall.core.errors import ConfigError
from rolecall.core.json_types import Record
from rolecall.core.optional import optional

LONGEST = 500  # letters of a parameter, of which all MLflow servers take as many
_FORBIDDEN = re.compile(r"[^\w\-. /]", re.ASCII)  # in MLflow's names


class TensorBoard:
    """Event files in the run folder, for `tensorboard --logdir runs`."""

    def __init__(self, folder: Path) -> None:
        module = optional("torch.utils.tensorboard", extra="tensorboard", key="trackers")
        self._writer = module.SummaryWriter(str(folder / "tensorboard"))
        if config := _config(folder):
            self._writer.add_text("config", f"```yaml\n{yaml.safe_dump(config)}```")

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
    name: name of the run; by default that of its folder.
    group: runs that belong together, such as seeds of one config.
    tags: words to find it by.
    """

    def __init__(
        self,
        folder: Path,
        project: str = "rolecall",
        entity: str | None = None,
        mode: Literal["online", "offline"] = "online",
        name: str | None = None,
        group: str | None = None,
        tags: list[str] | None = None,
    ) -> None:
        wandb = optional("wandb", extra="wandb", key="trackers")
        own, resumed = _identity(folder)
        try:
            self._run = wandb.init(
                project=project, entity=entity, mode=mode, dir=str(folder), id=resumed,
                name=name or own, group=group, tags=tags, config=_config(folder),
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

    def __init__(
        self,
        folder: Path,
        uri: str | None = None,
        experiment: str = "rolecall",
        name: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> None:
        """uri: address of a tracking server; by default a database in the run folder.
        experiment: name under which runs stand.
        name: name of the run; by default that of its folder.
        tags: names and values to find it by.

        Raises ConfigError if the server cannot be used.
        """
        mlflow = optional("mlflow", extra="mlflow", key="trackers")
        entities = optional("mlflow.entities", extra="mlflow", key="trackers")
        self._metric, Param = entities.Metric, entities.Param
        own, resumed = _identity(folder)
        try:
            self._client = mlflow.MlflowClient(uri or f"sqlite:///{folder.resolve()}/mlflow.db")
            existing = self._client.get_experiment_by_name(experiment)
            experiment_id = (
                existing.experiment_id if existing else self._client.create_experiment(experiment)
            )
            runs = self._client.search_runs([experiment_id], f"tags.rolecall = '{resumed}'")
            run = runs[0] if runs else self._client.create_run(
                experiment_id, run_name=name or own, tags={**(tags or {}), "rolecall": resumed}
            )  # fmt: skip
            params = [Param(key, text[:LONGEST]) for key, text in _flat(_config(folder)).items()]
            logged = set(run.data.params)
            fresh = [param for param in params if param.key not in logged]
            for first in range(0, len(fresh), 100):  # as many as a server takes at once
                self._client.log_batch(run.info.run_id, params=fresh[first : first + 100])
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
    name: name of the run; by default that of its folder.
    group: runs that belong together, such as seeds of one config.
    """

    def __init__(
        self,
        folder: Path,
        project: str = "rolecall",
        name: str | None = None,
        group: str | None = None,
    ) -> None:
        trackio = optional("trackio", extra="trackio", key="trackers")
        own, _ = _identity(folder)
        self._run = trackio.init(
            project=project, name=name or own, group=group, config=_config(folder),
            resume="allow", embed=False, auto_log_cpu=False,
            auto_log_gpu=False,
        )  # fmt: skip

    def log(self, step: int, record: dict[str, float]) -> None:
        self._run.log(dict(record), step=step)

    def close(self) -> None:
        self._run.finish()


def _config(folder: Path) -> Record:
    """Return the run's config as it stands in its folder, where references are not resolved."""
    file = folder / "config.yaml"
    config: Record = yaml.safe_load(file.read_text()) if file.is_file() else {}
    return config


def _flat(tree: Record, prefix: str = "") -> dict[str, str]:
    """Flatten a config, in names that MLflow takes: {"trainer": {"steps": 3}} -> {"trainer.steps":
    "3"}.
    """
    flat: dict[str, str] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{name}.")
        else:
            flat[_FORBIDDEN.sub("_", name)] = str(value)
    return flat


def _identity(folder: Path) -> tuple[str, str]:
    """Return a run's name for people, and what tells it from others of that name."""
    whole = str(folder.resolve())
    return folder.resolve().name, hashlib.sha256(whole.encode()).hexdigest()[:16]
