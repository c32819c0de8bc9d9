"""A text is scored by its likeness to reference texts, as the published measures have it."""

from __future__ import annotations

import asyncio
import json
import math

import pytest

from rolecall.core.types import Episode, Task
from rolecall.environments.text.environment import TextEnvironment
from rolecall.grading.reviews import score_review
from rolecall.grading.text import measure
from rolecall.workflows.base import Workflow
from rolecall.workflows.candidates import play_best
from rolecall.workflows.single import single
from tests.environments.contexts import play_in, said_by


def score(environment, task, answer, **notes):
    episode = Episode("e", task, 0, 0, answer=answer, **notes)
    return asyncio.run(environment.open(task, seed=0).score(episode))["team"]


@pytest.mark.parametrize(
    ("metric", "text", "reference", "value"),
    [
        ("rouge1", "the cat sat", "The cat sat down.", 6 / 7),  # precision 3/3, recall 3/4
        ("rouge2", "the cat sat", "The cat sat down.", 4 / 5),  # 2/2, 2/3
        ("rouge1", "sat the cat", "the cat sat", 1.0),
        ("rougeL", "sat the cat", "the cat sat", 2 / 3),  # "the cat" is the longest in order
        ("rougeL", "a dog", "the cat sat", 0.0),
        ("chrf", "the cat sat", "the cat sat", 1.0),
        ("chrf", "ab", "ac", 1 / 4),  # letters 1/2, pairs 0/1: their mean
        ("bleu", "the cat sat on the mat", "the cat sat on the mat", 1.0),
        # 5/6 of the words, 3/5 of the pairs, 2/4 of the triples, 1/3 of the fours
        ("bleu", "the cat sat on a mat", "the cat sat on the mat", (1 / 12) ** 0.25),
        ("bleu", "so", "so", 1.0),
    ],
)
def test_each_measure_has_its_known_values(metric, text, reference, value):
    assert measure(metric)(text, [reference]) == pytest.approx(value)


@pytest.mark.parametrize("metric", ["rouge1", "rouge2", "rougeL", "chrf", "bleu"])
def test_any_of_several_references_will_do(metric):
    task = Task("t", "Say it.", ["It was a mild day in May.", "The spring weather was kind."])
    environment = TextEnvironment(metric=metric)
    for reference in task.answer:
        assert score(environment, task, reference) == pytest.approx(1.0)


def test_thinking_is_no_part_of_the_answer_and_an_empty_or_cut_answer_scores_nothing():
    environment, task = TextEnvironment(), Task("t", "Say it.", "the cat sat")
    assert score(environment, task, "<think>the dog</think>The cat sat") == 1.0
    for empty in ("", " \n", "<think>the cat sat</think>"):
        assert score(environment, task, empty) == 0.0
    assert score(environment, task, "the cat sat", is_truncated=True) == 0.0


def test_generated_reports_are_the_same_each_time_and_no_test_report_is_trained_on():
    environment = TextEnvironment(facts=3, test_size=50)
    train, test = environment.tasks("train"), environment.tasks("test")
    assert len(test) == 50
    assert not {t.prompt for t in train[:300]} & {t.prompt for t in test}
    assert train[7] == TextEnvironment(facts=3).tasks("train")[7]
    for task in test:
        report = task.prompt.partition("\n\n")[2]
        assert score(environment, task, task.answer) == 1.0
        assert 0 < score(environment, task, report) < 1  # all of it is no summary
        assert all(f"{sentence.rstrip('.')}." in report for sentence in task.answer.split(". "))


def test_rows_name_their_columns_and_columns_within_columns(tmp_path):
    rows = [
        {"id": 9, "translation": {"de": "Hallo", "en": ["Hello", "Hi"]}, "by": "Ann"},
        {"translation": {"de": "Tee", "en": "tea"}, "by": "Ben"},
    ]
    path = tmp_path / "words.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    environment = TextEnvironment(
        str(path), str(path), metric="chrf", question="translation.de", reference="translation.en"
    )
    assert environment.tasks("train") == [
        Task("9", "Hallo", ["Hello", "Hi"], {"source": "words", "by": "Ann"}),
        Task("words-2", "Tee", "tea", {"source": "words", "by": "Ben"}),
    ]


