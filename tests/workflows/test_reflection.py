"""A teacher corrects a student: what is recorded, which rows it gives, and what sft imitates."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rolecall.agents.agent import Policy
from rolecall.config.data_set_export import CollectConfig
from rolecall.core.interfaces.environment import Observation
from rolecall.core.types import Episode
from rolecall.data.files import read_rows
from rolecall.data.writing import write_rows
from rolecall.demonstrations.data_set import COLUMNS, make_rows
from rolecall.demonstrations.offline_data import demonstrations, fingerprint
from rolecall.engines.scripted import ScriptedEngine
from rolecall.models.loading import load_tokenizer
from rolecall.workflows.reflection import reflection, reflection_steps
from tests.toy import agent
from tests.workflows.teams import SumWorld, play_team, turns_of

REJECT, APPROVE = "<verify>reject</verify>", "<verify>approve</verify>"
WRONG, RIGHT = "It is \\boxed{8}.", "\\boxed{7}"
ADVICE = "Wait, 3+4 is 7: \\boxed{7}"
SECRET = "You are the teacher."


def taught(folder, *, student=(WRONG,), teacher=(REJECT, ADVICE), **options) -> Episode:
    says = {"student": list(student), "teacher": list(teacher)}
    return play_team(folder, reflection, says, agents={"teacher": {"system": SECRET}}, **options)


def rows_of(episode, folder, **options):
    prints = dict.fromkeys(("student", "teacher"), fingerprint(load_tokenizer(str(folder))))
    config = CollectConfig(agents=["student"], **options)
    return make_rows([episode], config, tokenizers=prints)


def test_a_wrong_answer_goes_on_with_the_teachers_words(model_folder):
    episode = taught(model_folder)
    wrong, written = turns_of(episode, "student")
    assert (wrong.text, wrong.chosen, wrong.trained) == (WRONG, False, False)
    assert written.text == f"{WRONG}\n{ADVICE}"
    assert (written.chosen, written.trained, written.tokens) == (True, False, None)
    assert episode.answer == written.text
    assert episode.scores == {"team": 1.0}
    assert episode.metrics["count/corrections"] == 1


def test_its_row_holds_the_error_at_weight_0_and_nothing_of_the_teachers_prompt(model_folder):
    [row] = rows_of(taught(model_folder), model_folder, least=1)
    assert row["completion"] == [
        {"text": f"{WRONG}\n", "weight": 0},
        {"text": ADVICE, "weight": 1},
    ]
    assert [message["content"] for message in row["prompt"]] == ["What is 3+4?"]
    assert SECRET not in json.dumps(row)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_the_student_imitates_the_correction_alone(model_folder, tmp_path, suffix):
    rows = rows_of(taught(model_folder), model_folder)
    file = tmp_path / f"rows.{suffix}"
    write_rows(file, rows, columns=COLUMNS["demonstrations"])
    assert len(list(read_rows(file))) == 1
    tokenizer = load_tokenizer(str(model_folder))
    policy = Policy("student", tokenizer, ScriptedEngine(tokenizer, lambda _: ""))
    [[shown]] = demonstrations(file, {"student": agent("student", policy)})
    turn = shown.turns[0]
    imitated = np.flatnonzero(turn.training.imitated)
    assert tokenizer.decode(turn.tokens[imitated][:-1]) == ADVICE
    assert tokenizer.decode(turn.tokens[: imitated[0]]) == f"{WRONG}\n"


def test_a_correction_that_is_wrong_itself_is_left_out(model_folder):
    episode = taught(model_folder, teacher=(REJECT, "Wait: \\boxed{9}"))
    assert episode.scores == {"team": 0.0}
    assert rows_of(episode, model_folder) == []


@pytest.mark.parametrize("verdict", [APPROVE, "I cannot say."])
def test_an_answer_that_is_not_rejected_stays_as_it_was_sampled(model_folder, verdict):
    episode = taught(model_folder, student=(RIGHT,), teacher=(verdict,))
    [row] = rows_of(episode, model_folder)
    assert row["completion"] == RIGHT
    assert row["completion_ids"] == turns_of(episode, "student")[0].tokens.tolist()
    assert "count/corrections" not in episode.metrics


def test_a_checker_may_judge_in_place_of_the_teacher(model_folder):
    says = {"student": [WRONG], "teacher": [ADVICE], "checker": [REJECT]}
    options = {"checker": "checker", "judge": "", "correct": ""}
    episode = play_team(model_folder, reflection, says, options=options)
    [advice] = turns_of(episode, "teacher")
    asked = "What is 3+4?\n\n[student]\nIt is \\boxed{8}.\n\n[checker]\n<verify>reject</verify>"
    assert advice.messages[-1].content == asked


class Door(SumWorld):
    """A door that opens when it is pushed; a wrong action is seen to do nothing."""

    async def reset(self) -> Observation:
        return Observation("A door.")

    async def step(self, agent: str, action: str) -> Observation:
        opens = action.endswith("push")
        return Observation("Open." if opens else "Nothing happens.", done=opens)

    async def score(self, episode: Episode) -> dict[str, float]:
        return {"team": float(episode.answer.endswith("push"))}


def test_after_a_wrong_action_the_teacher_acts_and_the_error_is_only_shown(model_folder):
    says = {"student": ["pull"], "teacher": [REJECT, "It opens the other way: push"]}
    episode = play_team(model_folder, reflection_steps, says, world=Door)
    wrong, written = turns_of(episode, "student")
    assert (wrong.chosen, wrong.trained) == (True, False)
    [row] = rows_of(episode, model_folder)
    assert row["completion"] == "It opens the other way: push"
    said = [(message["role"], message["content"]) for message in row["prompt"]]
    opening = "What is 3+4?\n\nA door."
    assert said == [("user", opening), ("assistant", "pull"), ("user", "Nothing happens.")]
    assert written.observation == "Nothing happens."


def test_pairs_hold_no_answer_that_a_teacher_corrected(model_folder):
    wrong = turns_of(taught(model_folder), "student")[0]
    other = taught(model_folder, student=("\\boxed{6}",), teacher=(APPROVE,), attempt=1)
    prints = dict.fromkeys(("student", "teacher"), "print")
    config = CollectConfig(agents=["student"], pairs=True)
    episodes = [taught(model_folder), other]
    assert wrong.tokens is not None
    assert make_rows(episodes, config, tokenizers=prints) == []
