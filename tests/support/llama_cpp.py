"""llama.cpp itself as a judge, where a package with it is installed; run in a process of its own.

`xllamacpp` has wheels with the whole of it, for some machines: where it is not there, tests that
want it skip, and say so.
"""

import importlib
import importlib.util
import json
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

_PACKAGE: Final = "xllamacpp"
_CONTEXT: Final = 256


def require_llama_cpp() -> None:
    """Skip the test where llama.cpp is not installed."""
    if importlib.util.find_spec(_PACKAGE) is None:
        pytest.skip(f"llama.cpp is not here: `pip install {_PACKAGE}` brings it")


def next_logprobs(
    gguf: Path, ids: Sequence[int], lora: Path | None = None, *, then: int | None = None
) -> dict[int, float]:
    """Return the logarithm of every token's probability behind a prompt.

    Args:
        gguf: the model.
        ids: the prompt.
        lora: an adapter.
        then: the token that is taken next, whatever the figures say. llama.cpp gives none where it
            is half a character.
    """
    asked = {
        "prompt": list(ids),
        "n_predict": 1,
        "n_probs": 1 << 20,
        "temperature": 0,
        "cache_prompt": False,
        "logit_bias": [] if then is None else [[then, 1000.0]],
    }
    answer = _ask(gguf, lora, [("/completion", asked)])[0]
    (token,) = answer["completion_probabilities"]
    return {int(one["id"]): float(one["logprob"]) for one in token["top_logprobs"]}


def tokens(gguf: Path, texts: Sequence[str], *, start: bool) -> list[list[int]]:
    """Return the ids of texts, special tokens recognised; with `start`, as the file wants it."""
    asked = [
        ("/tokenize", {"content": text, "add_special": start, "parse_special": True})
        for text in texts
    ]
    return [answer["tokens"] for answer in _ask(gguf, None, asked)]


def _ask(gguf: Path, lora: Path | None, asked: list[tuple[str, Any]]) -> list[Any]:
    request = {"gguf": str(gguf), "lora": None if lora is None else str(lora), "asked": asked}
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    answers: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def _serve(request: Any) -> list[Any]:
    package = importlib.import_module(_PACKAGE)
    params = package.CommonParams()
    params.model.path = request["gguf"]
    params.n_ctx = _CONTEXT
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.warmup = False
    params.verbosity = -1
    params.cpuparams.n_threads = 1
    # Keys and values in fp16 would hide what is compared here.
    params.cache_type_k = params.cache_type_v = package.ggml_type.GGML_TYPE_F32
    if request["lora"] is not None:
        params.lora_adapters = [package.CommonAdapterLoraInfo(request["lora"], 1.0)]
    server = package.Server(params)
    return [_post(server.listening_address + path, body) for path, body in request["asked"]]


def _post(address: str, body: Any) -> Any:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    # The server is this process's own: a proxy of the environment has no part in it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request) as answer:
        return json.loads(answer.read())


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(_serve(json.loads(sys.stdin.read()))) + "\n")
