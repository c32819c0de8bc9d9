"""MA-AIRL: what the discriminator pays, from what it learns, and a team that imitates by it."""

from __future__ import annotations

import asyncio
import json
import math
import string
from random import Random

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rolecall.algorithms.ma_airl import MaAirl
from rolecall.config.load import load
from rolecall.config.optimizer import Optimizer
from rolecall.core.errors import ConfigError
from rolecall.core.types import Message
from rolecall.critics.discriminator import (
    Discriminator,
    discrimination_loss,
    discriminator_reward,
    find_followers,
)
from rolecall.critics.inputs import CriticInputs
from rolecall.demonstrations.offline_data import experts
from rolecall.learners.local import LocalLearner
from rolecall.setup.build import build
from rolecall.setup.open_environment import open_components
from rolecall.setup.plan import validate
from rolecall.training.train_step import annotate
from tests.algorithms.test_every_algorithm import Display, trainer_of
from tests.toy import (
    algorithm_cases,
    crew_config,
    episode,
    language_model,
    solo_config,
    turn,
    write,
)


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def test_known_rewards():
    """f .5, log pi -1: D = .817574."""
    found = discriminator_reward(numbers(0.5), numbers(-1.0), kind="logit")
    share = math.exp(0.5) / (math.exp(0.5) + math.exp(-1.0))
    assert share == pytest.approx(0.817574, abs=1e-6)
    assert found.item() == pytest.approx(math.log(share) - math.log(1 - share), abs=1e-6)
    assert found.item() == pytest.approx(1.5)
    assert discriminator_reward(numbers(0.5), numbers(-1.0), kind="raw").item() == 0.5
    bounded = discriminator_reward(numbers(9.0, -9.0), numbers(0.0, 0.0), kind="logit")
    assert bounded.tolist() == [5.0, -5.0]


def test_known_losses():
    nobody = numbers(0.0, 0.0)
    assert discrimination_loss(nobody, nobody).item() == pytest.approx(2 * math.log(2), abs=1e-6)
    expert, policy = numbers(1.5), numbers(-0.5)
    wanted = -math.log(1 / (1 + math.exp(-1.5))) - math.log(1 - 1 / (1 + math.exp(0.5)))
    assert discrimination_loss(expert, policy).item() == pytest.approx(wanted, abs=1e-6)


def test_what_the_world_pays_is_not_read():
    paid, unpaid = (
        [episode(i, [turn(episode=f"x{i}")], {"team": pay * i}) for i in range(3)]
        for pay in (100.0, 0.0)
    )
    for episodes in (paid, unpaid):
        for each, reward in zip(episodes, (1.5, 0.0, -1.5), strict=True):
            each.turns[0].training.inner_reward = reward
        MaAirl().credit(episodes)
    for episodes in (paid, unpaid):
        found = [float(e.turns[0].advantages[0]) for e in episodes]
        assert found == pytest.approx([1.0, 0.0, -1.0], abs=1e-5)
    assert paid[2].rewards == {"team": 200.0}


def said(name: str, token: int, text: str):
    made = turn(episode=name, prompt=[5, 6], tokens=[token] * 3)
    made.messages, made.text = [Message("user", "which?")], text
    made.logprobs = np.full(3, -1.0, dtype=np.float32)
    return made


def told(name: str, index: int, question: str, text: str):
    made = said(name, 98, text)
    made.id, made.messages = f"{name}/{index}", [Message("user", question)]
    return made


def potentials(critic: Discriminator, turns) -> torch.Tensor:
    """h of what each turn was shown."""
    with torch.no_grad():
        prompts = critic._features(turns)[:, : critic.width]
        return critic.scorers["h/solver"](prompts)[:, 0]