@pytest.mark.parametrize(
    "row", [{"question": "a"}, {"question": "a", "reference": " "}, {"reference": "a"},
            {"question": "a", "reference": []}, {"question": 3, "reference": "a"}],
)  # fmt: skip
def test_a_row_without_question_or_reference_is_an_error_that_names_file_and_row(tmp_path, row):
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(map(json.dumps, [{"question": "q", "reference": "r"}, row, row])))
    with pytest.raises(ValueError, match=r"texts\.jsonl:2: "):
        TextEnvironment(str(path)).tasks("train")


def test_a_reference_in_a_script_that_rouge_cannot_read_is_an_error_and_chrf_reads_it(tmp_path):
    path = tmp_path / "texts.jsonl"
    reference = "\u043c\u0438\u0440"  # Cyrillic
    path.write_text(json.dumps({"question": "peace", "reference": reference}))
    with pytest.raises(ValueError, match=r"texts\.jsonl:1: .*Latin"):
        TextEnvironment(str(path)).tasks("train")
    [task] = (environment := TextEnvironment(str(path), metric="chrf")).tasks("train")
    assert score(environment, task, reference) == 1.0


@pytest.mark.parametrize(
    "options",
    [{"question": "q"}, {"facts": 2, "train": "a", "test": "b"}, {"test": "b", "test_size": 3},
     {"facts": 9}, {"facts": 0}],
)  # fmt: skip
def test_an_option_without_effect_or_out_of_range_is_an_error(options):
    with pytest.raises(ValueError, match=r"effect|facts must be"):
        TextEnvironment(**options)


def test_a_whole_episode_is_scored(model_folder):
    environment = TextEnvironment()
    task = environment.tasks("test")[0]
    episode = play_in(environment, task, single, said_by(model_folder, solver=[task.answer]))
    assert episode.scores["team"] == 1.0


def test_the_better_of_two_drafts_is_played(model_folder):
    environment = TextEnvironment()
    task = environment.tasks("test")[0]

    async def draft(team, task, world):
        return await play_best(team.solver, world, task.prompt, number=2)

    flow = Workflow("draft", draft, ("solver",), candidates=True, forks=True)
    team = said_by(model_folder, solver=["no idea", task.answer])
    episode = play_in(environment, task, flow, team)
    assert [turn.chosen for turn in episode.turns] == [False, True]
    assert [turn.world_rewards["team"] for turn in episode.turns] == [0.0, 1.0]


WHOLE = (
    "<think>hm</think>\n## Summary\nIt counts.\n### Strengths\nIt is short.\n## Weaknesses\nFew.\n"
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (f"{WHOLE}Rating: 3, no, rating: 6", 1.0),
        (f"{WHOLE}**Rating:** 6", 0.0),  # no number follows the word
        (f"{WHOLE}Rating: 7", math.exp(-1 / 2.88)),
        (f"{WHOLE}Rating: 8", 0.0),
        (f"{WHOLE.replace('<think>hm</think>', '')}Rating: 6", 1 - 0.125),
        (f"{WHOLE.replace('It counts.', '')}Rating: 6", 1 - 0.125),
        ("Rating: 6", 0.5),
        ("Rating: 7.0", math.exp(-1 / 2.88) - 0.5),
        ("", 0.0),
    ],
)
def test_a_review_scores_by_its_rating_and_its_sections(text, value):
    assert score_review(text, 6.0) == pytest.approx(value)


def test_a_reference_holds_a_review_and_behind_the_separator_its_rating(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"question": "A paper.", "reference": "Fine.|6"}))
    files = {"train": str(file), "test": str(file)}
    environment = TextEnvironment(**files, metric="review", separator="|")
    [task] = environment.tasks("train")
    assert (task.answer, task.info["rating"]) == ("Fine.", 6.0)
    assert score(environment, task, f"{WHOLE}Rating: 6") == 1.0
    assert score(environment, task, f"{WHOLE}Rating: 6", is_truncated=True) == 0.0
    with pytest.raises(ValueError, match=r"rows\.jsonl.*needs a rating as its reference"):
        TextEnvironment(**files, metric="review").tasks("train")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"separator": "|"}, "separator has no effect"), ({"metric": "review"}, "needs files")],
)
def test_a_rating_needs_files_and_a_separator_a_rating(options, message):
    with pytest.raises(ValueError, match=message):
        TextEnvironment(**options)
