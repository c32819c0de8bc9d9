"""Any number of steps and agents becomes a picture."""

from io import BytesIO

import pytest
from PIL import Image

from rolecall.monitor import curves
from rolecall.monitor.curves import HEIGHT, pictures
from rolecall.monitor.panels import PANELS, panels, smooth
from tests.monitor.runs_for_tests import evaluation_record, step_record


def size(data):
    image = Image.open(BytesIO(data))
    image.verify()
    assert image.format == "PNG"
    return image.size


@pytest.mark.parametrize("num_steps", [0, 1, 60])
def test_any_number_of_steps_is_a_picture_of_sensible_size(num_steps):
    records = [step_record(step) for step in range(1, num_steps + 1)]
    width, height = size(pictures(records).wide)
    assert 1000 < width < 2500
    assert 1000 < height < 2500


def test_a_phone_gets_the_same_panels_under_one_another():
    drawn = pictures([evaluation_record(0, "before", 0.1), step_record(1)])
    for wide, narrow in ((drawn.wide, drawn.narrow), (drawn.dark_wide, drawn.dark_narrow)):
        wide, narrow = (Image.open(BytesIO(data)).convert("RGB") for data in (wide, narrow))
        assert narrow.width == wide.width // 2 < narrow.height // 2
        number = len(PANELS)
        top = wide.height - HEIGHT * number // 2
        below = narrow.height - HEIGHT * number
        for place in range(number):
            x, y = place % 2 * narrow.width, top + place // 2 * HEIGHT
            one = wide.crop((x, y, x + narrow.width, y + HEIGHT))
            other = narrow.crop((0, below, narrow.width, below + HEIGHT))
            assert one.tobytes() == other.tobytes()
            assert len(one.getcolors(10_000)) > 5, "an empty cell"
            below += HEIGHT


def test_five_agents_with_long_names_fit():
    agents = ["a$b$", "planner", "coder", "critic", "one_who_searches_for_a_very_long_time"]
    records = [step_record(step, agents=agents) for step in (1, 2)]
    assert curves.agent_names(records) == sorted(agents)
    assert size(pictures(records).dark_narrow)


def test_missing_and_broken_numbers_are_left_out():
    records = [
        {"kind": "step", "step": 1},
        step_record(2, score=None),
        step_record(3, score=float("nan"), **{"agent/solver/grad_norm": 0.0}),
        {"kind": "evaluation", "step": 3, "when": "after"},
    ]
    assert size(pictures(records).wide)


def test_smoothing_takes_fewer_values_at_the_ends():
    assert smooth([0.0, 3.0, 0.0], window=1) == [1.5, 1.0, 1.5]
    assert smooth([2.0] * 9, window=3) == [2.0] * 9


def test_rewards_by_function_and_verdicts_have_panels_where_there_are_any():
    plain = {"kind": "step", "step": 1, "agent/solver/reward": 0.5, "reward/correct/team": 0.5}
    assert len(panels([plain])) == len(PANELS), "one function is the agents' reward itself"
    more = plain | {"agent/solver/reward/tone": 0.1, "agent/judge/verdict/approve": 0.9}
    titles = [title for title, _, _ in panels([more])]
    assert titles[-2:] == ["Reward by function", "Verdicts"]
    assert pictures([more]).wide != pictures([plain]).wide