def shaped(folder, gamma: float | None) -> Discriminator:
    """With scores and potentials that are not zero."""
    critic = discriminator_of(folder, reward="raw", shaping=gamma)
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, scorer in critic.scorers.items():
            weight = scorer[-1].weight
            weight.copy_(torch.randn(weight.shape, generator=random) * 0.1)
            if not name.startswith("h/"):
                scorer[-1].weight.fill_(0.01)
    return critic


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_shaping_adds_the_discounted_next_potential_and_takes_the_present_one(gamma, model_folder):
    one, two = told("x", 0, "first?", "aa"), told("x", 1, "and then?", "bb")
    other = told("y", 0, "another?", "cc")
    paid = {}
    for shaping in (None, gamma):
        critic = shaped(model_folder, shaping)
        made = [episode(0, [one, two], {}), episode(1, [other], {})]
        asyncio.run(critic.annotate(made))
        paid[shaping] = [turn.training.inner_reward for turn in (one, two, other)]
    h = potentials(critic, [one, two, other]).tolist()
    added = [shaped - plain for shaped, plain in zip(paid[gamma], paid[None], strict=True)]
    wanted = [gamma * h[1] - h[0], -h[1], -h[2]]
    assert added == pytest.approx(wanted, abs=1e-5)
    assert any(abs(value) > 1e-3 for value in wanted)
    if gamma == 1.0:
        assert added[0] + added[1] == pytest.approx(-h[0], abs=1e-5)


