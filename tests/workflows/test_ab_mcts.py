"""AB-MCTS: where the next answer belongs, what is learned of a score, and what answers earn."""

from __future__ import annotations

import pytest

from rolecall.algorithms.drmas import DrMas
from rolecall.algorithms.rloo import Rloo
from rolecall.config.schema import Config
from rolecall.core.types import Episode
from rolecall.setup.plan import validate
from rolecall.workflows.ab_mcts import Answer, Node, Tree, ab_mcts
from rolecall.workflows.thompson import Gaussian
from tests.toy import relay_config
from tests.workflows.teams import play_team, play_test_tasks, shown, turns_of

RIGHT, WRONG = "\\boxed{7}", "\\boxed{8}"


class Fixed:
    """A posterior whose draw is always the same."""

    def __init__(self, value: float) -> None:
        self.value = value

    def observe(self, score: float) -> None: ...

    def draw(self, random) -> float:
        return self.value


class Said:
    def __init__(self, agent: str) -> None:
        self.agent = agent


class Dice:
    """A team that has random numbers alone."""

    def random(self, *key):
        return None


def add(tree: Tree, parent: Node, score: float, agent: str = "ann") -> Node:
    tree.add(parent, Answer(Said(agent), score, ""))
    return tree.nodes[-1]


def gaussian(*scores: float) -> Gaussian:
    posterior = Gaussian()
    for score in scores:
        posterior.observe(score)
    return posterior


def test_a_tree_without_answers_goes_wider():
    tree = Tree("gaussian", ["ann", "ben"])
    tree.agents = {"ann": Fixed(0.1), "ben": Fixed(0.2)}
    assert tree.select(Dice()) == (tree.root, "ben")


def test_the_search_goes_to_the_child_with_the_highest_draw_until_wider_is_higher():
    tree = Tree("gaussian", ["ann"])
    one, two = add(tree, tree.root, 0.0), add(tree, tree.root, 1.0)
    below = add(tree, two, 0.5)
    tree.root.wider, tree.root.deeper = Fixed(0.3), Fixed(0.4)
    one.own, two.own = Fixed(0.1), Fixed(0.2)
    two.wider, two.deeper = Fixed(0.9), Fixed(0.8)
    assert tree.select(Dice())[0] is two
    two.deeper = Fixed(1.0)
    assert tree.select(Dice())[0] is below  # it has no children
    tree.root.wider = Fixed(0.5)
    assert tree.select(Dice())[0] is tree.root


def test_a_score_is_learned_on_the_way_to_the_root():
    tree = Tree("gaussian", ["ann", "ben"])
    one = add(tree, tree.root, 1.0, "ann")
    two = add(tree, one, 0.0, "ben")
    three = add(tree, two, 0.5, "ben")
    other = add(tree, tree.root, 0.25, "ann")
    assert tree.root.wider == gaussian(1.0, 0.25)
    assert tree.root.deeper == gaussian(0.0, 0.5)
    assert one.own == gaussian(1.0, 0.0, 0.5)
    assert (one.wider, one.deeper) == (gaussian(0.0), gaussian(0.5))
    assert (two.own, two.wider, two.deeper) == (gaussian(0.0, 0.5), gaussian(0.5), gaussian())
    assert (three.own, other.own) == (gaussian(0.5), gaussian(0.25))
    assert tree.agents == {"ann": gaussian(1.0, 0.25), "ben": gaussian(0.0, 0.5)}
    assert three.depth == 3


def test_gains_are_above_the_parent_and_the_other_children():
    tree = Tree("gaussian", ["ann"])
    one = add(tree, tree.root, 0.5)
    add(tree, one, 1.0)
    assert tree.gains(0.25) == [0.0, 0.5]  # the first has nothing to be compared with
    two = add(tree, one, 0.0)
    add(tree, two, 0.25)
    add(tree, tree.root, 1.0)
    # root's: .5 - 1; below .5: 1 - (.75 * .5 + .25 * 0), 0 - (.75 * .5 + .25 * 1); .25 - 0; 1 - .5
    assert tree.gains(0.25) == [-0.5, 0.625, -0.625, 0.25, 0.5]


def played(folder, *texts: str, attempt: int = 0, **options) -> Episode:
    options = {"nodes": len(texts)} | options
    return play_team(folder, ab_mcts, {"solver": list(texts)}, options=options, attempt=attempt)


