"""Loads the weights that a run began with, which an earlier stage may have trained."""

from __future__ import annotations

from rolecall.config.load import load, load_stages
from rolecall.setup.stage_handover import Carried
from rolecall.storage import checkpoint
from rolecall.storage.run_folder import STAGES, RunFolder
from rolecall.training.run import Run


def load_first_weights(run: Run, folder: RunFolder) -> None:
    """Load the adapters that earlier stages trained into a run that has just been built.

    Whole weights of earlier stages are the bases of its config already.
    """
    carried = find_carried(folder)
    if carried is not None:
        stage = next(s for s in load_stages(folder.path.parent / STAGES) if _is(s.name, folder))
        carried.begin(run, run.config, stage)


def find_carried(folder: RunFolder) -> Carried | None:
    """Return what earlier stages have trained; None for a run without stages before it."""
    top = folder.path.resolve().parent
    if not (top / STAGES).is_file():
        return None
    carried = Carried()
    for stage in load_stages(top / STAGES):
        if _is(stage.name, folder):
            break
        earlier = RunFolder(top / stage.name)
        if stage.kind == "train" and earlier.config.is_file():
            with checkpoint.held(earlier, checkpoint.LATEST) as latest:
                carried.add(load(earlier.config), stage.name, latest)
    return carried if carried.trained else None


def _is(name: str, folder: RunFolder) -> bool:
    return name == folder.path.resolve().name
