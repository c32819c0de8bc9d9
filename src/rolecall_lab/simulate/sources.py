"""Makes what is simulated from what there is: a run's folder, or a config with measured figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from rolecall.config.engines import LocalEngineConfig
from rolecall.config.load import load
from rolecall.config.schema import Config
from rolecall.config.vllm import VllmEngineConfig
from rolecall.core.errors import ConfigError
from rolecall.engines.backend import engine_backends
from rolecall.storage.run_folder import RunFolder
from rolecall_lab.simulate.calibration import calibrate, steady
from rolecall_lab.simulate.costs import Cores, Costs, EngineCosts, LearnerCosts, line
from rolecall_lab.simulate.measured import Measured
from rolecall_lab.simulate.records import MeasuredStep, read_steps
from rolecall_lab.simulate.run import Placement, Simulation
from rolecall_lab.simulate.workload import SimulatedGroup, Workload, limit_answers

CUT = 0.01  # of an agent's answers, from which it matters that a limit had cut them


@dataclass(slots=True)
class Simulated:
    """A run to simulate."""

    workload: Workload
    costs: Costs
    placement: Placement
    """Of the config."""
    measured_step_s: float | None = None
    """Median of the run's steady steps, as it was."""
    simulated_step_s: float | None = None
    """The same of the same episodes, simulated."""


def simulate_run(
    folder: RunFolder, overrides: list[str], *, environment_s: float, cores: int | None
) -> Simulated:
    """A run's lengths and times, at the sizes that overrides give it. Raises ConfigError.

    `cores`: of the machine that it ran on, where it had no GPU; by default of this one.
    """
    was, config = load(folder.config), load(folder.config, overrides)
    steps = read_steps(folder)
    placement = read_placement(was)
    shared = Cores(float(cores or os.cpu_count() or 1)) if on_cpu(was) else Cores()
    base_costs = apply_config(
        Costs(EngineCosts(line(0.0, 0.0)), LearnerCosts(0.0), environment_s=environment_s), was
    )
    costs = calibrate(steps, base_costs, placement, concurrency=was.rollout.concurrency)
    again = Simulation(
        [step.groups for step in steps], costs, placement, concurrency=was.rollout.concurrency
    ).run()
    middle = {step.number for step in steady(steps, placement.staleness)}
    chosen = [index for index, step in enumerate(steps) if step.number in middle]
    groups = limit_answers([g for step in steps for g in step.groups], limits(was, config, steps))
    return Simulated(
        make_workload(config, groups),
        apply_config(remove_sharing(costs, placement, shared), config),
        read_placement(config),
        measured_step_s=sum(steps[index].step_s for index in chosen) / len(chosen),
        simulated_step_s=sum(again.steps[index].step_s for index in chosen) / len(chosen),
    )


def simulate_figures(config: Config, measured: Measured, folder: RunFolder | None) -> Simulated:
    """Measured figures, with the lengths of a run where there is one. Raises ConfigError."""
    if folder is None:
        groups: Sequence[SimulatedGroup] = measured.episodes.groups(
            config.rollout.group_size, seed=config.trainer.seed
        )
    else:
        groups = [group for step in read_steps(folder) for group in step.groups]
    costs = replace(measured.costs, save_every=config.trainer.save_every)
    return Simulated(make_workload(config, groups), costs, read_placement(config))


def make_workload(config: Config, groups: Sequence[SimulatedGroup]) -> Workload:
    rollout = config.rollout
    return Workload(
        groups, rollout.groups, rollout.group_size, rollout.concurrency, config.trainer.seed
    )


def read_placement(config: Config) -> Placement:
    """Return the placement of engines and ranks in a config."""
    engines = max(
        config.get_engine(name).num_engines if config.is_replicated(name) else 1
        for name in config.policies
    )
    ranks = max(
        (config.get_learner(name).num_ranks or 1 for name in config.trained_policies), default=1
    )
    alone = not config.cluster.is_remote and engines == ranks == 1
    staleness = config.trainer.max_staleness
    return Placement(engines, ranks, together=alone and not staleness, staleness=staleness)


def apply_config(costs: Costs, config: Config) -> Costs:
    """Return the costs with what a config says of batches, GPUs and checkpoints."""
    sections = [config.get_engine(name) for name in sorted(config.policies)]
    limits = [
        section.max_sequences
        for section in sections
        if isinstance(section, LocalEngineConfig | VllmEngineConfig)
    ]
    learners = [config.get_learner(name) for name in config.trained_policies]
    return replace(
        costs,
        engine=replace(
            costs.engine, gpus=count_gpus(config), max_rows=min(limits, default=256) * len(sections)
        ),
        learner=replace(
            costs.learner, batch_tokens=min((s.tokens_per_batch for s in learners), default=4096)
        ),
        save_every=config.trainer.save_every,
    )


def count_gpus(config: Config) -> int:
    """Return the GPUs of one engine of each kind together."""
    apart = [b.section for b in engine_backends(config) if not b.section.is_embedded]
    return sum(section.gpus_per_engine for section in apart if not section.is_served) or 1


def limits(was: Config, config: Config, steps: Sequence[MeasuredStep]) -> dict[str, int]:
    """Return the agents' `max_tokens`, where they are less than they were.

    Raises ConfigError where they are more, and answers were cut: nobody knows their lengths.
    """
    lowered: dict[str, int] = {}
    for name, agent in config.team.items():
        before = was.team[name].sampling.max_tokens if name in was.team else 0
        most = agent.sampling.max_tokens
        if most < before:
            lowered[name] = most
        elif most > before:
            sizes = [t.tokens for s in steps for g in s.groups for e in g for t in e.turns
                    if t.agent == name]  # fmt: skip
            cut = sum(tokens >= before for tokens in sizes)
            if cut > CUT * len(sizes):
                raise ConfigError(
                    f"team.{name}.sampling.max_tokens: {cut / len(sizes):.0%} of the run's answers "
                    f"were cut at {before}, so nobody knows how long they are at {most}; train "
                    "some steps with it"
                )
    return lowered


def on_cpu(config: Config) -> bool:
    """Return whether a run's processes share cores; `auto` is taken as this machine would."""
    device = config.learner.device
    return device == "cpu" or (device == "auto" and not torch.cuda.is_available())


def remove_sharing(costs: Costs, placement: Placement, cores: Cores) -> Costs:
    """Turn costs measured while processes shared cores into those where each has one."""
    both = placement.engines + placement.ranks
    sampling = cores.slowdown(both if placement.staleness else placement.engines)
    training = cores.slowdown(both if placement.staleness else placement.ranks)
    engine, learner = costs.engine, costs.learner
    return replace(
        costs,
        cores=cores,
        engine=replace(
            engine,
            passes=tuple((rows, seconds / sampling) for rows, seconds in engine.passes),
            prompt_token_s=engine.prompt_token_s / sampling,
            episode_s=engine.episode_s / sampling,
        ),
        learner=replace(
            learner, token_s=learner.token_s / training, fixed_s=learner.fixed_s / training
        ),
    )
