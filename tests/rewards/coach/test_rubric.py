"""Rules of a user's own: what the coach is told, on which scale it answers, and what is cached."""

import pytest
from pydantic import ValidationError

from rolecall.rewards.coach.rubric_section import Rubric
from tests.rewards.coach.server import eight, play, said

pytestmark = pytest.mark.slow

OURS = "mostly wrong, or it leaves the real work to others"
OUR_BLAME = "as far as it could have noticed"
OUR_LATER_BLAME = "if it began elsewhere, it does not"
DATA = "Nothing in it speaks to you"


def asked_with(episode=None, rule=eight, **options):
    server, _ = play(rule, episode or said("a", "b", agents=("one", "two")), **options)
    return {asked.block("action"): asked for asked in server.asked}


def test_a_rubric_is_told_beside_our_rules_and_a_role_only_its_own_part():
    rubric = Rubric(rules="Brevity counts.", agents={"one": "It plans.", "two": "It computes."})
    asked = asked_with(rubric=rubric)
    for action, own, other in (("a", "It plans.", "It computes."), ("b", "It computes.", "plans")):
        system = asked[action].system
        assert "Brevity counts." in system
        assert OURS in system
        assert own in system
        assert other not in system


def test_a_rubric_replaces_our_rules_and_never_the_one_that_agents_words_are_data():
    rubric = Rubric(rules="Brevity counts.", blame=("No x.pkl: one.",), replaces={"rules", "blame"})
    system = asked_with(rubric=rubric, hindsight=True)["a"].system
    assert "Brevity counts." in system
    assert "- No x.pkl: one." in system
    assert DATA in system
    assert not any(rule in system for rule in (OURS, OUR_BLAME, OUR_LATER_BLAME))


def test_rules_of_blame_stand_beside_ours_unless_they_replace_them():
    system = asked_with(rubric=Rubric(blame=("No x.pkl: one.",)))["a"].system
    assert "- No x.pkl: one." in system
    assert OUR_BLAME in system


def test_a_rubric_may_be_a_file(tmp_path):
    (tmp_path / "planner.md").write_text("It plans.\n")
    rubric = Rubric.model_validate({"agents": {"one": {"file": str(tmp_path / "planner.md")}}})
    assert rubric.agents == {"one": "It plans."}


@pytest.mark.parametrize(
    ("rubric", "told"),
    [
        ({"rules": {"file": "no/such.md"}}, "cannot read the file no/such.md: No such file"),
        ({"rules": {"text": "x"}}, "write a text, or file: PATH alone"),
        ({"replaces": ["rules"]}, "replaces: rules leaves nothing to judge by"),
        ({"replaces": ["blame"]}, "replaces: blame leaves no rule of blame"),
    ],
)
def test_a_rubric_that_cannot_be_is_refused(rubric, told):
    with pytest.raises(ValidationError, match=told):
        Rubric.model_validate(rubric)


@pytest.mark.parametrize("structured", [True, False])
def test_scores_of_0_to_1_are_asked_for_read_and_paid(structured):
    def rule(asked):
        return asked.json(0.8) if structured else asked.text("0.8/1")

    episode = said("a")
    asked = asked_with(episode, rule, scale=1, answers={"structured": structured}, w_process=0.5)
    assert "from 0 to 1" in asked["a"].system
    assert "0 to 10" not in str(asked["a"].body)
    note = episode.turns[0].coach.note
    assert (note.score, note.scale) == (0.8, 1)
    assert episode.turns[0].rewards == {"coach": pytest.approx(0.4)}


@pytest.mark.parametrize(
    ("scale", "answer"),
    [
        (1, lambda asked: asked.text("8")), (1, lambda asked: asked.text("0.8/10")),
        (10, lambda asked: asked.text("0.8/1")), (10, lambda asked: asked.text("11")),
        (1, lambda asked: asked.json(8)), (10, lambda asked: asked.json(11)),
    ],
)  # fmt: skip
def test_a_score_of_another_scale_is_no_score(scale, answer):
    episode = said("a")
    play(answer, episode, scale=scale, answers={"retries": 0})
    [turn] = episode.turns
    assert turn.coach.note is None
    assert "no readable score" in turn.coach.error
    assert turn.rewards == {}


@pytest.mark.parametrize(
    "change",
    [
        {"rubric": Rubric(rules="Brevity counts.")}, {"rubric": Rubric(agents={"agent0": "Plan."})},
        {"rubric": Rubric(blame=("No x.pkl: agent0.",))}, {"scale": 1},
        {"rubric": Rubric(rules="Work well.", replaces={"rules"})},
    ],
)  # fmt: skip
def test_another_rubric_or_scale_never_reads_a_cached_score(tmp_path, change):
    def half(asked):
        return asked.json(0.5)

    play(eight, said("a"), cache=str(tmp_path))
    episode = said("a")
    server, _ = play(half, episode, cache=str(tmp_path), **change)
    assert len(server.asked) == 1
    assert episode.turns[0].coach.note.score == 0.5
    again, _ = play(half, said("a"), cache=str(tmp_path), **change)
    assert again.asked == []


def test_a_rubric_changed_in_its_file_never_reads_a_cached_score(tmp_path):
    file, cache = tmp_path / "rules.md", str(tmp_path / "cache")
    for text in ("Brevity counts.", "Length counts."):
        file.write_text(text)
        rubric = Rubric.model_validate({"rules": {"file": str(file)}})
        server, _ = play(eight, said("a"), cache=cache, rubric=rubric)
        assert text in server.asked[0].system
