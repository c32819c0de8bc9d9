"""Models of transformers carry no notes of ours: what they can do is told beside them."""

from __future__ import annotations

import pytest
from torch.nn import Module
from transformers import AutoModelForCausalLM

from tests.families import loaded, make


def own_names(module: Module) -> set[str]:
    """The attributes that our classes declare, where one stands before a module's own."""
    ours = [kind for kind in type(module).__mro__ if kind.__module__.startswith("rolecall.")]
    return {name for kind in ours for name in vars(kind).get("__annotations__", {})}


@pytest.mark.parametrize("fuses", [True, False])
@pytest.mark.parametrize(
    "case",
    [("full", "Llama"), ("full", "Granite"), ("full", "StableLm"), ("ruled", "GptOss"),
     ("apart", "Lfm2")],
    ids="-".join,
)  # fmt: skip
def test_a_loaded_model_has_the_attributes_that_transformers_gives_it(tmp_path, case, fuses):
    make(tmp_path, *case)
    theirs = dict(AutoModelForCausalLM.from_pretrained(tmp_path).named_modules())
    ours = dict(loaded(tmp_path, fuses=fuses).model.named_modules())
    assert ours.keys() == theirs.keys()
    for name, module in ours.items():
        assert vars(module).keys() - own_names(module) <= vars(theirs[name]).keys(), name
