"""Log-probs in chunks of the vocabulary's rows: the same numbers, and no more memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from rolecall.algorithms.ppo import Ppo
from rolecall.learners import frozen_head, logprobs
from rolecall.models.exact_head import ExactHead
from tests.learners.test_trees import conversation, learner_of, measured
from tests.toy import alike

ROWS, CHUNK, WIDTH, VOCABULARY = 96, 16, 8, 50_000


def given() -> tuple[torch.nn.Linear, Tensor, Tensor, Tensor]:
    """A head, what it reads, ids, temperatures."""
    torch.manual_seed(0)
    states = torch.randn(ROWS, WIDTH, requires_grad=True)
    ids, temperature = torch.randint(VOCABULARY, (ROWS,)), torch.rand(ROWS) + 0.5
    return torch.nn.Linear(WIDTH, VOCABULARY), states, ids, temperature


@pytest.mark.parametrize("entropy", [None, "value", "gradient"])
def test_chunks_give_the_numbers_and_gradients_of_the_whole(entropy):
    found = []
    for in_chunks in (False, True):
        head, states, *rest = given()
        if in_chunks:
            got = logprobs.chunked_logprobs(head, states, *rest, entropy=entropy, rows=CHUNK + 3)
        else:
            got = logprobs.logits_to_logprobs(head(states), *rest, entropy=entropy)
        sampled, entropies = got
        assert (entropies is None) == (entropy is None)
        assert entropies is None or entropies.requires_grad == (entropy == "gradient")
        total = sampled if entropies is None else sampled + 0.1 * entropies
        (total * torch.linspace(-1, 1, ROWS)).sum().backward()
        found.append([total.detach(), states.grad, head.weight.grad, head.bias.grad])
    for whole, chunks in zip(*found, strict=True):
        assert alike(chunks, whole)


@pytest.mark.parametrize("loops", [True, False], ids=["numba", "torch"])
@pytest.mark.parametrize("entropy", [None, "value"])
def test_logits_give_the_numbers_and_gradients_of_float64(entropy, loops, monkeypatch):
    if not loops:
        monkeypatch.setattr(logprobs, "runs_on_numba", lambda logits: False)
    _, _, ids, temperature = given()
    logits = (8 * torch.randn(ROWS, VOCABULARY)).requires_grad_()
    sampled, entropies = logprobs.logits_to_logprobs(logits, ids, temperature, entropy=entropy)
    (sampled * torch.linspace(-1, 1, ROWS)).sum().backward()
    exact = logits.detach().double().requires_grad_()
    every = (exact / temperature.double()[:, None]).log_softmax(-1)
    wanted = every.gather(-1, ids[:, None])[:, 0]
    (wanted * torch.linspace(-1, 1, ROWS)).sum().backward()
    assert alike(sampled, wanted)
    assert alike(logits.grad, exact.grad)
    if entropy is not None:
        every = every.detach()
        assert alike(entropies, -(every.exp() * every).sum(-1))


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_broken_logits_give_broken_numbers_of_their_row_alone(broken):
    _, _, ids, temperature = given()
    logits = torch.randn(ROWS, 1_000)
    logits[5, 700] = broken
    logits.requires_grad_()
    found = logprobs.logits_to_logprobs(logits, ids % 1_000, temperature, entropy="value")
    found[0].sum().backward()
    for numbers in (*found, logits.grad):
        finite = numbers.isfinite().view(ROWS, -1).all(1)
        assert [row for row, is_finite in enumerate(finite) if not is_finite] == [5]


class Largest(TorchDispatchMode):
    """The most elements that one tensor had."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def saved_bytes(compute: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """What a forward pass returns, and the bytes that it keeps for the backward one."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        return compute(), sum(kept.values())


@pytest.mark.parametrize("entropy", [None, "value", "gradient"])
def test_a_vocabulary_of_50_000_is_held_for_one_chunk_only(entropy):
    head, states, *rest = given()
    with Largest() as largest:
        (sampled, _), kept = saved_bytes(
            lambda: logprobs.chunked_logprobs(head, states, *rest, entropy=entropy, rows=CHUNK)
        )
        sampled.sum().backward()
    assert largest.elements == CHUNK * VOCABULARY
    assert kept < 10 * ROWS * (WIDTH + 4) * 4 + 8 * WIDTH * VOCABULARY
    head, states, *rest = given()
    _, whole = saved_bytes(
        lambda: logprobs.logits_to_logprobs(head(states), *rest, entropy=entropy)
    )
    assert whole >= 4 * ROWS * VOCABULARY > 5 * kept


