"""Runs whose times can be computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import simpy

from rolecall_lab.simulate.costs import Cores, Costs, EngineCosts, LearnerCosts, PublishCosts, line
from rolecall_lab.simulate.engine import Row, SimulatedEngine
from rolecall_lab.simulate.run import Failure, Placement, simulate
from rolecall_lab.simulate.workload import (
    SimulatedEpisode,
    SimulatedTurn,
    Workload,
    limit_answers,
    trained_tokens,
)

ENGINE = EngineCosts(line(1.0, 0.5))
COSTS = Costs(ENGINE, LearnerCosts(token_s=0.0))


def episode(*lengths: int, own: int = 0, shared: int = 0) -> SimulatedEpisode:
    """Turns one after the other."""
    return SimulatedEpisode(
        tuple((SimulatedTurn(own=own, shared=shared, context=own + shared, tokens=n),)
              for n in lengths)
    )  # fmt: skip


def work(*episodes: SimulatedEpisode, groups: int = 1, concurrency: int = 1000) -> Workload:
    """Steps of equal groups of these episodes."""
    return Workload([list(episodes)], groups, len(episodes), concurrency)


def step_s(workload: Workload, costs: Costs, placement: Placement, *, steps: int = 3) -> float:
    """The last step's."""
    return simulate(workload, costs, placement, steps=steps).steps[-1].step_s


def test_rows_of_one_length_take_as_many_passes():
    """Ten passes over four rows: 10 x (1 + 4 x 0.5)."""
    assert step_s(work(episode(10), groups=4), COSTS, Placement(1, 1)) == 30.0


def test_two_engines_halve_what_rows_take_and_not_what_passes_take():
    costs = replace(COSTS, engine=EngineCosts(line(0.0, 0.5)))
    ten = work(episode(10), groups=8)
    assert step_s(ten, costs, Placement(1, 1)) == 40.0
    assert step_s(ten, costs, Placement(2, 1)) == 20.0
    assert step_s(ten, COSTS, Placement(2, 1)) == 30.0


def test_a_batch_gets_faster_as_rows_end():
    """Five passes over three rows, five over two, ten over one: 5 x 2.5 + 5 x 2 + 10 x 1.5."""
    assert step_s(work(episode(5), episode(10), episode(20)), COSTS, Placement(1, 1)) == 37.5


def test_a_turn_begins_in_the_pass_after_the_one_before_it():
    """3 + 4 passes of one row, and two rows in the first 5: 5 x 2 + 2 x 1.5."""
    assert step_s(work(episode(3, 4), episode(5)), COSTS, Placement(1, 1)) == 13.0


def test_what_no_row_has_read_is_read_once_for_a_group():
    costs = replace(COSTS, engine=replace(ENGINE, prompt_token_s=0.1))
    three = work(*[episode(1, own=2, shared=10)] * 3)
    assert step_s(three, costs, Placement(1, 1)) == pytest.approx(
        0.1 * (10 + 3 * 2) + 1.0 + 3 * 0.5
    )


def test_rows_of_two_models_have_passes_of_their_own():
    other = replace(episode(10).turns[0], model="other")
    both = work(episode(10), SimulatedEpisode(((other,),)))
    assert step_s(both, COSTS, Placement(1, 1)) == 10 * (2 * 1.0 + 2 * 0.5)


def test_calls_of_one_round_are_sampled_together():
    turn = episode(10).turns[0]
    at_once = work(SimulatedEpisode(((turn, turn),)))
    assert step_s(at_once, COSTS, Placement(1, 1)) == 20.0
    assert step_s(work(episode(10, 10)), COSTS, Placement(1, 1)) == 30.0


def test_rows_beyond_what_fits_wait():
    costs = replace(COSTS, engine=replace(ENGINE, max_rows=2))
    assert step_s(work(episode(10), groups=4), costs, Placement(1, 1)) == 2 * 10 * 2.0


def test_no_more_episodes_are_under_way_than_told():
    one_by_one = work(episode(10), groups=4, concurrency=1)
    assert step_s(one_by_one, COSTS, Placement(1, 1)) == 4 * 10 * 1.5


def test_an_episodes_end_takes_its_engines_time():
    """The first ends after five passes of 2 s; it is scored and written before the sixth."""
    costs = replace(COSTS, engine=replace(ENGINE, episode_s=3.0))
    two = work(episode(5), episode(6, 4))
    assert step_s(two, costs, Placement(1, 1)) == 5 * 2 + 3 + 5 * 1.5 + 3