def test_each_answer_earns_its_score_and_the_newest_of_the_best_is_the_answer(model_folder):
    texts = (WRONG, f"one {RIGHT}", f"two {RIGHT}", WRONG)
    episode = played(model_folder, *texts)
    turns = turns_of(episode, "solver")
    assert [turn.payments for turn in turns] == [{"score": s} for s in (0.0, 1.0, 1.0, 0.0)]
    assert episode.answer == f"two {RIGHT}"
    metrics = {name: episode.metrics[f"tree/{name}"] for name in ("mean", "best")}
    assert metrics == {"mean": 0.5, "best": 1.0}
    assert episode.metrics["tree/depth"] == max(turn.info["depth"] for turn in turns)


def test_a_refinement_reads_the_answer_above_it_and_its_score(model_folder):
    episode = played(model_folder, *(f"number {n} {WRONG}" for n in range(8)))
    turns = turns_of(episode, "solver")
    numbers = {turn.id: number for number, turn in enumerate(turns)}
    deeper = [turn for turn in turns if turn.info["depth"] > 1]
    assert 0 < len(deeper) < 7
    for turn in turns:
        above = [numbers[name] for name in turn.parents]
        assert [n for n in range(8) if f"number {n} " in shown(turn)] == above
        assert len(above) == (turn.info["depth"] > 1)
        assert ("The answer scores 0.00 of 1." in shown(turn)) == bool(above)
        assert ("seen: " in shown(turn)) == bool(above)


def test_the_shape_of_a_tree_follows_from_the_seed_of_its_episode(model_folder):
    def depths(attempt):
        turns = turns_of(played(model_folder, *[WRONG] * 8, attempt=attempt), "solver")
        return [turn.info["depth"] for turn in turns]

    assert depths(0) == depths(0)
    assert len({tuple(depths(attempt)) for attempt in range(4)}) > 1


def test_with_gain_an_answer_earns_what_it_adds(model_folder):
    episode = played(model_folder, RIGHT, gain=0.5)
    assert [turn.score for turn in turns_of(episode, "solver")] == [1.0]
    episode = played(model_folder, WRONG, RIGHT, gain=0.5)  # a child or a sibling of the first
    assert turns_of(episode, "solver")[1].score == 1.5


def test_a_cut_answer_scores_0(model_folder):
    episode = play_team(
        model_folder, ab_mcts, {"solver": [RIGHT]}, options={"nodes": 1}, max_tokens=3
    )
    assert turns_of(episode, "solver")[0].score == 0.0
    assert episode.answer == ""


def test_answers_of_one_tree_are_compared_with_each_other(model_folder):
    episode = played(model_folder, RIGHT, WRONG, WRONG, RIGHT)
    for turn in episode.turns:
        turn.trained = True
    DrMas().credit([episode])
    advantages = [float(turn.advantages[0]) for turn in episode.turns]
    assert advantages == pytest.approx([0.866, -0.866, -0.866, 0.866], abs=1e-3)


def team(folder, algorithm) -> dict:
    config = relay_config(folder)
    sampling = {"max_tokens": 8}
    solver = {"policy": "a", "role": "solver", "sampling": sampling}
    config["team"] = {"ann": solver, "ben": solver}
    config["policies"] = {"a": config["policies"]["a"]}
    config["workflow"] = {"name": "ab_mcts", "nodes": 4}
    config["environment"] = {"name": "math", "kinds": ["equation"]}
    config["rollout"] = {"groups": 1, "group_size": 1}
    config["evaluation"] = {"tasks": 1, "samples": 1}
    return config | {"algorithm": algorithm}


def test_one_tree_is_a_group(model_folder):
    validate(Config.model_validate(team(model_folder, "drmas")))


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("grpo", "with algorithm.count=turn one is enough for this workflow"),
        ({"name": "rloo", "count": "turn"}, "rollout.group_size: rloo compares attempts"),
    ],
)
def test_an_algorithm_that_compares_attempts_needs_two(model_folder, algorithm, message):
    with pytest.raises(Exception, match=message):
        validate(Config.model_validate(team(model_folder, algorithm)))
    assert Rloo(count="turn").least_attempts(True) == 2


def test_an_evaluation_has_a_tree_of_one_answer(model_folder, tmp_path):
    [episode] = play_test_tasks(team(model_folder, "drmas"), tmp_path)
    assert len(episode.turns) == 1
