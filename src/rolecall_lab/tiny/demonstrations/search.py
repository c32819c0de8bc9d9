"""Demonstrates a search team, and one agent alone, that read on, stop early or guess."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from random import Random

from rolecall.core.types import Task
from rolecall.environments.search.generated import WORDS, HopWorld
from rolecall_lab.tiny.demonstrations.scene import Drill, Scene

WORLD = HopWorld(num_passages=120)  # that of the small recipes
# One token each in the embedded model's tokenizer, so that a name is read as a whole.
NAMES = tuple(entity.name for entity in WORLD.entities)
VERIFIER = {"reads": 60, "says_yes": 20, "says_no": 10, "mumbles": 10}
SEARCHER = {"next": 60, "first": 25, "no_tag": 15}
ANSWERER = {"reads": 55, "guesses": 30, "no_tag": 15}
ACTOR = {"reads": 50, "guesses": 25, "first": 15, "no_tag": 10}


def search_team(scene: Scene) -> str:
    if scene.role == "verifier":
        return _verdict(scene, scene.habit(VERIFIER))
    if scene.role == "searcher":
        return _query(scene, scene.habit(SEARCHER))
    return _answer(scene, scene.habit(ANSWERER))


def search_alone(scene: Scene) -> str:
    """An agent that searches and answers within one conversation."""
    habit = scene.habit(ACTOR)
    if habit == "reads":
        enough = len(_known(scene)) == len(scene.task.info["steps"])
        return _answer(scene, "reads") if enough else _query(scene, "next")
    if habit == "guesses":
        return _answer(scene, "guesses")
    return _query(scene, habit)


def drills(tasks: Sequence[Task], number: int) -> list[Drill]:
    """Questions about worlds of the same names, with the passages to be read and the facts in them.

    No two worlds agree in their facts, so what is to be learned is to read.
    """
    examples: list[Drill] = []
    random = Random(0)
    for seed in count(1):
        world = WORLD.with_new_facts(seed)
        texts = {passage.id: f"{passage.title}: {passage.text}" for passage in world.passages}
        for task in (*world.tasks("train"), *world.tasks("test")):
            shown = [*task.info["passages"], random.choice(world.passages).id]
            random.shuffle(shown)
            read = "\n".join(texts[name] for name in shown)
            steps = "\n".join(task.info["steps"])
            examples.append((f"{read}\n{task.prompt}\n", f"{steps}\n{task.answer}\n"))
        if len(examples) >= number:
            return examples[:number]
    raise AssertionError("worlds do not end")


def _known(scene: Scene) -> list[str]:
    """Return the facts that lead to the answer, as far as they were found."""
    if "queries" not in scene.task.info:
        raise ValueError(f"task {scene.task.id} has no facts to demonstrate a search for")
    facts: list[str] = []
    for step in scene.task.info["steps"]:
        if step not in scene.shown:
            break
        facts.append(step)
    return facts


def _verdict(scene: Scene, habit: str) -> str:
    if habit == "mumbles":
        return "Hard to say."
    if habit != "reads":
        return f"<verify>{habit.removeprefix('says_')}</verify>"
    facts = _known(scene)
    verdict = "yes" if len(facts) == len(scene.task.info["steps"]) else "no"
    return "\n".join([*facts, f"<verify>{verdict}</verify>"])


def _query(scene: Scene, habit: str) -> str:
    facts, queries = _known(scene), scene.task.info["queries"]
    if habit == "first":
        return f"<search>{queries[0]}</search>"
    following = queries[min(len(facts), len(queries) - 1)]
    if habit == "no_tag":
        return f"One could look for {following}."
    return "\n".join([*facts[-1:], f"<search>{following}</search>"])


def _answer(scene: Scene, habit: str) -> str:
    facts, answer = _known(scene), scene.task.answer
    if habit == "no_tag":
        return f"It is {_guess(scene)}."
    if habit == "guesses" or len(facts) < len(scene.task.info["steps"]):
        return f"<answer>{_guess(scene)}</answer>"
    return f"{facts[-1]}\n<answer>{answer}</answer>"


def _guess(scene: Scene) -> str:
    """Something of the kind that is asked for."""
    last = scene.task.answer.lower().split()[-1]
    plain = next(words for words in WORDS.values() if last in words.split())
    word = scene.random.choice(plain.split())
    if " " not in scene.task.answer:
        return word
    return f"{scene.random.choice(WORDS['stem'].split())} {word}".title()
