"""A handle gives logits and what the head read, shares a base among adapters, and can be copied."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from rolecall.config.schema import Adapter
from rolecall.models.attention.layouts import Rows
from rolecall.models.cpu import trained_layer
from rolecall.models.language_model import LanguageModel, copies, mixed_logits
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from tests.toy import CPU, alike, language_model

IDS = torch.tensor([65, 66, 67, 68, 90, 91, 92])
LENGTHS = [4, 3]
KEEP = torch.tensor([1, 3, 6])


def adapted(
    folder, ranks: dict[str, int], *, seed: int = 0, dtype=torch.float32, **options
) -> dict[str, LanguageModel]:
    """Adapters with random weights in both factors, so that each of them changes the logits."""
    base = load_model(str(folder), device=CPU, dtype=dtype)
    sizes = {name: Adapter(rank=rank, alpha=4.0, **options) for name, rank in ranks.items()}
    models = with_adapters(base, load_tokenizer(str(folder)), sizes, seed=seed)
    torch.manual_seed(seed)
    for model in models.values():
        for _, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return models


def layout() -> Rows:
    return Rows(LENGTHS, device=CPU)


def logits(model: LanguageModel, **options) -> torch.Tensor:
    rows = layout()
    return model.forward(IDS, rows.position, layout=rows, keep=KEEP, **options)[0]


def test_the_head_over_the_hidden_states_gives_the_logits(any_model_folder):
    whole = language_model(any_model_folder)
    adapter = adapted(any_model_folder, {"a": 2})["a"]
    for model in (whole, adapter):
        rows = layout()
        found, hidden = model.forward(IDS, rows.position, layout=rows, keep=KEEP, hidden=True)
        assert hidden is not None
        assert hidden.shape == (3, model.hidden_size)
        head = model.model.get_output_embeddings()
        assert torch.equal(head(hidden), found)
        assert torch.equal(found, model.logits(IDS, rows.position, layout=layout(), keep=KEEP))
        hidden.sum().backward()
        assert any(p.grad is not None and p.grad.any() for _, p in model.named_parameters())
    assert whole.forward(IDS, rows.position, layout=layout(), keep=KEEP)[1] is None


def test_an_adapter_switched_off_leaves_the_base(model_folder, monkeypatch):
    models = adapted(model_folder, {"a": 2, "b": 3})
    monkeypatch.setattr(trained_layer, "LARGEST", 0)  # by its modules, as with an adapter
    whole = logits(language_model(model_folder))
    before = logits(models["b"])
    for model in models.values():
        assert torch.equal(logits(model, adapter_off=True), whole)
        assert (logits(model) - whole).abs().max() > 0.1
    assert torch.equal(logits(models["b"]), before)
    assert all(p.requires_grad for _, p in models["b"].named_parameters())
    with pytest.raises(ValueError, match="no adapter"):
        logits(language_model(model_folder), adapter_off=True)


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_rows_of_several_adapters_in_one_forward_have_the_logits_of_separate_ones(
    any_model_folder, dtype, rounding
):
    models = adapted(any_model_folder, {"a": 2, "b": 3, "c": 1}, dtype=dtype)
    owners, lengths = ["b", "a", "c", "a"], [3, 2, 4, 1]
    ids = torch.randint(60, 120, (10,), generator=torch.Generator().manual_seed(1))
    keep = torch.tensor([1, 2, 4, 5, 8, 9])
    owner_of_keep = ["b", "b", "a", "c", "c", "a"]
    rows = Rows(lengths, device=CPU)
    together = mixed_logits(
        [models[name] for name in owners], ids, rows.position, counts=torch.tensor(lengths),
        layout=rows, keep=keep,
    )  # fmt: skip
    for name, model in models.items():
        alone = model.logits(ids, rows.position, layout=rows, keep=keep)
        mine = torch.tensor([owner == name for owner in owner_of_keep])
        assert alike(together[mine], alone[mine], rounding=rounding)
        assert not alike(together[~mine], alone[~mine], rounding=2 * rounding)


def test_a_frozen_copy_stays_where_it_was_until_it_takes_the_weights(model_folder):
    model = language_model(model_folder)
    copy = model.frozen_copy()
    before = logits(model)
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            parameter.mul_(1.1)
    assert torch.equal(logits(copy), before)
    assert not logits(copy).requires_grad
    assert not torch.equal(logits(model), before)
    copy.take(model.weights())
    assert torch.equal(logits(copy), logits(model))
    assert not any(p.requires_grad for _, p in copy.named_parameters())


def test_copies_of_adapters_share_one_copy_of_their_base(model_folder):
    models = adapted(model_folder, {"a": 2, "b": 3}) | {"whole": language_model(model_folder)}
    made = copies(models)
    assert made["a"].model is made["b"].model
    assert made["a"].model is not models["a"].model
    assert made["whole"].model is not models["whole"].model
    for name, model in models.items():
        assert torch.equal(logits(made[name]), logits(model))
        assert not logits(made[name]).requires_grad
    before = logits(models["b"])
    with torch.no_grad():
        for _, parameter in models["a"].named_parameters():
            parameter.add_(0.1)
    made["a"].take(models["a"].weights())
    assert torch.equal(logits(made["a"]), logits(models["a"]))
    assert torch.equal(logits(made["b"]), before)


def test_weights_that_lack_a_name_or_have_one_too_many_are_not_taken(model_folder):
    models = adapted(model_folder, {"a": 2, "b": 2})
    weights = models["a"].weights()
    first = min(weights)
    with pytest.raises(ValueError, match=r"unknown names.*extra"):
        models["a"].take({**weights, "extra": weights[first]})
    with pytest.raises(ValueError, match=r"lack.*lora_A"):
        models["a"].take({name: w for name, w in weights.items() if name != first})
    with pytest.raises(ValueError, match="lack"):
        models["a"].take(models["b"].weights())


def test_adapters_on_other_than_linear_layers_are_refused(model_folder):
    for target in ("embed_tokens", "lm_head"):
        with pytest.raises(ValueError, match=target):
            adapted(model_folder, {"a": 2}, targets=[target, "q_proj"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_families_without_grouped_heads_or_rotary_positions_work(tmp_path, dtype):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    model = load_model(str(tmp_path), device=CPU, dtype=dtype).model
    assert model.config._attn_implementation == "rolecall"
