"""Packed rows train exactly as single turns do, and only sampled ids carry loss."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from rolecall.algorithms.drmas import DrMas
from rolecall.algorithms.grpo import Grpo
from rolecall.config.optimizer import Optimizer
from rolecall.core.types import NO_PARENT, Batch, Turn
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import join, pack, select_turn, split
from rolecall.models.attention.prefix_tree import subtree_ends
from tests.toy import alike, language_model, turn


def turns_of(number: int, *, agents=("solver",), seed: int = 0, zeros: int = 0):
    draw = random.Random(seed)
    made = []
    for i in range(number):
        prompt = [draw.randrange(260) for _ in range(draw.randint(1, 30))]
        tokens = [draw.randrange(260) for _ in range(draw.randint(1, 20))]
        advantage = 0.0 if i < zeros else draw.uniform(-2, 2)
        t = turn(
            draw.choice(agents), episode=f"e{i}", prompt=prompt, tokens=tokens, advantage=advantage
        )
        t.temperature = draw.choice([0.7, 1.0])
        made.append(t)
    return made


def flat(turns: list[Turn]) -> Batch:
    """Every turn a row of its own."""
    return join([[one] for one in turns])


def gradient(folder, batches, algorithm):
    """Loss and gradient of one step, as the learner forms them before it clips."""
    learner = LocalLearner(language_model(folder), Optimizer(lr=1e-3), total_updates=1)
    losses = []
    for batch in batches:
        loss = algorithm.loss(batch, learner.forward(batch))
        loss.total.backward()
        losses.append(loss)
    count = sum(loss.count for loss in losses)
    total = sum(float(loss.total.detach()) for loss in losses) / count
    flat = torch.cat([p.grad.flatten() for p in learner.parameters]) / count
    return total, flat


@pytest.mark.parametrize("algorithm", [DrMas(), Grpo(), DrMas(agg="turn_sum", turn_length=20)])
def test_packed_equals_one_by_one(any_model_folder, algorithm):
    """Contract 2: same loss and gradient, for each family."""
    turns = turns_of(9)
    packed = gradient(any_model_folder, [flat(turns)], algorithm)
    single = gradient(any_model_folder, [flat([t]) for t in turns], algorithm)
    assert packed[0] == pytest.approx(single[0], abs=1e-6)
    assert alike(packed[1], single[1])
    assert packed[1].abs().max() > 1e-3


def test_packed_log_probs_equal_those_of_single_turns(any_model_folder):
    turns = turns_of(7)
    learner = LocalLearner(language_model(any_model_folder), Optimizer(lr=1.0), total_updates=1)
    with torch.no_grad():
        batch = flat(turns)
        packed = learner.forward(batch).logprobs.numpy()
        for number, one in enumerate(turns):
            alone = flat([one])
            single = learner.forward(alone).logprobs.numpy()
            assert alike(packed[batch.turn == number], single)


def test_attention_across_turns_would_be_noticed(model_folder):
    """The mutation that makes the test above worth having: one row instead of two."""
    turns = turns_of(2)
    learner = LocalLearner(language_model(model_folder), Optimizer(lr=1.0), total_updates=1)
    batch = flat(turns)
    with torch.no_grad():
        right = learner.forward(batch).logprobs.numpy()
        batch.parent[batch.parent == -1] = np.array([-1, int(np.argmax(batch.turn)) - 1])
        wrong = learner.forward(batch).logprobs.numpy()
    second = (batch.turn == 1) & (batch.mask > 0)
    assert np.abs(right - wrong)[second].max() > 1e-2


@pytest.mark.parametrize("budget", [1, 60, 100, 10_000])
def test_micro_batches_equal_whole(model_folder, budget):
    """Contract 2, with two agents and turns without advantage."""
    turns = turns_of(12, agents=("solver", "verifier"), zeros=4)
    whole = gradient(model_folder, [flat(turns)], DrMas())
    parts = pack(turns, budget=budget, skip_zero=True)
    found = gradient(model_folder, parts, DrMas())
    assert found[0] == pytest.approx(whole[0], abs=1e-6)
    assert alike(found[1], whole[1])
    assert sum(b.num_tokens for b in parts) == sum(len(t.tokens) for t in turns)
    assert sum(b.num_turns for b in parts) == 12
    assert all(len(b.tokens) <= budget or len(b.turn_ids) == 1 for b in parts)


def test_skipped_turns_of_no_advantage_still_count_in_every_normaliser(model_folder):
    turns = turns_of(6, zeros=3)
    for algorithm in (DrMas(), Grpo()):
        kept = gradient(model_folder, pack(turns, budget=500, skip_zero=False), algorithm)
        skipped = gradient(model_folder, pack(turns, budget=500, skip_zero=True), algorithm)
        assert alike(kept[1], skipped[1])
    assert pack(turns[:3], budget=500, skip_zero=True) == []


def test_only_sampled_tokens_carry_loss(model_folder):
    """Contract 6: per agent the mask has as many ones as it sampled ids; the rest is inert."""
    turns = turns_of(10, agents=("solver", "verifier"))
    for batch in pack(turns, budget=120, skip_zero=False):
        mine = [t for t in turns if t.id in batch.turn_ids]
        assert batch.mask.sum() == sum(len(t.tokens) for t in mine)
        assert {t.agent for t in mine} == {batch.agent}
    batch = flat(turns)
    for number, t in enumerate(turns):
        ids = batch.tokens[batch.turn == number]
        mask = batch.mask[batch.turn == number]
        assert ids.tolist() == [*t.prompt.tolist(), *t.tokens.tolist()]
        assert mask.tolist() == [0.0] * len(t.prompt) + [1.0] * len(t.tokens)
    before = gradient(model_folder, [batch], DrMas())[1]
    for column in (batch.advantages, batch.old_logprobs):
        column[batch.mask == 0] = 1e6
    after = gradient(model_folder, [batch], DrMas())[1]
    assert torch.equal(before, after)


def test_the_worked_example_of_the_batch():
    batch = flat([turn(prompt=[7, 8], tokens=[9, 2]), turn(prompt=[1], tokens=[3], episode="e1")])
    assert batch.tokens.tolist() == [7, 8, 9, 2, 1, 3]
    assert batch.mask.tolist() == [0, 0, 1, 1, 0, 1]
    assert batch.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert batch.parent.tolist() == [-1, 0, 1, 2, -1, 4]
    second = select_turn(batch, 1)
    assert (second.tokens.tolist(), second.parent.tolist()) == ([1, 3], [-1, 0])


# --- prefix trees ---

COLUMNS = (
    "tokens", "positions", "parent", "mask", "turn", "old_logprobs", "advantages", "returns",
    "weight", "temperature", "prox_logprobs", "ref_logprobs", "values",
)  # fmt: skip


def numbered(turns: list[Turn]) -> list[Turn]:
    """Every sampled id gets numbers of its own, so that a column betrays where they went."""
    place = 0
    for number, one in enumerate(turns):
        size = len(one.tokens)
        numbers = np.arange(place, place + size, dtype=np.float32) + 1
        one.logprobs, one.advantages, one.returns = -numbers, numbers, numbers + 0.5
        one.training.prox_logprobs, one.training.ref_logprobs, one.training.values = (
            -2 * numbers,
            -3 * numbers,
            4 * numbers,
        )
        one.weight, one.temperature = 1.0 + number, 0.5 + number
        place += size
    return turns


def conversations(seed: int, *, letters: int = 3, number: int = 12) -> list[Turn]:
    """Few ids, so that much is shared: equal prompts, equal answers, answers that are read again.

    A later prompt may hold an earlier prompt and answer, only a part of that answer, or something
    else that begins alike.
    """
    draw = random.Random(seed)

    def some(low: int, high: int) -> list[int]:
        return [draw.randrange(letters) for _ in range(draw.randint(low, high))]

    prompts = [[0, *some(0, 4)] for _ in range(3)]
    turns: list[Turn] = []
    for k in range(number):
        kind = draw.random()
        prompt = draw.choice(prompts)
        if turns and kind < 0.6:
            earlier = draw.choice(turns)
            answer = earlier.tokens.tolist()
            cut = len(answer) if kind < 0.4 else draw.randint(0, len(answer))
            prompt = [*earlier.prompt.tolist(), *answer[:cut], *some(0, 3)]
        turns.append(turn(episode=f"e{k}", prompt=prompt, tokens=some(1, 4)))
    return numbered(turns)


def path_to(batch: Batch, place: int) -> list[int]:
    """The id at a place and all it follows from, first to last."""
    found = []
    while place != NO_PARENT:
        found.append(place)
        place = int(batch.parent[place])
    return found[::-1]


def check(batch: Batch, turns: list[Turn]) -> None:
    """Every turn is in the batch with its own sampled ids, and follows from its own prompt."""
    by_id = {one.id: one for one in turns}
    assert len(batch.turn_ids) == len(set(batch.turn_ids))
    for number, name in enumerate(batch.turn_ids):
        one = by_id[name]
        mine = np.flatnonzero((batch.turn == number) & (batch.mask > 0))
        path = path_to(batch, int(mine[-1]))
        whole = [*one.prompt.tolist(), *one.tokens.tolist()]
        assert batch.tokens[path].tolist() == whole
        assert batch.positions[path].tolist() == list(range(len(whole)))
        assert path[len(one.prompt) :] == mine.tolist()  # sampled ids are never merged
        columns = {
            "old_logprobs": one.logprobs, "advantages": one.advantages, "returns": one.returns,
            "prox_logprobs": one.training.prox_logprobs, "ref_logprobs": one.training.ref_logprobs,
            "values": one.training.values,
        }  # fmt: skip
        for column, values in columns.items():
            assert getattr(batch, column)[mine].tolist() == values.tolist()
        assert set(batch.weight[mine].tolist()) == {one.weight}
        assert set(batch.temperature[mine].tolist()) == {one.temperature}
    for column in COLUMNS[5:]:
        assert not getattr(batch, column)[batch.mask == 0].any()
    sampled = sum(len(by_id[name].tokens) for name in batch.turn_ids)
    assert batch.mask.sum() == batch.num_tokens == sampled


def family(batch: Batch, place: int) -> list[int]:
    """An id and all that follows from it, by brute force."""
    return [k for k in range(len(batch.tokens)) if place in path_to(batch, k)]


@pytest.mark.parametrize("seed", range(40))
def test_following_the_parents_of_a_sampled_id_gives_the_turns_own_ids(seed):
    turns = conversations(seed)
    check(join([turns]), turns)
    check(join([turns[::2], turns[1::2]]), turns)


@pytest.mark.parametrize("seed", range(40))
def test_what_follows_from_an_id_is_one_stretch_of_the_row(seed):
    """And `subtree_ends` knows where it ends."""
    turns = conversations(seed, letters=2 + seed % 2)
    for batch in (join([turns]), join([turns[:7], turns[7:]]), flat(turns)):
        ends = subtree_ends(batch.parent, batch.positions)
        for place in range(len(batch.tokens)):
            assert family(batch, place) == list(range(place, ends[place]))


def test_the_worked_example_of_subtree_ends():
    parent, depth = np.array([-1, 0, 1, 1]), np.array([0, 1, 2, 2])
    assert subtree_ends(parent, depth).tolist() == [4, 4, 3, 4]


@pytest.mark.parametrize("seed", range(40))
def test_an_id_of_a_prompt_is_computed_again_only_where_no_earlier_turn_has_it(seed):
    """The size of the trie, turns in the order of their ids: a turn adds all that it sampled, and
    what of its prompt no turn before it begins with.
    """
    turns = conversations(seed)
    whole = sorted(([*t.prompt.tolist(), *t.tokens.tolist()], k) for k, t in enumerate(turns))
    expected = 0
    for place, (ids, k) in enumerate(whole):
        shared = max((common(ids, other) for other, _ in whole[:place]), default=0)
        expected += len(ids) - min(shared, len(turns[k].prompt))
    assert len(join([turns]).tokens) == expected


def common(a: list[int], b: list[int]) -> int:
    return next(
        (k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


@pytest.mark.parametrize("seed", range(10))
def test_groups_that_speak_on_are_as_small_as_a_trie_can_be(seed):
    """Siblings share their prompt, later turns hold earlier ones whole: every prompt id once."""
    draw, turns = random.Random(seed), []
    for k in range(4):
        ids = [1, 2, 3]
        for round_ in range(3):
            tokens = [draw.randrange(2) for _ in range(3)]
            turns.append(turn(episode=f"e{k}", prompt=ids, tokens=tokens, path=(round_,)))
            ids = [*ids, *tokens, 9]
    prefixes = {tuple(t.prompt[:n].tolist()) for t in turns for n in range(1, len(t.prompt) + 1)}
    said = {
        (*t.prompt.tolist(), *t.tokens[:n].tolist())
        for t in turns
        for n in range(1, len(t.tokens) + 1)
    }
    expected = len(prefixes - said) + sum(len(t.tokens) for t in turns)
    batch = join([numbered(turns)])
    check(batch, turns)
    assert len(batch.tokens) == expected


def test_the_worked_example_of_a_tree():
    batch = join(
        [[turn(prompt=[7, 8], tokens=[9, 2]), turn(prompt=[7, 8], tokens=[4], episode="e1")]]
    )
    # sorted by ids: [7, 8, 4] stands before [7, 8, 9, 2]
    assert batch.tokens.tolist() == [7, 8, 4, 9, 2]
    assert batch.parent.tolist() == [-1, 0, 1, 1, 3]
    assert batch.positions.tolist() == [0, 1, 2, 2, 3]
    assert batch.mask.tolist() == [0, 0, 1, 1, 1]
    assert batch.turn.tolist() == [0, 0, 0, 1, 1]
    assert (batch.num_tokens, batch.num_turns) == (3, 2)


def test_equal_answers_of_siblings_stay_apart():
    twins = numbered([turn(prompt=[5], tokens=[7, 8], episode=f"e{k}") for k in range(3)])
    batch = join([twins])
    assert (len(batch.tokens), batch.mask.sum()) == (7, 6)
    check(batch, twins)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("budget", [1, 12, 25, 60, 10_000])
def test_packed_trees_hold_every_turn_once_and_keep_the_budget(seed, budget):
    turns = conversations(seed)
    for one in turns[::3]:
        one.agent = "verifier"
    batches = pack(turns, budget=budget)
    assert sorted(name for b in batches for name in b.turn_ids) == sorted(t.id for t in turns)
    for batch in batches:
        mine = [t for t in turns if t.id in batch.turn_ids]
        check(batch, mine)
        assert {t.agent for t in mine} == {batch.agent}
        assert len(batch.tokens) <= budget or len(batch.turn_ids) == 1
    apart = pack(turns, budget=budget, share=False)
    assert sum(len(b.tokens) for b in apart) == sum(len(t.prompt) + len(t.tokens) for t in turns)
    assert sum(len(b.tokens) for b in batches) <= sum(len(b.tokens) for b in apart)


def test_long_common_prompts_are_shared():
    prompt = list(range(200))
    turns = [turn(episode=f"e{k}", prompt=prompt, tokens=[k] * 20) for k in range(8)]
    [batch] = pack(turns, budget=10_000)
    assert len(batch.tokens) == 200 + 8 * 20


@pytest.mark.parametrize("seed", range(20))
def test_one_turn_of_a_tree_is_the_turn_alone(seed):
    turns = conversations(seed)
    batch = join([turns])
    for number, name in enumerate(batch.turn_ids):
        alone = select_turn(batch, number)
        expected = flat([t for t in turns if t.id == name])
        for column in COLUMNS:
            assert getattr(alone, column).tolist() == getattr(expected, column).tolist()
        assert alone.turn_ids == [name]
        assert (alone.num_tokens, alone.num_turns) == (expected.num_tokens, 1)


# --- pairs ---


def siblings(seed: int, *, groups: int = 4, size: int = 4) -> list[list[Turn]]:
    """Groups of answers to one prompt, of two agents."""
    draw, made = random.Random(seed), []
    for g in range(groups):
        prompt = [g, *[draw.randrange(3) for _ in range(draw.randint(1, 8))]]
        made.append(
            [
                turn(
                    "ab"[g % 2], episode=f"e{g}.{k}", prompt=prompt,
                    tokens=[draw.randrange(3) for _ in range(draw.randint(1, 5))],
                )
                for k in range(size)
            ]
        )  # fmt: skip
    numbered([one for group in made for one in group])
    return made


def every_pair(groups):
    return [(a, b) for group in groups for k, a in enumerate(group) for b in group[k + 1 :]]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("budget", [30, 45, 10_000])
@pytest.mark.parametrize("share", [True, False])
def test_each_pair_is_in_exactly_one_batch_with_both_of_its_turns(seed, budget, share):
    groups = siblings(seed)
    pairs = every_pair(groups)
    batches = pack([t for g in groups for t in g], budget=budget, pairs=pairs, share=share)
    found = [(b.turn_ids[i], b.turn_ids[j]) for b in batches for i, j in b.pairs.tolist()]
    assert sorted(found) == sorted((a.id, b.id) for a, b in pairs)
    by_id = {t.id: t for g in groups for t in g}
    for batch in batches:
        assert len(batch.tokens) <= budget
        assert {by_id[name].agent for name in batch.turn_ids} == {batch.agent}
        for number in {int(i) for pair in batch.pairs for i in pair}:
            one = by_id[batch.turn_ids[number]]
            path = path_to(batch, int(np.flatnonzero(batch.turn == number)[-1]))
            assert batch.tokens[path].tolist() == [*one.prompt.tolist(), *one.tokens.tolist()]


def test_a_pair_that_does_not_fit_is_an_error_that_names_the_budget():
    pair = [turn(prompt=[5] * 6, tokens=[7] * 5, episode=f"e{k}") for k in range(2)]
    assert len(pack(pair, budget=16, pairs=[tuple(pair)])) == 1
    with pytest.raises(ValueError, match=r"learner\.tokens_per_batch \(15\)"):
        pack(pair, budget=15, pairs=[tuple(pair)])


def test_without_pairs_there_are_no_batches():
    assert pack([turn()], budget=100, pairs=[]) == []


# --- optimizer steps ---


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 20])
def test_the_parts_of_a_pass_hold_every_turn_once(parts):
    turns = turns_of(7)
    found = split(turns, parts, random=np.random.default_rng(0))
    assert sorted(t.id for part, _ in found for t in part) == sorted(t.id for t in turns)
    sizes = [len(part) for part, _ in found]
    assert len(sizes) == min(parts, 7)
    assert max(sizes) - min(sizes) <= 1
    assert all(pairs is None for _, pairs in found)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_the_parts_of_a_pass_hold_every_pair_once(parts):
    groups = siblings(0)
    turns, pairs = [t for g in groups for t in g], every_pair(groups)
    found = split(turns, parts, random=np.random.default_rng(0), pairs=pairs)
    held = [(a.id, b.id) for _, part in found for a, b in part]
    assert sorted(held) == sorted((a.id, b.id) for a, b in pairs)
    for part, together in found:
        assert {t.id for pair in together for t in pair} <= {t.id for t in part}


def test_the_parts_are_drawn_anew_for_each_pass_and_the_same_for_the_same_seed():
    turns = turns_of(20)

    def ids(seed):
        random_ = np.random.default_rng(seed)
        return [
            [t.id for t in part] for _ in range(2) for part, _ in split(turns, 2, random=random_)
        ]

    assert ids(0) == ids(0) != ids(1)
    assert ids(0)[0] != ids(0)[2]
