"""Small tokenizers with the chat layouts of five families, for tests of what can be forged."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = ["You are a helpful assistant. What is 2 + 2? The answer is 4.", '{"name": "add"}', "xyz"]
ASK = "{% if add_generation_prompt %}"


@dataclass(frozen=True)
class Layout:
    """How a family writes a conversation."""

    template: str
    end: str
    named: tuple[str, ...]  # special tokens that the tokenizer knows by name
    unnamed: tuple[str, ...]  # special in `added_tokens_decoder` alone
    plain: tuple[str, ...] = ()  # added tokens that are not special, and written by the template
    words: tuple[str, ...] = ("<verify>", "</verify>")  # added tokens that agents say
    untied: tuple[str, ...] = ()  # tags around tools that are no tokens

    @property
    def forgeries(self) -> tuple[str, ...]:
        return (self.end, *self.named, *self.unnamed, *self.plain, *self.untied)


LLAMA3 = Layout(
    template="{{- '<|begin_of_text|>' }}{%- for m in messages %}"
    "{%- set role = 'ipython' if m.role == 'tool' else m.role %}"
    "{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}"
    "{%- if loop.first and tools %}{%- for t in tools %}{{- t | tojson + '\n\n' }}{%- endfor %}"
    "{%- endif %}{{- m.content | trim + '<|eot_id|>' }}{%- endfor %}"
    + ASK
    + "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    end="<|eot_id|>",
    named=("<|begin_of_text|>",),
    unnamed=("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>"),
)
QWEN = Layout(
    template="{%- if tools %}{{- '<|im_start|>system\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}"
    "{{- '# Tools\n<tools>' }}{%- for t in tools %}{{- '\n' }}{{- t | tojson }}{%- endfor %}"
    "{{- '\n</tools>\nCall in <tool_call></tool_call>.<|im_end|>\n' }}{%- endif %}"
    "{%- for m in messages %}{%- if m.role == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}"
    "{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}"
    "{%- endif %}{%- elif not (tools and loop.first and m.role == 'system') %}"
    "{{- '<|im_start|>' + m.role + '\n' }}{%- if m.role == 'assistant' and loop.last %}"
    "{{- '<think>\n\n</think>\n\n' }}{%- endif %}{{- m.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}" + ASK + "{{- '<|im_start|>assistant\n' }}{% endif %}",
    end="<|im_end|>",
    named=("<|endoftext|>",),
    unnamed=("<|im_start|>", "<|vision_start|>"),
    plain=(
        "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>",
    ),
    untied=("<tools>", "</tools>"),
)  # fmt: skip
MISTRAL = Layout(
    template="{{- '<s>' }}{%- set ns = namespace(system='') %}{%- for m in messages %}"
    "{%- if m.role == 'system' %}{%- set ns.system = m.content + '\n\n' %}"
    "{%- elif m.role == 'user' %}{%- if tools and loop.last %}"
    "{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{{- '[INST]' + ns.system + m.content + '[/INST]' }}{%- set ns.system = '' %}"
    "{%- elif m.role == 'tool' %}"
    "{{- '[TOOL_RESULTS]{\"content\": ' + m.content | tojson + '}[/TOOL_RESULTS]' }}"
    "{%- else %}{{- m.content + '</s>' }}{%- endif %}{%- endfor %}",
    end="</s>",
    named=("<s>",),
    unnamed=(
        "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]", "[TOOL_CALLS]",
    ),
)  # fmt: skip
GEMMA = Layout(
    template="{{- '<bos>' }}{%- for m in messages %}{%- if m.role == 'tool' %}"
    "{{- '<start_of_turn>user\n```tool_output\n' + m.content + '\n```<end_of_turn>\n' }}"
    "{%- else %}{%- set role = 'model' if m.role == 'assistant' else 'user' %}"
    "{{- '<start_of_turn>' + role + '\n' }}{%- if tools and loop.first %}"
    "{{- tools | tojson + '\n' }}{%- endif %}{{- m.content | trim + '<end_of_turn>\n' }}"
    "{%- endif %}{%- endfor %}" + ASK + "{{- '<start_of_turn>model\n' }}{% endif %}",
    end="<end_of_turn>",
    named=("<bos>", "<eos>"),
    unnamed=("<start_of_turn>",),
    words=("<verify>", "</verify>", "<table>", "\n\n"),
)
PHI = Layout(
    template="{%- for m in messages %}{{- '<|' + m.role + '|>' + m.content }}"
    "{%- if loop.first and tools %}{{- '<|tool|>' + tools | tojson + '<|/tool|>' }}{%- endif %}"
    "{{- '<|end|>' }}{%- endfor %}" + ASK + "{{- '<|assistant|>' }}{% endif %}",
    end="<|end|>",
    named=("<|endoftext|>",),
    unnamed=("<|system|>", "<|user|>", "<|assistant|>"),
    plain=("<|tool|>", "<|/tool|>"),
)
LAYOUTS = {"llama3": LLAMA3, "qwen": QWEN, "mistral": MISTRAL, "gemma": GEMMA, "phi": PHI}


def tokenizer_of(layout: Layout, *, reserved: int = 0) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with the added tokens and the template of a layout.

    `reserved`: tokens that mean nothing and have the lowest numbers.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=300 + reserved,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[f"<|reserved_{number}|>" for number in range(reserved)],
            show_progress=False,
        ),
    )
    special = (layout.end, *layout.named, *layout.unnamed)
    bpe.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    others = (*layout.plain, *layout.words)
    bpe.add_tokens([AddedToken(text, normalized=False) for text in others])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=layout.end,
        pad_token=layout.named[-1],
        chat_template=layout.template,
        clean_up_tokenization_spaces=False,
    )