def test_rows_of_one_episode_follow_one_another(model_folder, tmp_path):
    """Experts have next states where agents have some; otherwise these would tell them apart."""
    rows = [
        {"episode": "e", "prompt": "first?", "completion": "aa"},
        {"episode": "e", "prompt": "and then?", "completion": "bb"},
        {"prompt": "another?", "completion": "cc"},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = validate(load(write(tmp_path / "c.yaml", solo_config(model_folder)), []))
    turns = experts(file, build(plan).context.agents)["solver"]
    followers = find_followers(turns)
    assert followers == {turns[0]: turns[1]}


def discriminator_of(folder, **options) -> Discriminator:
    model = language_model(folder)
    parts = CriticInputs(
        agents=["solver"], models={"p": model}, load=lambda: language_model(folder),
        experts=lambda file: {}, optimizer=Optimizer(lr=1e-2), budget=1000, steps=100, seed=0,
        share_prefixes=True,
    )  # fmt: skip
    experts = {"solver": [said(f"e{n}", 97, "aaa") for n in range(3)]}
    return Discriminator(parts, experts, **options)


def step_of(*texts: str):
    return [episode(n, [said(f"x{n}", 98, text)], {"team": 0.0}) for n, text in enumerate(texts)]


def test_who_speaks_as_the_expert_is_paid_more(model_folder):
    critic = discriminator_of(model_folder, reward="raw")
    episodes = step_of("aaa", "bbb", "bbb", "bbb")
    for _ in range(30):
        asyncio.run(critic.annotate(episodes))
        metrics = critic.fit()
    rewards = [e.turns[0].training.inner_reward for e in episodes]
    assert rewards[0] > rewards[1] + 0.5
    assert rewards[1] == pytest.approx(rewards[2], abs=1e-5)
    assert metrics["taken_for_expert/experts"] > metrics["taken_for_expert/agents"]


def test_an_untrained_one_pays_the_surprise_and_log_probs_are_those_of_the_learner(model_folder):
    """f is 0, so the reward is -log pi, a mean over tokens; experts' are under the policy."""
    critic = discriminator_of(model_folder)
    episodes = step_of("aaa")
    asyncio.run(critic.annotate(episodes))
    assert episodes[0].turns[0].training.inner_reward == pytest.approx(1.0)
    expert = said("own", 97, "aaa")
    learner = LocalLearner(critic.models["p"], Optimizer(lr=1e-3), total_updates=1)
    asyncio.run(annotate(learner, [expert], {"prox_logprobs"}, budget=1000))
    [seen] = critic._seen
    assert seen.expert_logprobs.item() == pytest.approx(
        expert.training.prox_logprobs.mean(), abs=1e-5
    )


def test_features_are_means_and_batches_do_not_matter(model_folder):
    critic = discriminator_of(model_folder)
    turns = [said("x0", 98, "a"), said("x1", 98, "a much longer answer"), said("x2", 98, "b")]
    together = critic._features(turns)
    critic.budget = 1
    apart = critic._features(turns)
    assert torch.allclose(together, apart, atol=1e-5)
    prompt, answer = critic._as_read(turns[1])
    tokens = torch.from_numpy(np.concatenate([prompt, answer]))[None].long()
    with torch.no_grad():
        plain = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
        hidden = plain.get_decoder()(tokens, use_cache=False).last_hidden_state[0]
    wanted = torch.cat([hidden[: len(prompt)].mean(0), hidden[len(prompt) :].mean(0)])
    assert torch.allclose(together[1], wanted, atol=1e-4)


def test_a_saved_one_goes_on_bit_for_bit(model_folder, tmp_path):
    one, other = discriminator_of(model_folder), discriminator_of(model_folder)
    for _ in range(5):
        asyncio.run(one.annotate(step_of("aaa", "bbb")))
        one.fit()
    one.save(tmp_path)
    other.load(tmp_path)
    assert len(other.replay) == 4
    for critic in (one, other):
        asyncio.run(critic.annotate(step_of("bab", "aab")))
        critic.fit()
    for a, b in zip(one.stepper.parameters, other.stepper.parameters, strict=True):
        assert torch.equal(a, b)


def imitating(folder, tmp_path) -> dict:
    """An expert who answers each letter by eight small letters."""
    file, random = tmp_path / "experts.jsonl", Random(0)
    words = ["".join(random.choices(string.ascii_lowercase, k=8)) for _ in range(60)]
    rows = [{"prompt": "abc"[n % 3], "completion": word} for n, word in enumerate(words)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = solo_config(folder, **algorithm_cases(folder)["ma_airl"])
    config["algorithm"] = {"name": "ma_airl", "experts": str(file)}
    config["policies"]["a"]["optimizer"] = {"lr": 5e-3}
    config["rollout"] = {"groups": 3, "group_size": 16}
    config["trainer"] = {"steps": 45, "save_every": 45}
    return config | {"evaluation": {"tasks": 0}}


@pytest.mark.evidence
def test_a_policy_comes_to_say_what_the_expert_says(model_folder, tmp_path):
    """Nobody pays for small letters; only rows of a file show them."""
    config = imitating(model_folder, tmp_path)
    shares: list[float] = []
    trainer = trainer_of(config, tmp_path / "run", Display())
    [group] = trainer.run.algorithm_groups
    read = group.discriminator.annotate

    async def counted(episodes):
        said = "".join(e.answer for e in episodes)
        shares.append(sum(letter in string.ascii_lowercase for letter in said) / len(said))
        await read(episodes)

    group.discriminator.annotate = counted
    asyncio.run(trainer.train())
    assert np.mean(shares[-5:]) > 2 * np.mean(shares[:3]), shares


def test_an_agent_without_expert_turns_is_an_error_before_anything_runs(model_folder, tmp_path):
    config = crew_config(model_folder, **algorithm_cases(model_folder)["ma_airl"])
    file = tmp_path / "some.jsonl"
    rows = [{"agent": name, "prompt": "a", "completion": "b"} for name in ("first", "last")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config["algorithm"]["experts"] = str(file)
    with pytest.raises(ConfigError, match="shows nothing of what 'second' should say"):
        open_components(validate(load(write(tmp_path / "run.yaml", config))))
    config["algorithm"]["experts"] = str(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match=r"algorithm.experts: there is no data file"):
        open_components(validate(load(write(tmp_path / "run.yaml", config))))
    del config["algorithm"]["experts"]
    with pytest.raises(ConfigError, match="ma_airl imitates demonstrations; set it to a file"):
        validate(load(write(tmp_path / "run.yaml", config)))
