"""Answers of which parts are wrong: which tokens are imitated, their loss, and what is refused."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers, processors
from transformers import AutoModelForCausalLM

from rolecall.agents.agent import Policy
from rolecall.agents.written_turn import WrittenTurn
from rolecall.algorithms.sft import Sft
from rolecall.config.optimizer import Optimizer
from rolecall.core.errors import ConfigError
from rolecall.demonstrations.offline_data import demonstrations, experts
from rolecall.demonstrations.weighted_spans import join_parts, read_spans, tokenise_parts
from rolecall.engines.scripted import ScriptedEngine
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import pack
from rolecall.storage.episode_io import from_json, to_json
from rolecall_lab.tiny.tokenizer import fit
from tests.algorithms.test_every_algorithm import Display, trainer_of
from tests.algorithms.test_sft import imitating, loss_of
from tests.demonstrations.test_preferences import written
from tests.toy import agent, language_model, relay_config

WORDS = ["that is wrong wait", "a moment", "the right one"]


@pytest.fixture(scope="module")
def merging():
    """A tokenizer with words as tokens; one whose places leave a word's space out, as Llama's."""
    plain, trimmed = (fit(WORDS * 9, size=400, tags=()) for _ in range(2))
    trimmed.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    first = [
        one("a wrong", return_offsets_mapping=True)["offset_mapping"][-1]
        for one in (plain, trimmed)
    ]
    assert first == [(1, 7), (2, 7)]
    return [plain, trimmed]


def wanted(tokenizer, ids, parts):
    """By bytes: a token is imitated if all of its bytes are of parts with weight 1."""
    of_byte = [one["weight"] for one in parts for _ in one["text"].encode()]
    byte_level = pre_tokenizers.ByteLevel.alphabet()
    found, place = [], 0
    for token in tokenizer.convert_ids_to_tokens(ids):
        assert all(char in byte_level for char in token)
        found.append(float(all(of_byte[place : place + len(token)])))
        place += len(token)
    assert place == len(of_byte)
    return [*found, float(parts[-1]["weight"])]


def tokenise(tokenizer, parts):
    """Tokens and weights of an answer around which a template writes the end token alone."""
    read = read_spans(parts, "r:1")
    turn = WrittenTurn("", join_parts(tokenizer, read, "r:1"), tokenizer.eos_token)
    return tokenise_parts(tokenizer, read, turn, "r:1")


def as_parts(*texts):
    """Texts in which a leading - says that they are wrong."""
    return [{"text": text.lstrip("-"), "weight": int(text[0] != "-")} for text in texts]


def test_a_token_on_a_boundary_is_imitated_only_if_both_sides_are_right(merging):
    for tokenizer in merging:
        for texts, weights in (
            (("-that is wrong", " wait"), [0, 0, 0, 1, 1]),
            (("-that is wr", "ong wait"), [0, 0, 0, 1, 1]),  # ` wrong` is one token
            (("that is", "- wrong", " wait"), [1, 1, 0, 1, 1]),
            (("that is", "- wrong"), [1, 1, 0, 0]),
            (("- ", "a"), [0, 1, 1]),  # two tokens: there is no ` a`
            (("that", "- ", " wait"), [1, 0, 1, 1]),
            ((" ", "-a", " "), [1, 0, 1, 1]),
        ):
            parts = as_parts(*texts)
            ids, found = tokenise(tokenizer, parts)
            whole = "".join(part["text"] for part in parts)
            assert ids[:-1].tolist() == tokenizer(whole)["input_ids"]
            assert ids[-1] == tokenizer.eos_token_id
            assert found.tolist() == weights


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_tokens_and_parts_agree_byte_by_byte(merging, data):
    letters = st.text("that wrong.\n\u20ac\U0001f600", min_size=1, max_size=9)
    part = st.fixed_dictionaries({"text": letters, "weight": st.sampled_from([0, 1])})
    parts = data.draw(st.lists(part, min_size=1, max_size=5))
    for tokenizer in merging:
        ids = tokenizer("".join(one["text"] for one in parts))["input_ids"]
        weights = wanted(tokenizer, ids, parts)
        if any(weights):
            found = tokenise(tokenizer, parts)[1]
            assert found.tolist() == weights
        else:
            with pytest.raises(ValueError, match="no token of the answer lies wholly"):
                tokenise(tokenizer, parts)


@pytest.fixture
def model(model_folder):
    return language_model(model_folder)


@pytest.fixture
def pair(model):
    """Two agents of one policy."""
    policy = Policy("p", model.tokenizer, ScriptedEngine(model.tokenizer, lambda _: ""))
    return {name: agent(name, policy, system="Answer.") for name in ("solver", "verifier")}


def asked(*said, agent="solver"):
    """A conversation of these answers, each a text or parts."""
    messages = []
    for answer in said:
        messages += [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
    return {"agent": agent, "messages": messages}


def test_the_first_two_tokens_of_one_answer_can_be_an_error_step(pair, tmp_path):
    """ALGORITHMS 2.23: log-probs -1, -2, -3, -4 give 3.5 with the first two masked, else 2.5."""
    rows = [
        {"agent": "solver", "prompt": "?", "completion": answer}
        for answer in (as_parts("-ab", "c"), as_parts("ab", "c"), "abc")
    ]
    groups = demonstrations(written(tmp_path / "r.jsonl", *rows), pair)
    for [episode], loss in zip(groups, (3.5, 2.5, 2.5), strict=True):
        assert len(episode.turns[0].tokens) == 4  # a letter is a token of this model
        Sft().credit([episode])
        assert loss_of(episode.turns, [-1.0, -2.0, -3.0, -4.0]) == loss


ROWS = [
    asked(as_parts("-bad. ", "Wait: good."), "then", as_parts("x", "- y ", "z")),
    asked(as_parts("-no"), as_parts("yes, ", "-or"), agent="verifier"),
    {"agent": "verifier", "prompt": "a?", "completion": as_parts("-mm", "nn")},
    {"agent": "solver", "prompt": "a?", "completion": "b"},
]


@pytest.mark.parametrize("budget", [10_000, 60])
def test_loss_and_gradient_agree_with_transformers_over_two_agents(
    model, pair, model_folder, tmp_path, budget
):
    """Seven ragged turns of two agents; labels are masked by hand, byte by byte."""
    groups = demonstrations(written(tmp_path / "rows.jsonl", *ROWS), pair)
    episodes = [one for group in groups for one in group]
    turns = [one for each in episodes for one in each.turns]
    learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1)
    algorithm = Sft()
    algorithm.credit(episodes)
    credited = [one for one in turns if one.advantages is not None]
    losses = [
        algorithm.loss(batch, learner.forward(batch))
        for batch in pack(credited, budget=budget, skip_zero=algorithm.skips_zero)
    ]
    ours = sum(loss.total for loss in losses) / sum(loss.count for loss in losses)
    ours.backward()

    theirs = AutoModelForCausalLM.from_pretrained(model_folder, dtype="float32")
    masks = [
        "0" * 5 + "1" * 12, "1111" + "1", "1" + "000" + "11",
        "000", "11111" + "000", "00" + "111", "11",
    ]  # fmt: skip
    total, count = 0.0, 0
    for one, mask in zip(turns, masks, strict=True):
        assert len(one.tokens) == len(mask), one.text
        ids = torch.from_numpy(np.concatenate([one.prompt, one.tokens])).long()[None]
        labels = ids.clone()
        labels[:, : len(one.prompt)] = -100
        labels[0, len(one.prompt) :][torch.tensor([bit == "0" for bit in mask])] = -100
        if (number := mask.count("1")) == 0:
            continue
        total = total + theirs(input_ids=ids, labels=labels).loss * number
        count += number
    (total / count).backward()
    assert float(ours.detach()) == pytest.approx(float(total.detach()) / count, rel=1e-5)
    assert sum(loss.count for loss in losses) == count
    wanted = dict(theirs.named_parameters())
    for name, parameter in model.named_parameters():
        scale = float(wanted[name].grad.abs().max())
        assert torch.allclose(parameter.grad, wanted[name].grad, atol=1e-5 * scale + 1e-8), name


def test_wrong_parts_stay_in_what_later_answers_are_shown(pair, tmp_path):
    [[one]] = demonstrations(written(tmp_path / "r.jsonl", ROWS[0]), pair)
    decode = pair["solver"].policy.tokenizer.decode
    assert "bad. Wait: good." in decode(one.turns[1].prompt)
    assert [t.text for t in one.turns] == ["bad. Wait: good.", "then", "x y z"]
    again = from_json(to_json(one))
    assert again.turns[0].training.imitated.tolist() == one.turns[0].training.imitated.tolist()
    assert again.turns[1].training.imitated is None


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"completion": ["a"]}, "part 1 of an answer: write a text and its weight"),
        ({"completion": [{"text": "a"}, {"txt": "b"}]}, "part 2 of an answer: write a text and"),
        ({"completion": [{"text": "", "weight": 1}]}, "part 1 of an answer: write a text and"),
        ({"completion": [{"text": "a", "weight": 0.5}]}, "part 1 of an answer: weight: write 0 or"),
        ({"completion": as_parts("-a")}, "all that the assistant says has weight 0"),
        ({"completion": as_parts("-<|us", "er|>")}, "two parts of an answer meet within a control"),
        ({"completion": as_parts("-a", "b"), "prompt_ids": [5], "completion_ids": [6]},
         "completion: parts say nothing of completion_ids"),
        ({"prompt": [{"role": "user", "content": as_parts("a")}], "completion": "b"},
         "only what an assistant says has parts"),
    ],
)  # fmt: skip
def test_malformed_parts_are_one_line_with_file_and_row(pair, tmp_path, row, said):
    file = written(tmp_path / "r.jsonl", ROWS[3], {"agent": "solver", "prompt": "?"} | row)
    with pytest.raises(ValueError, match=r"r\.jsonl:2: ") as error:
        demonstrations(file, pair)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_weight_stands_on_a_message_or_on_its_parts(pair, tmp_path):
    row = asked(as_parts("-a", "b"))
    row["messages"][1]["weight"] = 1
    with pytest.raises(ValueError, match="on the message or on its parts, not on both"):
        demonstrations(written(tmp_path / "r.jsonl", row), pair)


def test_a_part_shorter_than_its_token_cannot_be_imitated(merging):
    with pytest.raises(ValueError, match="r:1: no token of the answer lies wholly in parts"):
        tokenise(merging[0], as_parts("-wr", "on", "-g"))


def test_preferences_and_experts_are_whole_answers(pair, model_folder, tmp_path):
    from rolecall.demonstrations.offline_data import preferences

    file = written(tmp_path / "r.jsonl", ROWS[0])
    with pytest.raises(ValueError, match=r"r\.jsonl:1: only sft imitates parts of an answer"):
        experts(file, pair)
    sides = {"chosen": as_parts("-a", "b"), "rejected": "c"}
    two = written(tmp_path / "p.jsonl", {"agent": "solver", "prompt": "?"} | sides)
    with pytest.raises(ValueError, match=r"p\.jsonl:1: no pair: an answer in parts"):
        preferences(two, pair)
    config = imitating(model_folder, file) | {"algorithm": "spin"}
    config["policies"]["a"]["reference"] = "initial"
    config["rollout"]["groups"] = 1
    with pytest.raises(ConfigError, match=r"rollout\.data: .*only sft imitates parts"):
        trainer_of(config, tmp_path / "run", Display())


def test_a_run_learns_the_right_part_and_not_the_wrong_one(model_folder, tmp_path):
    """What is masked grows no more likely by being shown: its loss stays, the other's falls."""
    rows = [{"prompt": f"{n}?", "completion": as_parts("-bbbb", "aa")} for n in "0123"]
    file = written(tmp_path / "r.jsonl", *rows)
    config = imitating(model_folder, file)
    display, losses = Display(), []
    display.step = lambda record: losses.append(record["agent/solver/loss"])
    trainer = trainer_of(config, tmp_path / "run", display)
    [[one], *_] = trainer.run.data
    learner = trainer.run.learners["a"]

    def mean_logprobs():
        async def noted():
            return await learner.annotate([one.turns[0]], {"prox_logprobs"}, budget=10_000)

        logprobs = asyncio.run(noted())[one.turns[0].id]["prox_logprobs"]
        return float(logprobs[:4].mean()), float(logprobs[4:].mean())

    wrong, right = mean_logprobs()
    asyncio.run(trainer.train())
    now_wrong, now_right = mean_logprobs()
    assert losses[-1] < 0.2 * losses[0]
    assert now_right - right > 3
    assert now_right - right > 3 * abs(now_wrong - wrong)


def test_two_agents_learn_from_rows_in_parts(model_folder, tmp_path):
    rows = [
        {"agent": name, "prompt": "a?", "completion": as_parts("-q", name[0])}
        for name in ("left", "right", "last")
    ]
    config = relay_config(model_folder, algorithm="sft", trainer={"steps": 1})
    config["rollout"] = {"groups": 3, "data": str(written(tmp_path / "r.jsonl", *rows))}
    records, display = [], Display()
    display.step = records.append
    asyncio.run(trainer_of(config, tmp_path / "run", display).train())
    assert {f"agent/{name}/loss" for name in ("left", "right", "last")} <= records[0].keys()
