"""Generates the passages of a small invented world, and questions about it.

People, towns, firms, things and lands have a passage each, which tells its facts; a question
follows one to three facts, each in the passage of the answer before. Entities of the training
questions and of the test questions lie in one corpus and know nothing of one another, so neither a
text nor a fact of a test question is ever trained on.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from random import Random

from rolecall.core.seeding import derive_seed
from rolecall.core.types import Task
from rolecall.retrieval.base import Passage

TEST_SHARE = 4  # one entity in so many belongs to the test questions
SIZES = (60, 500)  # passages a world may have

WORDS = {  # all that names and plain values are made of
    "stem": "bor cal dov fen gul hax jom kip lun mav nex pol quin rud sab tor ulm vik wex zel",
    "person": "abo brin cruz dalt ekko firn gant hulm ivor jask kern lode morn nube",
    "town": "ford vale port hill gate well moor bank",
    "firm": "forge mills lines stores",
    "thing": "lamp clock bridge engine boat bell",
    "land": "north south east west",
    "colour": "red blue green white black yellow brown grey",
    "metal": "iron copper silver gold tin lead steel brass",
    "goods": "glass salt wool paper cheese honey silk bread",
}
SHARES = {"person": 0.4, "town": 0.2, "firm": 0.15, "thing": 0.18, "land": 0.07}


@dataclass(frozen=True, slots=True)
class Relation:
    """One fact that every entity of a kind has; {} stands for the entity."""

    name: str
    of: str  # kind of the entity
    to: str  # kind of the value: of entities, or of plain words
    sentence: str  # of the passage; {} is the entity, {value} its value
    question: str
    phrase: str = ""  # names the value within a longer question; plain words have none


RELATIONS = (
    Relation("born", "person", "town", "{} was born in {value}.", "Where was {} born?",
             "the town where {} was born"),
    Relation("employer", "person", "firm", "{} works for {value}.", "Which firm does {} work for?",
             "the firm that {} works for"),
    Relation("teacher", "person", "person", "The teacher of {} was {value}.",
             "Who was the teacher of {}?", "the teacher of {}"),
    Relation("land", "town", "land", "{} lies in {value}.", "In which land does {} lie?",
             "the land of {}"),
    Relation("mayor", "town", "person", "The mayor of {} is {value}.",
             "Who is the mayor of {}?", "the mayor of {}"),
    Relation("goods", "town", "goods", "{} is known for {value}.", "What is {} known for?"),
    Relation("seat", "firm", "town", "{} has its seat in {value}.",
             "Where does {} have its seat?", "the seat of {}"),
    Relation("head", "firm", "person", "The head of {} is {value}.",
             "Who is the head of {}?", "the head of {}"),
    Relation("maker", "thing", "person", "The {} was made by {value}.",
             "Who made the {}?", "the maker of the {}"),
    Relation("metal", "thing", "metal", "The {} is made of {value}.", "What is the {} made of?"),
    Relation("flag", "land", "colour", "The flag of {} is {value}.",
             "What colour is the flag of {}?"),
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Entity:
    """Somebody or something with a passage of its own."""

    kind: str
    name: str
    split: str  # of the questions that may follow its facts
    facts: dict[str, Entity | str] = field(default_factory=dict)  # relation -> value

    def __str__(self) -> str:
        return self.name


class HopWorld:
    """`passages` of a whole world, and the questions of each split in a fixed shuffled order."""

    def __init__(self, *, num_passages: int = 300, seed: int = 0) -> None:
        """Generate passages; raises ValueError for a size that the invented names do not allow."""
        if not SIZES[0] <= num_passages <= SIZES[1]:
            raise ValueError(f"a generated corpus has {SIZES[0]} to {SIZES[1]} passages")
        self.seed = seed
        self.entities = _entities(num_passages, Random(derive_seed("hops", seed)))
        self.passages = [_passage(entity) for entity in self.entities]

    def with_new_facts(self, seed: int) -> HopWorld:
        """Return a world of the same names with other facts."""
        other = copy.copy(self)
        other.seed = derive_seed("retold", self.seed, seed)
        other.entities = [replace(entity, facts={}) for entity in self.entities]
        _draw_facts(other.entities, Random(other.seed))
        other.passages = [_passage(entity) for entity in other.entities]
        return other

    def tasks(self, split: str, *, hops: Sequence[int] = (1, 2, 3)) -> list[Task]:
        """Return all questions of a split that follow so many facts.

        `info` has, in the order of the hops: `passages` (ids), `queries` (what to search for) and
        `steps` (the sentence that tells the fact).
        """
        chains = [
            chain
            for entity in self.entities
            if entity.split == split
            for number in sorted(set(hops))
            for chain in _chains(entity, number)
        ]
        Random(derive_seed("hop questions", self.seed, split)).shuffle(chains)
        return [_task(chain, f"hops-{split}-{number}") for number, chain in enumerate(chains)]


Step = tuple[Entity, Relation]


def _entities(number: int, random: Random) -> list[Entity]:
    """Return entities with different names and with values of their own split."""
    counts = {kind: round(share * number) for kind, share in SHARES.items()}
    counts["person"] += number - sum(counts.values())
    entities: list[Entity] = []
    for kind, count in counts.items():
        parts = product(WORDS["stem"].split(), WORDS[kind].split())
        names = [" ".join(words).title() for words in parts]
        random.shuffle(names)
        for index, name in enumerate(names[:count]):
            entities.append(Entity(kind, name, "train" if index % TEST_SHARE else "test"))
    _draw_facts(entities, random)
    random.shuffle(entities)
    return entities


def _draw_facts(entities: list[Entity], random: Random) -> None:
    for entity in entities:
        for relation in RELATIONS:
            if relation.of == entity.kind:
                entity.facts[relation.name] = random.choice(_values(relation, entity, entities))


def _values(relation: Relation, entity: Entity, among: list[Entity]) -> Sequence[Entity | str]:
    if relation.to not in SHARES:
        return WORDS[relation.to].split()
    return [e for e in among if e.kind == relation.to and e.split == entity.split and e != entity]


def _passage(entity: Entity) -> Passage:
    sentences = [_told(entity, relation) for relation in RELATIONS if relation.of == entity.kind]
    return Passage(_id(entity), entity.name, " ".join(sentences))


def _told(entity: Entity, relation: Relation) -> str:
    return relation.sentence.format(entity, value=entity.facts[relation.name])


def _id(entity: Entity) -> str:
    return entity.name.lower().replace(" ", "-")


def _chains(entity: Entity, length: int) -> list[list[Step]]:
    """Return every way to follow `length` facts without coming back to an entity met before."""
    chains: list[list[Step]] = []
    for relation in RELATIONS:
        if relation.of != entity.kind:
            continue
        value = entity.facts[relation.name]
        if length == 1:
            chains.append([(entity, relation)])
        elif isinstance(value, Entity):
            chains += [[(entity, relation), *rest] for rest in _chains(value, length - 1)]
    return [chain for chain in chains if not _comes_back(chain)]


def _comes_back(chain: list[Step]) -> bool:
    last, relation = chain[-1]
    met = [*(entity for entity, _ in chain), last.facts[relation.name]]
    return len(set(met)) < len(met)


def _task(chain: list[Step], name: str) -> Task:
    subject = chain[0][0].name
    for _, relation in chain[:-1]:
        subject = relation.phrase.format(subject)
    last, relation = chain[-1]
    return Task(
        name,
        relation.question.format(subject),
        str(last.facts[relation.name]),
        {
            "source": f"{len(chain)} hops" if len(chain) > 1 else "1 hop",
            "passages": [_id(entity) for entity, _ in chain],
            "queries": [entity.name for entity, _ in chain],
            "steps": [_told(entity, relation) for entity, relation in chain],
        },
    )
