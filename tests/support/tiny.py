"""A tiny random model with a tokenizer and chat template, in a Hugging Face folder."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from support.judges import tiny_llama

SPECIAL = ("<|start|>", "<|end|>", "<|pad|>")

TEMPLATE = (
    "{% for m in messages %}{{ '<|start|>' + m['role'] + '\n' + m['content'] + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer: 256 bytes and three special tokens, no merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return tokenizer


def save_tokenizer(folder: Path, *, template: str | None = TEMPLATE) -> None:
    """Write the byte tokenizer's files."""
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "model_max_length": 256,
    }
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def save_tiny_model(folder: Path, *, kv_heads: int = 2, tied: bool = True) -> Path:
    """Write a whole tiny model and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_llama(folder, kv_heads=kv_heads, tied=tied)
    save_tokenizer(folder)
    return folder


def chat_rows(count: int) -> list[dict[str, object]]:
    """Return `count` short conversations with different questions."""
    words = ["stone", "river", "cloud", "ember", "leaf", "frost"]
    return [
        {
            "messages": [
                {"role": "user", "content": f"Name {words[i % 6]} number {i}"},
                {"role": "assistant", "content": f"{words[(i * 5 + 1) % 6]} {i % 7}"},
            ]
        }
        for i in range(count)
    ]


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
