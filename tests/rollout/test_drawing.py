"""Which tasks a step takes: exact shares, whole epochs, and nothing that latency could change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from rolecall.config.load import load
from rolecall.config.schema import CurriculumConfig
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.environment import ENDLESS
from rolecall.core.types import Episode, Task
from rolecall.data.sources import LazyTasks
from rolecall.environments.mixed import Labelled, Mixture, mix_by_source
from rolecall.rollout.curriculum import PassRates
from rolecall.rollout.task_sampler import Shares, TaskSampler, draw, draw_weighted, round_shares
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from tests import toy
from tests.toy import solo_config, write


class Endless(LazyTasks):
    """Every other task is of source `odd`."""

    size = ENDLESS

    def make(self, index: int) -> Task:
        return Task(str(index), "?", None, {"source": "odd" if index % 2 else "even"})


def some(number: int) -> list[Task]:
    return [Task(str(i), "?", None, {"source": "list"}) for i in range(number)]


def mixture(weights: dict[str, float], **parts: Sequence[Task]) -> Mixture:
    labelled = {name: Labelled(part, name) for name, part in parts.items()}
    return Mixture(labelled, weights, label="family")


def largest_gap(counts: list[Counter[str]], weights: dict[str, float]) -> float:
    """Most tasks that any part is from its exact share after any step."""
    so_far: Counter[str] = Counter()
    gap, whole = 0.0, sum(weights.values())
    for given in counts:
        so_far += given
        for name, weight in weights.items():
            gap = max(gap, abs(so_far[name] - so_far.total() * weight / whole))
    return gap


@pytest.mark.parametrize(
    ("weights", "groups"),
    [
        ({"a": 2, "b": 1}, 4),
        ({"a": 1, "b": 1, "c": 1}, 32),
        ({"a": 0.7, "b": 0.2, "c": 0.1}, 3),
        ({"a": 100, "b": 1}, 8),
        ({"a": 5, "b": 3, "c": 1, "d": 1}, 7),
    ],
)
def test_no_part_is_ever_a_whole_task_from_its_share_in_1000_steps(weights, groups):
    shares = Shares(weights, groups)
    counts = [shares.count_parts(step) for step in range(1, 1001)]
    assert all(given.total() == groups for given in counts)
    assert largest_gap(counts, weights) < 1


def test_shares_of_1000_steps_are_exact():
    shares = Shares({"a": 2, "b": 1}, 4)
    assert [tuple(shares.count_parts(step)[n] for n in "ab") for step in (1, 2, 3, 4)] == [
        (3, 1), (2, 2), (3, 1), (3, 1),
    ]  # fmt: skip
    tenths = Shares({"a": 0.7, "b": 0.2, "c": 0.1}, 3)
    whole = sum((tenths.count_parts(step) for step in range(1, 1001)), Counter())
    assert whole == {"a": 2100, "b": 600, "c": 300}


def test_sources_have_equal_shares_or_those_of_the_data():
    """Six tasks of one source and two of another."""
    tasks = [Task(str(i), "?", None, {"source": "big" if i % 4 else "small"}) for i in range(8)]
    assert mix_by_source(tasks).weights == {"small": 1, "big": 1}
    mixed = mix_by_source(tasks, proportional=True)
    assert mixed.weights == {"small": 2, "big": 6}
    sampler = TaskSampler(mixed, groups=4, seed=0)
    for step in range(1, 5):
        assert Counter(task.source for task in sampler.sample(step)) == {"big": 3, "small": 1}


def test_shares_by_chance_or_of_other_weights_are_caught():
    """What the bound above is worth: drawers that seem fair break it within 1,000 steps."""
    weights = {"a": 2.0, "b": 1.0}
    random = np.random.default_rng(0)
    chance = [Counter(random.choice(["a", "b"], size=4, p=[2 / 3, 1 / 3])) for _ in range(1000)]
    assert largest_gap(chance, weights) > 10
    biased = Shares({"a": 2.01, "b": 1}, 4)
    assert largest_gap([biased.count_parts(step) for step in range(1, 1001)], weights) > 4
    forgetful = [Counter({"a": 3, "b": 1})] * 1000  # rounds each step by itself
    assert largest_gap(forgetful, weights) > 300


def test_a_draw_holds_the_shares_and_no_task_twice():
    sampler = TaskSampler(mixture({"a": 2, "b": 1}, a=Endless(), b=some(7)), groups=4, seed=1)
    for step in range(1, 60):
        tasks = sampler.sample(step)
        assert Counter(task.family for task in tasks) == sampler.shares.count_parts(step)
        assert len({task.id for task in tasks}) == 4


def test_a_finite_part_is_shuffled_anew_each_epoch_and_an_endless_one_never_comes_again():
    sampler = TaskSampler(mixture({"a": 1, "b": 1}, a=Endless(), b=some(6)), groups=4, seed=1)
    steps = [sampler.sample(step) for step in range(1, 31)]
    endless = [task.id for tasks in steps for task in tasks if task.family == "a"]
    assert len(set(endless)) == 60
    finite = [task.id for tasks in steps for task in tasks if task.family == "b"]
    epochs = [tuple(finite[i : i + 6]) for i in range(0, 60, 6)]
    assert all(len(set(epoch)) == 6 for epoch in epochs)
    assert len(set(epochs)) == 10


def test_a_draw_depends_on_seed_and_step_only():
    def sampler(seed: int) -> TaskSampler:
        return TaskSampler(mixture({"a": 2, "b": 1}, a=Endless(), b=some(7)), groups=4, seed=seed)

    straight = sampler(3)
    steps = [straight.sample(step) for step in (1, 2, 3, 4, 5)]
    assert sampler(3).sample(5) == steps[4]
    assert sampler(4).sample(5) != steps[4]


def test_replacements_come_from_the_part_that_lacks_them_and_are_new():
    sampler = TaskSampler(mixture({"a": 1, "b": 1}, a=Endless(), b=some(8)), groups=6, seed=0)
    first = sampler.sample(1)
    refused = [task for task in first if task.family == "b"][:2]
    kept = [task for task in first if task not in refused]
    seen = {task.id for task in first}
    more = sampler.sample(1, number=1, kept=kept, seen=seen)
    assert [task.family for task in more] == ["b", "b"]
    assert not {task.id for task in more} & seen
    seen |= {task.id for task in more}
    assert len(sampler.sample(1, number=2, kept=kept, seen=seen)) == 2
    assert sampler.sample(1, number=2, kept=kept, seen={f"b/{i}" for i in range(8)}) == []


def test_a_lone_split_is_drawn_as_a_whole():
    sampler = TaskSampler(some(10), groups=3, seed=5)
    steps = [[task.id for task in sampler.sample(step)] for step in range(1, 7)]
    for epoch in (steps[:3], steps[3:]):
        assert len({name for step in epoch for name in step}) == 9
    assert steps[:3] != steps[3:]


def test_steps_of_an_endless_split_do_not_overlap():
    numbers = range(ENDLESS)
    steps = [draw(numbers, 4, seed=3, taken=[4] * before) for before in (0, 1, 2)]
    assert len({item for step in steps for item in step}) == 12
    assert all(b[0] == a[-1] + 1 for a, b in pairwise(steps))
    assert steps[0] != draw(numbers, 4, seed=4)


def test_a_weighted_draw_is_in_proportion_and_without_repetition():
    first = Counter(draw_weighted("abc", [6, 3, 1], number=1, seed=seed)[0] for seed in range(4000))
    assert [first[x] / 4000 for x in "abc"] == pytest.approx([0.6, 0.3, 0.1], abs=0.025)
    assert sorted(draw_weighted("abc", [6, 3, 1], number=3, seed=0)) == ["a", "b", "c"]
    # Two of three, exactly: P(c is left out) = .6 * .3 / .4 + .3 * .6 / .7.
    both = sum(
        "c" not in draw_weighted("abc", [6, 3, 1], number=2, seed=seed) for seed in range(4000)
    )
    assert both / 4000 == pytest.approx(0.6 * 0.3 / 0.4 + 0.3 * 0.6 / 0.7, abs=0.025)


def test_shares_that_follow_rates_are_rounded_without_bias():
    found = [round_shares({"a": 2, "b": 1}, 4, seed=seed) for seed in range(3000)]
    assert {tuple(counts.values()) for counts in found} == {(3, 1), (2, 2)}
    assert sum(counts["a"] for counts in found) / 3000 == pytest.approx(8 / 3, abs=0.025)


def rates(by: str, *, lag: int = 0, **options) -> PassRates:
    return PassRates(CurriculumConfig(by=by, **options), lag=lag)


def scored(task: Task, *scores: float) -> list[Episode]:
    return [
        Episode(f"{task.id}:{n}", task, n, 0, scores={"team": score})
        for n, score in enumerate(scores)
    ]


def test_tasks_that_are_passed_now_and_then_are_drawn_most_and_none_starves():
    """Rates 0, .5 and 1 with floor .05 weigh .05, .3 and .05: one in eight, six, one."""
    tasks = some(3)
    known = rates("task", newest=1.0)
    known.update(1, [*scored(tasks[0], 0, 0), *scored(tasks[1], 0, 1), *scored(tasks[2], 1, 1)])
    found = Counter(
        TaskSampler(tasks, groups=1, seed=seed, rates=known).sample(2)[0].id for seed in range(4000)
    )
    expected = [1 / 8, 6 / 8, 1 / 8]
    assert [found[str(i)] / 4000 for i in range(3)] == pytest.approx(expected, abs=0.025)


def test_sources_of_an_endless_split_are_drawn_by_their_pass_rates():
    known = rates("source", newest=1.0, floor=0.01)
    sampler = TaskSampler(Endless(), groups=8, seed=0, rates=known)
    assert len({task.id for task in sampler.sample(1)}) == 8
    known.update(1, [*scored(Endless()[0], 1, 1), *scored(Endless()[1], 1, 0)])
    known.known |= dict.fromkeys(range(2, 200), known.known[1])  # nothing new
    later = Counter(task.source for step in range(2, 200) for task in sampler.sample(step))
    assert later["odd"] / later.total() > 0.9
    assert later["even"] > 0


def test_shares_of_families_follow_their_pass_rates():
    """Weights 1 and 1, rates 1 and .5: shares .05 to .3, so 1 in 7 of the tasks."""
    known = rates("family", newest=1.0)
    train = mixture({"a": 1, "b": 1}, a=Endless(), b=some(20))
    known.update(1, [*scored(train[0], 1, 1), *scored(train[1], 1, 0)])
    found: Counter[str] = Counter()
    for seed in range(500):
        tasks = TaskSampler(train, groups=7, seed=seed, rates=known).sample(2)
        assert len({task.id for task in tasks}) == 7
        found += Counter(task.family for task in tasks)
    assert found == {"a": 500, "b": 3000}


def test_a_curriculum_keeps_the_shares_of_parts_and_of_replacements():
    sampler = TaskSampler(
        mixture({"a": 2, "b": 1}, a=some(30), b=some(9)), groups=4, seed=0, rates=rates("task")
    )
    first = sampler.sample(1)
    assert Counter(task.family for task in first) == {"a": 3, "b": 1}
    seen = {task.id for task in first}
    more = sampler.sample(1, number=1, kept=first[2:], seen=seen)
    assert [task.family for task in more] == ["a", "a"]
    assert not {task.id for task in more} & seen


LETTERS = f"{toy.__file__}:Letters"
MIX = {"name": "mixed", "of": {"a": LETTERS, "b": {"name": "math", "train": "generated"}}}
FINITE = {"name": "mixed", "of": {"a": LETTERS, "b": {"name": LETTERS, "size": 2}}}
WORDS = {"name": "math", "kinds": ["word"]}


@pytest.mark.parametrize(
    ("environment", "rollout", "said"),
    [
        (MIX, {"curriculum": {}}, r"curriculum\.by: .*without end \(those of b\).*source or"),
        ({"name": "math"}, {"curriculum": {}}, r"without end do not come again"),
        (WORDS, {"curriculum": {"by": "source"}}, r"source has no effect"),
        ({"name": LETTERS}, {"curriculum": {"by": "family"}}, r"only a mixed environment"),
        ({"name": LETTERS, "size": 3}, {"curriculum": {}}, r"takes all train tasks"),
        ({"name": LETTERS}, {"curriculum": {"flor": 1}}, r"curriculum\.flor: unknown key"),
        ({"name": LETTERS}, {"curriculum": {"floor": 0}}, r"curriculum\.floor: "),
        ({"name": LETTERS}, {"stratify": True}, r"stratify has no effect: .*\(letters\)"),
        (MIX, {"stratify": True}, r"stratify has no effect: .*weights"),
        (FINITE, {"groups": 5}, r"up to 3 tasks of 'b', which has 2"),
        (FINITE, {"curriculum": {"by": "family"}}, r"up to 3 tasks of 'b', which has 2"),
        ({"name": LETTERS, "size": 2}, {}, r"3 tasks cannot be sampled from 2"),
    ],
)
def test_an_option_that_steers_nothing_is_refused(
    model_folder, tmp_path, environment, rollout, said
):
    config = solo_config(model_folder, rollout=rollout)
    config["environment"] = environment
    with pytest.raises(ConfigError, match=said):
        build(validate(load(write(tmp_path / "c.yaml", config))))
