"""What a machine lacks is said in one line that names the machine."""

from __future__ import annotations

import asyncio
import shutil
import socket

import pytest

from rolecall.cluster.ranks import RankActors
from rolecall.core.errors import ConfigError
from rolecall.engines.backend import engine_backend
from rolecall.learners.ranks.group import RankError, RankGroup
from rolecall.learners.ranks.learner import RankedLearner
from rolecall.runs import one_run, train
from rolecall.setup.on_cluster import make_replicas
from tests.cluster.test_ray import config_of
from tests.cluster.test_ray_runs import ON_RAY
from tests.learners.test_ranks import spec_of
from tests.toy import relay_config, write

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def test_a_base_that_a_machine_lacks_is_named_with_the_machine(
    session,
    model_folder,
    tmp_path,
):
    """It has been there when the config was checked, as on the trainer's machine."""
    base = shutil.copytree(model_folder, tmp_path / "base")
    engine = make_replicas(session, engine_backend(config_of(base), ["a"]))
    shutil.rmtree(base)
    here = socket.gethostname()
    with pytest.raises(ConfigError) as raised:
        asyncio.run(engine.start())
    told = f"policies.a.base: base '{base}': there is no such model folder (on {here})"
    assert str(raised.value) == told
    asyncio.run(engine.close())
    group = RankGroup(1, hosts=RankActors(session, "rank", [None]))
    with pytest.raises(RankError, match=rf"there is no such model folder; its log on {here} "):
        RankedLearner(group, "a", spec_of(base, "replicated"))


def test_ranks_that_cannot_be_built_end_the_run_at_once(model_folder, tmp_path, monkeypatch):
    """Others in their place would raise the same."""
    config = relay_config(model_folder, evaluation={"tasks": 0}) | ON_RAY
    built = []

    def build(plan):
        built.append(plan)
        raise RankError("learner rank 0 of 2 failed: ValueError: no such model", raised=True)

    monkeypatch.setattr(one_run, "build", build)
    file = str(write(tmp_path / "team.yaml", config))
    with pytest.raises(RankError, match="no such model"):
        train.train(file, [], output=tmp_path / "run", resume=False)
    assert len(built) == 1
