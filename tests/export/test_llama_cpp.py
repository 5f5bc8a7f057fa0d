"""llama.cpp reads what is written: same probabilities, same tokens, for every family."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from support.exports import (
    EXPORTABLE,
    export,
    merging_tokenizer,
    random_adapter,
    save_exportable,
    save_pieces,
)
from support.llama_cpp import next_logprobs, require_llama_cpp, tokens

from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.export.adapter import read_adapter
from slidepack.engine.export.reference import trainer_logits
from slidepack.engine.model.loading import Shards
from slidepack.engine.shape import read_shape

pytestmark = pytest.mark.full

PROMPT = (5, 80, 211, 7, 7, 30, 12, 45, 99, 3, 260, 261, 17, 90)
TEXTS = (
    "hello hello, the hell of it: he'll TELL, HE'LL",
    "🙂🚀👩‍👩‍👧 flags 🇫🇷",
    "今天天气很好 日本語のテキスト 한국어",
    "def f(x):\n\treturn x**2  # 12345 67\n\n\n\r\n",
    "   leading, trailing   \t \n ",
    "<|start|>user\nhello<|end|>\n<note>inside<note><|pad|>",
    "naïve café — “quotes” … ½ ١٢٣",
)


def _trainer(base: Path, result: Path | None, prompt: Sequence[int]) -> torch.Tensor:
    shape = read_shape(base)
    adapter = None if result is None else read_adapter(result / "adapter", shape)
    return trainer_logits(Shards(base), shape, adapter, [prompt])[-1].log_softmax(-1)


@pytest.mark.parametrize("kind", ["f16", "q8_0", "lora"])
@pytest.mark.parametrize("name", EXPORTABLE)
def test_llama_cpp_finds_the_trainers_probabilities(tmp_path: Path, name: str, kind: str) -> None:
    require_llama_cpp()
    base = save_exportable(tmp_path / "base", name)
    method = LoraMethod(rank=3, alpha=5, rslora=name == "qwen3")
    result = random_adapter(base, tmp_path / "result", method)
    lora = None
    if kind == "lora":
        export(result, base, tmp_path / "lora", "gguf", adapter_only=True, verify=False)
        lora = tmp_path / "lora" / "model-lora.gguf"
        save_exportable(tmp_path / "bare" / "model", name)
        export(tmp_path / "bare", base, tmp_path / "out", "gguf", verify=False)
    else:
        export(result, base, tmp_path / "out", "gguf", quant=kind, verify=False)
    (path,) = (tmp_path / "out").iterdir()
    trainer, bare = _trainer(base, result, PROMPT), _trainer(base, None, PROMPT)
    found = next_logprobs(path, PROMPT, lora, then=merging_tokenizer().token_to_id("a"))
    assert len(found) == len(trainer)
    theirs = torch.tensor([found[index] for index in range(len(trainer))])
    # llama.cpp rounds activations as it does weights: to fp16, or to 8 bits.
    allowed = 0.15 if kind == "q8_0" else 0.01
    assert float((theirs - trainer).abs().mean()) < allowed
    assert float((theirs - bare).abs().mean()) > 0.2


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_llama_cpp_finds_the_same_tokens(tmp_path: Path, pre: str) -> None:
    require_llama_cpp()
    base = save_exportable(tmp_path / "base", "llama", pre=pre)
    result = random_adapter(base, tmp_path / "result")
    export(result, base, tmp_path / "out", "gguf", verify=False)
    tokenizer = merging_tokenizer(pre)
    expected = [tokenizer.encode(text).ids for text in TEXTS]
    assert tokens(tmp_path / "out" / "model-f16.gguf", TEXTS, start=True) == expected


@pytest.mark.parametrize("prefix", [True, False])
def test_llama_cpp_finds_the_same_pieces(tmp_path: Path, prefix: bool) -> None:
    require_llama_cpp()
    base = save_exportable(tmp_path / "base", "llama")
    tokenizer = save_pieces(base, prefix=prefix)
    result = random_adapter(base, tmp_path / "result")
    export(result, base, tmp_path / "out", "gguf", verify=False)
    texts = [*TEXTS[:4], "lllo he llo", "hehello  ll l", "hello</s>"]
    expected = [tokenizer.encode(text).ids for text in texts]
    assert tokens(tmp_path / "out" / "model-f16.gguf", texts, start=True) == expected
