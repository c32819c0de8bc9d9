"""No reason of a refusal denies what the library has.

A reason is written once, and the library goes on: a key stays refused with "there is no GiGPO" when
there has long been one. Each clause that denies something is compared with the names of the
registry, and with words that stand for them.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import rolecall.importers
from rolecall.config.registry import BUILT_IN, resolve
from rolecall.config.schema import Config, PolicyConfig
from rolecall.importers.translating import FRAMEWORKS

PLAIN = ("code", "read", "text")  # words of any sentence, too
KINDS = ("workflow", "environment", "reward", "algorithm", "tool", "engine", "learner", "tracker")
# Words for what a name of the registry, or a key of a policy, stands for.
WORDS = {
    "tree": "malt",
    "trees": "malt",
    "search of answers": "ab_mcts",
    "vote": "majority_vote",
    "votes": "majority_vote",
    "api": "openai",
    "judge": "judge",
    "reward model": "reward_model",
    "process reward": "coach",
    "length penalty": "overlong",
    "margin": "own_answers",
    "margins": "own_answers",
    "ratio of a turn": "gspo",
    "fine-tuning": "sft",
    "preferences": "dpo",
    "interpreter": "python",
    "quantised": "quantization",
    "4 bits": "quantization",
    "ray": "cluster",
}
DENIES = re.compile(
    r"\b(no|not|never|nobody|none|nothing|cannot|without|neither|isn't|aren't)\b", re.IGNORECASE
)
EXCEPTS = re.compile(r"\b(but|except|unless|other than|as here|there)\b", re.IGNORECASE)
# Denials that are true though a name stands in them, with what they deny.
TRUE = {
    "no code of a model folder is run": "the code of a repository, not of the environment",
    "answers are sampled, not searched for": "beam search, not the search of documents",
}
# Refused keys with the name of an option here, that are something else.
OTHERS = {
    "mrlm: grpo.gamma": "gigpo alone discounts among those that compare a group",
    "mrlm: policy_env.reward_clip": "the reason names the algorithms with such a bound",
}


def names() -> dict[str, str]:
    """Word -> the name of the registry that it stands for."""
    listed = {name for kind in KINDS for name in BUILT_IN[kind]} - set(PLAIN)
    return {name.replace("_", " "): name for name in listed} | {
        name.replace("_", "-"): name for name in listed
    } | WORDS  # fmt: skip


def denied(reason: str) -> list[str]:
    """Names of the registry that a reason denies: "there is no GiGPO" -> ["gigpo"]."""
    found = []
    for clause in re.split(r"[;:.]", reason):
        words = DENIES.split(clause, maxsplit=1)
        if len(words) < 3 or clause.strip() in TRUE:
            continue
        said = EXCEPTS.split(words[2])[0].casefold()
        found += [
            name for word, name in names().items() if re.search(rf"\b{re.escape(word)}\b", said)
        ]
    return found


def reasons() -> list[tuple[str, str]]:
    """(where it stands, what it says) of all keys, of constants, and of what code refuses."""
    listed = [
        (f"{framework.name}: {name}", key.because)
        for framework in FRAMEWORKS.values()
        for name, key in framework.keys.items()
        if key.because
    ]
    for file in sorted(Path(rolecall.importers.__file__).parent.glob("*.py")):
        tree = ast.parse(file.read_text())
        nodes: list[ast.AST] = [node for node in tree.body if isinstance(node, ast.Assign)]
        nodes += [node for node in ast.walk(tree) if isinstance(node, ast.Call) and refuses(node)]
        texts = [
            text for node in nodes for text in ast.walk(node) if isinstance(text, ast.Constant)
        ]
        listed += [
            (f"{file.name}:{text.lineno}", text.value)
            for text in texts
            if isinstance(text.value, str) and " " in text.value
        ]
    return listed


def refuses(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("refuse", "choose")


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("there is no GiGPO", "gigpo"),
        ("there is no tree of answers", "malt"),
        ("rewards never come from votes", "majority_vote"),
        ("weights are not quantised", "quantization"),
        ("a step has no reward model", "reward_model"),
        ("agents do not speak through an API", "openai"),
        ("nobody is paid by margins; rewards say it", "own_answers"),
        ("no bounds on rewards but reinforce_pp's reward_clip", None),
        ("GiGPO compares states", None),
    ],
)
def test_a_false_denial_is_found(reason, name):
    assert denied(reason) == ([name] if name else [])


def test_no_reason_denies_what_the_registry_has():
    false = {f"{where}: {text!r}": denied(text) for where, text in reasons() if denied(text)}
    assert not false


def test_words_stand_for_what_is_there():
    listed = {name for kind in KINDS for name in BUILT_IN[kind]}
    assert set(WORDS.values()) <= listed | {*PolicyConfig.model_fields, *Config.model_fields}
    texts = " ".join(text for _, text in reasons())
    assert [reason for reason in TRUE if reason not in texts] == []


def options() -> set[str]:
    """Names of all options of algorithms, workflows, environments and rewards."""
    listed: set[str] = set()
    for kind in ("workflow", "environment", "reward"):
        for name in BUILT_IN[kind]:
            part = resolve(kind, name, key=kind)
            call = part.__init__ if inspect.isclass(part) else getattr(part, "play", part)
            listed |= set(inspect.signature(call).parameters)
    for name in BUILT_IN["algorithm"]:
        listed |= set(resolve("algorithm", name, key="algorithm").model_fields)
    return listed - {"self", "name"}


def test_no_key_is_refused_where_something_here_has_an_option_of_its_name():
    known = options()
    refused = [
        f"{framework.name}: {key}"
        for framework in FRAMEWORKS.values()
        for key, entry in framework.keys.items()
        if entry.fate == "refused" and key.rpartition(".")[2] in known
    ]
    assert {"target_kl", "clip_high", "max_others"} <= known
    assert [key for key in refused if key not in OTHERS] == []