def test_passes_between_and_beyond_what_was_measured_are_on_straight_lines():
    engine = EngineCosts(((1.0, 2.0), (3.0, 3.0), (5.0, 7.0)))
    assert [engine.pass_s(rows) for rows in (1, 2, 3, 4, 5, 6)] == [2.0, 2.5, 3.0, 5.0, 7.0, 9.0]


def test_requests_are_on_their_way_while_engines_do_other_things():
    """A turn of 2 passes, 7 s, the other 2; another row decodes through all of it, alone for 7 s.

    It has 20 passes: with both rows for 2, alone for 5 (7.5 s), with both for 2, alone for 11.
    """
    costs = replace(COSTS, request_s=7.0)
    alone = step_s(work(episode(2, 2)), costs, Placement(1, 1))
    assert alone == 2 * (7.0 + 2 * 1.5)
    beside = step_s(work(episode(2, 2), episode(20)), costs, Placement(1, 1))
    assert beside == 7.0 + 2 * 2.0 + 5 * 1.5 + 2 * 2.0 + 11 * 1.5


def test_tools_let_their_episode_wait():
    costs = replace(COSTS, environment_s=7.0)
    assert step_s(work(episode(2, 2)), costs, Placement(1, 1)) == 4 * 1.5 + 7.0


def test_a_straggler_is_waited_for():
    run = simulate(work(episode(10), episode(100)), COSTS, Placement(2, 1), steps=1)
    assert run.steps[0].rollout_s == run.steps[0].longest_s == 10 * 2.0 + 90 * 1.5


def test_an_update_and_a_publication_follow_the_rollout():
    costs = replace(
        COSTS,
        learner=LearnerCosts(token_s=0.5, fixed_s=1.0),
        publish=PublishCosts(fixed_s=2.0, num_bytes=6e9, bytes_per_s=3e9),
        step_s=0.25,
    )
    run = simulate(work(episode(10)), costs, Placement(1, 1), steps=2)
    for step in run.steps:
        assert (step.rollout_s, step.update_s, step.publish_s) == (15.25, 6.0, 4.0)
        assert step.step_s == 25.25


def test_ranks_share_micro_batches_and_exchange_gradients():
    learner = LearnerCosts(token_s=1.0, batch_tokens=10, exchange_s=3.0)
    assert learner.seconds(100, 1) == 100.0
    assert learner.seconds(100, 2) == 50.0 + 3.0
    assert learner.seconds(100, 4) == 30.0 + 4.5, "one of four has three of ten batches"
    assert learner.seconds(5, 4) == 5.0 + 4.5, "a batch stays on one rank"
    assert learner.seconds(0, 4) == 0.0


def test_sampling_beside_an_equally_long_update_halves_the_step():
    ten = work(episode(10))
    costs = replace(COSTS, learner=LearnerCosts(token_s=1.5))  # 15 s, as the rollout
    assert step_s(ten, costs, Placement(1, 1), steps=6) == 30.0
    assert step_s(ten, costs, Placement(1, 1, staleness=1), steps=6) == 15.0


def test_rollouts_are_at_most_as_many_steps_ahead_as_told():
    """With updates that take nothing a step is a rollout, however stale it may be."""
    ten = work(episode(10))
    for staleness in (0, 1, 4):
        run = simulate(ten, COSTS, Placement(1, 1, staleness=staleness), steps=20)
        rows = staleness + 1  # under way at once
        assert run.whole_s == pytest.approx(20 * 10 * (1 + rows * 0.5) / rows, rel=0.1)


def test_a_publication_stops_engines_and_their_rows_are_read_again():
    costs = replace(
        COSTS,
        engine=EngineCosts(line(1.0, 0.0), prompt_token_s=1.0),
        learner=LearnerCosts(token_s=0.45),
        publish=PublishCosts(fixed_s=3.0),
    )
    run = simulate(work(episode(10)), costs, Placement(1, 1, staleness=1), steps=2)
    # Both rollouts begin at 0 and end after 10 passes; the update of the first ends at 14.5.
    assert run.steps[0].step_s == 10.0 + 4.5 + 3.0
    # That of the third begins at 17.5, the update of the second ends at 22, within its fifth pass:
    # the publication begins at 22.5.
    assert run.steps[1].step_s == pytest.approx(4.5 + 0.5 + 3.0)


def test_taking_turns_costs_what_it_costs():
    costs = replace(COSTS, turn_taking_s=4.0)
    ten = work(episode(10))
    assert step_s(ten, costs, Placement(1, 1, together=True)) == 15.0 + 4.0
    assert step_s(ten, costs, Placement(1, 1)) == 15.0


