"""Chat templates of well-known models in our own words, and a tokenizer for each.

Each is written with `{% generation %}` marks, for the judge; `unmarked` takes them out.
"""

import json
import re
from pathlib import Path
from typing import Final, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import Split

_CALLS: Final = (
    "{% for call in m['tool_calls'] or [] %}{% set f = call['function'] %}"
    "{% if m['content'] or not loop.first %}{{ '\n' }}{% endif %}{{ '<tool_call>\n' }}"
    "{{ {'name': f['name'], 'arguments': f['arguments']} | tojson"
    " + '\n</tool_call>' }}{% endfor %}"
)
_TOOLS: Final = (
    "{% if tools %}{{ '\n\n# Tools\n' }}{% for tool in tools %}{{ tool | tojson + '\n' }}"
    "{% endfor %}{% endif %}"
)

SMOLLM2: Final = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML: Final = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3: Final = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] | trim + '<|eot_id|>' }}"
    "{% endgeneration %}{% else %}{{ m['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
QWEN25: Final = (
    "{{ '<|im_start|>system\n' }}{% if messages[0]['role'] == 'system' %}"
    "{{ messages[0]['content'] }}{% else %}{{ 'You are Qwen. You help.' }}{% endif %}"
    + _TOOLS
    + "{{ '<|im_end|>\n' }}{% for m in messages %}{% if m['role'] == 'system' %}"
    "{% if not loop.first %}{{ raise_exception('system comes first') }}{% endif %}"
    "{% elif m['role'] == 'tool' %}{{ '<|im_start|>user\n<tool_response>\n' + m['content']"
    " + '\n</tool_response><|im_end|>\n' }}"
    "{% elif m['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
    "{% generation %}{{ m['content'] }}" + _CALLS + "{{ '<|im_end|>' }}{% endgeneration %}"
    "{{ '\n' }}{% else %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)
QWEN3: Final = (
    "{% if messages[0]['role'] == 'system' %}"
    "{{ '<|im_start|>system\n' + messages[0]['content'] }}"
    + _TOOLS
    + "{{ '<|im_end|>\n' }}{% endif %}{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{% set said = m['content'] %}{% set thought = m['reasoning_content'] or '' %}"
    "{% if not thought and '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>assistant\n' }}{% generation %}"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}"
    "{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + said.lstrip('\n') }}"
    "{% else %}{{ said }}{% endif %}" + _CALLS + "{{ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% elif m['role'] == 'tool' %}{{ '<|im_start|>user\n<tool_response>\n' + m['content']"
    " + '\n</tool_response><|im_end|>\n' }}{% elif m['role'] == 'user' %}"
    "{{ '<|im_start|>user\n' + m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL: Final = (
    "{% set talk = messages %}{% set first = '' %}{% if messages[0]['role'] == 'system' %}"
    "{% set first = messages[0]['content'] + '\n\n' %}{% set talk = messages[1:] %}{% endif %}"
    "{{ bos_token }}{% for m in talk %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant/...') }}{% endif %}"
    "{% if m['role'] == 'user' %}{% if loop.first %}{{ '[INST] ' + first + m['content'] }}"
    "{% else %}{{ '[INST] ' + m['content'] }}{% endif %}{{ '[/INST]' }}"
    "{% else %}{% generation %}{{ ' ' + m['content'] + eos_token }}{% endgeneration %}"
    "{% endif %}{% endfor %}"
)
GEMMA: Final = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'assistant' %}{{ '<start_of_turn>model\n' }}{% generation %}"
    "{{ m['content'] | trim + '<end_of_turn>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ '<start_of_turn>' + m['role'] + '\n' + m['content'] | trim"
    " + '<end_of_turn>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
PHI3: Final = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<|end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m['content'] + '<|end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
ALPACA: Final = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] + '\n\n' }}"
    "{% elif m['role'] == 'user' %}{{ '### Instruction:\n' + m['content'] + '\n\n' }}{% else %}"
    "{{ '### Response:\n' }}{% generation %}{{ m['content'] + eos_token }}{% endgeneration %}"
    "{{ '\n\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '### Response:\n' }}"
    "{% endif %}"
)


class Published(NamedTuple):
    """A template, and what its tokenizer needs."""

    template: str
    special: tuple[str, ...]
    eos: str
    bos: str | None = None


PUBLISHED: Final = {
    "SmolLM2": Published(SMOLLM2, ("<|im_start|>", "<|im_end|>"), "<|im_end|>"),
    "ChatML": Published(CHATML, ("<|im_start|>", "<|im_end|>", "<|endoftext|>"), "<|endoftext|>"),
    "Llama 3": Published(
        LLAMA3,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|eot_id|>",
        "<|begin_of_text|>",
    ),
    "Qwen2.5": Published(QWEN25, ("<|im_start|>", "<|im_end|>", "<|endoftext|>"), "<|im_end|>"),
    "Qwen3": Published(QWEN3, ("<|im_start|>", "<|im_end|>", "<|endoftext|>"), "<|im_end|>"),
    "Mistral": Published(MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]"), "</s>", "<s>"),
    "Gemma": Published(
        GEMMA, ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), "<eos>", "<bos>"
    ),
    "Phi-3": Published(
        PHI3,
        ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|endoftext|>"),
        "<|endoftext|>",
    ),
    "Alpaca": Published(ALPACA, ("<s>", "</s>"), "</s>", "<s>"),
}


def unmarked(template: str) -> str:
    """Return the template without its generation marks."""
    return re.sub(r"\{% (end)?generation %\}", "", template)


def bytes_with(special: tuple[str, ...]) -> Tokenizer:
    """Return a byte-level tokenizer with a few merges, so that tokens can straddle borders."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ċ", "Ċ"), ("Ġ", "a"), ("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    tokens = [*special, *alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges)
    )
    # As in Llama 3 and Qwen, newlines stay together whatever follows them.
    words = Split(Regex(r" ?[^\s]+|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    return tokenizer


def save_published(folder: Path, name: str, *, marks: bool) -> Path:
    """Write the tokenizer files of a well-known model."""
    model = PUBLISHED[name]
    template = model.template if marks else unmarked(model.template)
    return save_chat_tokenizer(folder, model.special, template, model.eos, model.bos)


def save_chat_tokenizer(
    folder: Path,
    special: tuple[str, ...],
    template: str | None,
    eos: str,
    bos: str | None = None,
) -> Path:
    """Write a tokenizer with these special tokens and this template."""
    folder.mkdir(exist_ok=True)
    bytes_with(special).save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos}
    if bos is not None:
        config["bos_token"] = bos
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
