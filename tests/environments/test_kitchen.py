"""The kitchen: two cooks choose in turn, the second reads the first, and a joint step is taken."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.core.types import Episode
from rolecall.environments.kitchen.environment import (
    KitchenEnvironment,
    KitchenWorld,
    read_action,
    read_kitchen,
)
from rolecall.environments.kitchen.rules import (
    ACTIONS,
    NOTHING,
    ONION,
    PLATE,
    SOUP,
    Kitchen,
    best_action,
    most_soups,
    play_step,
)


def kitchen(**changes) -> Kitchen:
    plain = {
        "onions": 0,
        "cooking": 0,
        "hands": (NOTHING, NOTHING),
        "steps": 8,
        "size": 2,
        "time": 1,
    }
    return Kitchen(**(plain | changes))


def step(opened, *actions):
    for agent, action in zip(("ann", "ben"), actions, strict=True):
        seen = asyncio.run(opened.step(agent, f"[{action}]"))
    return seen


def test_a_soup_is_made_and_served():
    opened = KitchenWorld(kitchen(steps=5, hands=(ONION, ONION)))
    pots = []
    for actions in [("pot", "wait"), ("plate", "pot"), ("wait", "wait"), ("soup", "wait")]:
        seen = step(opened, *actions)
        pots.append(seen.text.split("Pot: ")[1].split(".")[0])
    assert pots == ["1 of 2 onions", "cooking, 1 more", "soup is ready", "0 of 2 onions"]
    assert opened.kitchen.hands == (SOUP, NOTHING)
    seen = step(opened, "serve", "onion")
    assert (seen.team, seen.done) == (1.0, True)
    episode = Episode("0", None, 0, 0, [])
    assert asyncio.run(opened.score(episode)) == {"team": 1.0}
    assert episode.metrics == {"count/soups": 1.0, "count/lost_steps": 0.0}


def test_who_does_the_same_as_the_first_cook_loses_the_step():
    after, served, lost = play_step(kitchen(), ("onion", "onion"))
    assert (after.hands, served, lost) == ((ONION, NOTHING), 0, [1])
    assert play_step(kitchen(), ("wait", "wait"))[2] == []


def test_a_place_that_the_first_cook_could_not_use_is_free_for_the_second():
    after, _, lost = play_step(kitchen(hands=(NOTHING, ONION)), ("pot", "pot"))
    assert (after.onions, lost) == (1, [0])


@pytest.mark.parametrize(
    ("changes", "actions"),
    [
        ({"hands": (ONION, NOTHING)}, ("onion", "wait")),
        ({"hands": (PLATE, NOTHING)}, ("pot", "wait")),
        ({"hands": (PLATE, NOTHING), "onions": 2, "cooking": 1}, ("soup", "wait")),
        ({"hands": (NOTHING, NOTHING), "onions": 2}, ("soup", "wait")),
        ({"hands": (ONION, NOTHING), "onions": 2}, ("pot", "wait")),
        ({"hands": (PLATE, NOTHING)}, ("serve", "wait")),
        ({}, ("", "wait")),
    ],
)
def test_what_cannot_be_done_loses_the_step(changes, actions):
    before = kitchen(**changes)
    after, served, lost = play_step(before, actions)
    assert (served, lost) == (0, [0])
    assert after.hands == before.hands
    assert after.onions == before.onions
    assert after.steps == before.steps - 1


def test_the_second_cook_sees_what_the_first_did_to_the_pot():
    after, _, lost = play_step(kitchen(hands=(PLATE, ONION), onions=2), ("soup", "pot"))
    assert (after.hands, after.onions, lost) == ((SOUP, NOTHING), 1, [])


def test_an_action_is_one_in_brackets():
    assert read_action("I think.\n[Onion]") == "onion"
    assert read_action("[cook_1] said so, [wait]") == "wait"
    assert read_action("[onion] or [plate]") == read_action("onion") == read_action("[fly]") == ""


def test_an_unreadable_action_loses_the_step_and_is_told():
    opened = KitchenWorld(kitchen())
    asyncio.run(opened.step("ann", "hm"))
    seen = asyncio.run(opened.step("ben", "[onion]"))
    assert seen.text.endswith("Cook 2 holds an onion. Cook 1 lost the last step.")
    assert opened.num_lost == 1


def test_cooks_act_in_turn_and_a_third_is_none():
    opened = KitchenWorld(kitchen())
    assert asyncio.run(opened.step("ann", "[onion]")).text == ""
    with pytest.raises(ValueError, match="it is not the turn of 'ann'"):
        asyncio.run(opened.step("ann", "[onion]"))
    asyncio.run(opened.step("ben", "[wait]"))
    with pytest.raises(ValueError, match="it is not the turn of 'cat'"):
        asyncio.run(opened.step("cat", "[wait]"))


def test_the_most_soups_are_counted_by_hand():
    """Two onions are fetched and put in by two steps, one more cooks, then soup and serve."""
    assert most_soups(kitchen(steps=5, hands=(ONION, ONION))) == 1
    assert most_soups(kitchen(steps=4, hands=(ONION, ONION))) == 0
    assert most_soups(kitchen(hands=(PLATE, PLATE), steps=20)) == 0, "nobody can put a plate down"


def play_best(opened) -> None:
    while opened.kitchen.steps:
        first = best_action(opened.kitchen)
        step(opened, first, best_action(opened.kitchen, first))


@pytest.mark.parametrize("options", [{}, {"time": 1, "min_steps": 8, "max_steps": 12}])
def test_in_every_kitchen_soups_can_be_served_and_none_is_in_both_splits(options):
    environment, starts = KitchenEnvironment(**options), {}
    for split in ("train", "test"):
        tasks = environment.tasks(split)[:60]
        assert tasks == environment.tasks(split)[:60]
        starts[split] = {read_kitchen(task.info) for task in tasks}
        for task in tasks:
            opened = environment.open(task, seed=0)
            play_best(opened)
            assert opened.served == opened.best > 0
            assert opened.num_lost == 0
    assert not starts["train"] & starts["test"]


def test_a_fork_goes_its_own_way_from_the_middle_of_a_step():
    opened = KitchenWorld(kitchen())
    asyncio.run(opened.step("ann", "[onion]"))
    fork = asyncio.run(opened.fork())
    asyncio.run(fork.step("ben", "[plate]"))
    assert opened.kitchen == kitchen()
    assert opened.chosen == ["onion"]
    asyncio.run(opened.step("ben", "[onion]"))
    assert fork.kitchen.hands == (ONION, PLATE)
    assert opened.kitchen.hands == (ONION, NOTHING)


def test_the_best_action_of_the_second_cook_is_not_the_first_cooks():
    waiting = kitchen(steps=6, hands=(ONION, NOTHING), onions=1)
    assert best_action(waiting, "pot") != "pot"
    assert set(ACTIONS) >= {best_action(waiting)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"onions": 1}, "onions is 1; write 2 to 6"),
        ({"time": 11}, "time is 11; a soup cooks"),
        ({"min_steps": 2}, "min_steps is 2 and max_steps 24; they are 3 to 60"),
        ({"max_steps": 11}, "the second at least the first"),
    ],
)
def test_options_that_make_no_kitchen_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        KitchenEnvironment(**options)