@pytest.mark.parametrize("adapter", [False, True], ids=["whole", "adapter"])
def test_a_learner_trains_alike_in_chunks(model_folder, monkeypatch, adapter):
    learner, turns = learner_of(model_folder, adapter=adapter), conversation()
    algorithm = Ppo(entropy=0.01)
    loss, gradient, _ = measured(learner, algorithm, turns)
    monkeypatch.setattr(logprobs, "LARGEST_LOGITS", 7 * learner.model.vocabulary)
    chunks_loss, chunks_gradient, _ = measured(learner, algorithm, turns)
    assert chunks_loss == pytest.approx(loss, rel=1e-5)
    assert torch.allclose(chunks_gradient, gradient, atol=2e-5 * float(gradient.abs().max()))


def test_an_adapter_is_off_in_chunks_too(model_folder, monkeypatch):
    learner, turns = learner_of(model_folder, adapter=True), conversation()
    learner.reference = "base"
    [batch] = measured(learner, Ppo(), turns)[2]
    with torch.no_grad():
        whole = learner.forward(batch, reference=True).logprobs
        own = learner.forward(batch).logprobs
        monkeypatch.setattr(logprobs, "LARGEST_LOGITS", 7 * learner.model.vocabulary)
        assert alike(learner.forward(batch, reference=True).logprobs, whole)
    assert float((own - whole).abs().max()) > 1e-2


@pytest.mark.parametrize("loops", [True, False], ids=["numba", "torch"])
@pytest.mark.parametrize("rows", [CHUNK + 3, ROWS])
def test_a_frozen_head_gives_the_numbers_and_gradients_of_float64(rows, loops, monkeypatch):
    """And holds the logits of one chunk, none of them for the backward pass."""
    if not loops:
        monkeypatch.setattr(logprobs, "runs_on_numba", lambda logits: False)
    head, states, ids, temperature = given()
    head.requires_grad_(False)
    with Largest() as largest:
        (sampled, entropies), kept = saved_bytes(
            lambda: frozen_head.frozen_head_logprobs(
                head, states, ids, temperature, entropy="value", rows=rows,
                vocabulary=head.out_features,
            )
        )  # fmt: skip
        (sampled * torch.linspace(-1, 1, ROWS)).sum().backward()
    assert largest.elements == rows * VOCABULARY
    assert kept <= ROWS * WIDTH * 4
    exact = states.detach().double().requires_grad_()
    logits = torch.nn.functional.linear(exact, head.weight.double(), head.bias.double())
    scaled = logits / temperature.double()[:, None]
    wanted = scaled.log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    (wanted * torch.linspace(-1, 1, ROWS)).sum().backward()
    assert alike(sampled, wanted)
    assert alike(states.grad, exact.grad)
    every = scaled.detach().log_softmax(-1)
    assert alike(entropies, -(every.exp() * every).sum(-1))


def test_a_frozen_head_refuses_entropies_with_a_gradient():
    with pytest.raises(ValueError, match="no gradient"):
        frozen_head.frozen_head_logprobs(
            *given(), entropy="gradient", rows=CHUNK, vocabulary=VOCABULARY
        )


def test_a_head_that_is_trained_or_no_layer_is_not_taken_as_frozen():
    head = given()[0]
    assert not frozen_head.is_frozen(head)
    assert not frozen_head.is_frozen(torch.nn.Identity())
    head.weight.requires_grad_(False)
    assert not frozen_head.is_frozen(head), "its bias is trained"
    assert frozen_head.is_frozen(head.requires_grad_(False))


def test_a_frozen_head_in_bfloat16_computes_in_float32():
    head, states, *rest = given()
    head.bfloat16().requires_grad_(False).__class__ = ExactHead
    states = states.detach().bfloat16().requires_grad_()
    sampled, _ = frozen_head.frozen_head_logprobs(
        head, states, *rest, entropy=None, rows=CHUNK, vocabulary=head.out_features
    )
    sampled.sum().backward()
    exact = states.detach().float().requires_grad_()
    logits = torch.nn.functional.linear(exact, head.weight.float(), head.bias.float())
    wanted, _ = logprobs.logits_to_logprobs(logits, *rest, entropy=None)
    wanted.sum().backward()
    assert alike(sampled, wanted)
    assert states.grad.dtype == torch.bfloat16
    assert alike(states.grad.float(), exact.grad, rounding=2.0**-7)


def test_a_learner_trains_alike_with_a_frozen_head(model_folder, monkeypatch):
    learner, turns = learner_of(model_folder, adapter=True), conversation()
    loss, gradient, _ = measured(learner, Ppo(), turns)
    monkeypatch.setattr("rolecall.learners.forward.is_frozen", lambda head: False)
    other_loss, other, _ = measured(learner, Ppo(), turns)
    assert loss == pytest.approx(other_loss, rel=1e-5)
    assert torch.allclose(gradient, other, atol=2e-5 * float(other.abs().max()))