def test_processes_share_cores():
    costs = replace(COSTS, cores=Cores(2.0), learner=LearnerCosts(token_s=1.0))
    four = work(episode(10), groups=4)
    alone = simulate(four, costs, Placement(2, 2), steps=1).steps[0]
    crowded = simulate(four, costs, Placement(4, 4), steps=1).steps[0]
    assert alone.rollout_s == 10 * 2.0
    assert crowded.rollout_s == 10 * 1.5 * 2
    assert alone.update_s == 40.0  # one micro-batch, on one rank
    assert crowded.update_s == 80.0


def test_a_lost_engine_costs_what_its_rows_had_done():
    """Half of two rows is gone after 8 s; the other engine samples them from the beginning."""
    costs = replace(COSTS, engine=EngineCosts(line(1.0, 0.0)), restart_s=100.0)
    two = work(episode(10), groups=2)
    run = simulate(two, costs, Placement(2, 1), steps=1, failures=[Failure(7.5, "engine")])
    assert run.whole_s == 8.0 + 10.0, "its row begins there after the pass under way"


def test_a_lost_engine_that_was_alone_is_waited_for():
    costs = replace(COSTS, engine=EngineCosts(line(1.0, 0.0)), restart_s=100.0)
    ten = work(episode(10))
    run = simulate(ten, costs, Placement(1, 1), steps=1, failures=[Failure(7.5, "engine")])
    assert run.whole_s == 7.5 + 100.0 + 10.0


def test_lost_ranks_do_again_what_no_checkpoint_holds():
    costs = replace(
        COSTS,
        learner=LearnerCosts(token_s=2.0),
        publish=PublishCosts(fixed_s=1.0),
        restart_s=100.0,
        save_every=10,
    )
    ten = work(episode(10))  # 15 s, and 21 s for update and publication
    undisturbed = simulate(ten, costs, Placement(1, 1), steps=3)
    assert undisturbed.whole_s == 3 * 36.0
    during_the_update = Failure(2 * 36.0 + 15.0 + 5.0, "learner")
    lost = simulate(ten, costs, Placement(1, 1), steps=3, failures=[during_the_update])
    assert lost.whole_s - undisturbed.whole_s == 5.0 + 100.0 + 2 * 21.0
    assert lost.steps[2].fault_s == 142.0
    saved = simulate(ten, costs, Placement(1, 1), steps=3, failures=[during_the_update], unsaved=8)
    assert saved.whole_s - undisturbed.whole_s == 5.0 + 100.0, "a checkpoint was just written"
    during_the_rollout = simulate(
        ten, costs, Placement(1, 1), steps=3, failures=[Failure(6.0, "learner")]
    )
    assert during_the_rollout.whole_s - undisturbed.whole_s == 6.0 + 100.0


def test_an_engine_says_how_long_it_was_busy():
    run = simulate(
        work(episode(10)), replace(COSTS, learner=LearnerCosts(token_s=4.5)), Placement(1, 1),
        steps=2,
    )  # fmt: skip
    assert run.engine_busy == [0.25, 0.25]


def test_a_row_that_comes_within_a_pass_begins_with_the_next():
    env = simpy.Environment()
    engine = SimulatedEngine(env, ENGINE)
    ends: list[float] = []

    def ask(at: float, tokens: int):
        yield env.timeout(at)
        done = env.event()
        engine.ask(Row(tokens, 0, 0, "", done))
        yield done
        ends.append(env.now)

    env.process(ask(0.0, 4))
    env.process(ask(2.0, 2))
    env.run()
    # Passes of 1.5 s until 3.0; two of 2 s with both rows.
    assert ends == [7.0, 7.0]
    assert engine.busy_s == 7.0
    assert engine.load == 0


def test_prompts_that_a_group_shares_are_trained_on_once():
    three = [episode(5, own=2, shared=10)] * 3
    assert trained_tokens([three, three]) == 2 * (10 + 3 * (2 + 5))
    mute = replace(three[0].turns[0], trained=False)
    assert trained_tokens([[SimulatedEpisode(((mute,),))]]) == 0


def test_steps_draw_the_same_groups_for_the_same_seed():
    many = Workload([[episode(n)] * 4 for n in range(1, 50)], 8, 6, seed=3)
    assert many.step(2) == many.step(2)
    assert many.step(2) != many.step(3)
    assert all(len(group) == 6 for group in many.step(1))


def test_a_lower_limit_cuts_answers():
    named = replace(episode(50).turns[0], agent="solver")
    cut = limit_answers([[SimulatedEpisode(((named,),)), episode(50)]], {"solver": 12})
    assert [t.tokens for e in cut[0] for t in e.turns] == [12, 50]
