"""Names of Ollama's lead to GGUF files in a folder laid out as Ollama does."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.daemons import DaemonProcess
from support.waiting import wait_until

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.importer.ollama import find_blob, ollama_folders

KIND = "application/vnd.ollama.image."


def pull(root: Path, place: str, parts: dict[str, bytes]) -> dict[str, Path]:
    """Lay a model out as `ollama pull` does; return its parts' files."""
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    layers: list[dict[str, Any]] = []
    files: dict[str, Path] = {}
    for kind, data in parts.items():
        digest = hashlib.sha256(data).hexdigest()
        files[kind] = root / "blobs" / f"sha256-{digest}"
        files[kind].write_bytes(data)
        layers.append({"mediaType": KIND + kind, "digest": f"sha256:{digest}", "size": len(data)})
    manifest = root / "manifests" / place
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return files


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("llama3.2", "registry.ollama.ai/library/llama3.2/latest"),
        ("llama3.2:1b-q4_K_M", "registry.ollama.ai/library/llama3.2/1b-q4_K_M"),
        ("someone/tiny:v2", "registry.ollama.ai/someone/tiny/v2"),
        ("hf.co/bartowski/Qwen3-GGUF:Q8_0", "hf.co/bartowski/Qwen3-GGUF/Q8_0"),
    ],
)
def test_names_lead_to_blobs(tmp_path: Path, name: str, place: str) -> None:
    files = pull(tmp_path, place, {"model": b"GGUF 1", "template": b"{{ .Prompt }}"})
    assert find_blob(name, [tmp_path / "empty", tmp_path]) == files["model"]


def test_a_part_for_images_beside_the_model_is_left_out(tmp_path: Path) -> None:
    parts = {"projector": b"GGUF eyes", "model": b"GGUF mouth"}
    files = pull(tmp_path, "registry.ollama.ai/library/llava/latest", parts)
    assert find_blob("llava", [tmp_path]) == files["model"]


def refusal(name: str, *folders: Path) -> tuple[str, str]:
    with pytest.raises(SlidepackError) as caught:
        find_blob(name, folders)
    report = caught.value.report
    assert report.fix
    return report.code, report.why


def test_what_is_not_there(tmp_path: Path) -> None:
    code, why = refusal("llama3.2", tmp_path)
    assert code == "MODEL-NOT-FOUND" and str(tmp_path) in why
    pull(tmp_path, "registry.ollama.ai/library/qwen3/8b", {"model": b"GGUF"})
    pull(tmp_path, "registry.ollama.ai/someone/tiny/v2", {"model": b"GGUF"})
    pull(tmp_path, "hf.co/a/b/Q8_0", {"model": b"GGUF"})
    code, why = refusal("qwen3", tmp_path)
    assert code == "MODEL-NOT-FOUND"
    assert why == "qwen3: it is not among hf.co/a/b:Q8_0, qwen3:8b, someone/tiny:v2"
    # No folder holds a name of that length; one that the user may not read fails alike.
    code, why = refusal("q" * 300, tmp_path)
    assert code == "MODEL-NOT-FOUND" and f"{tmp_path} cannot be read" in why


@pytest.mark.parametrize("name", ["", "..", "../x", "a/../b", "a/b/c/d", "a:b:c", "a:../b", "/a"])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "manifests").mkdir()
    code, why = refusal(name, tmp_path)
    assert code == "MODEL-NOT-FOUND" and "is not of the form" in why


def test_what_cannot_be_brought_in(tmp_path: Path) -> None:
    place = "registry.ollama.ai/library/x/latest"
    pull(tmp_path, place, {"model": b"GGUF", "adapter": b"GGUF lora"})
    assert refusal("x", tmp_path)[0] == "MODEL-UNSUPPORTED"
    pull(tmp_path, place, {"tensor": b"safetensors"})
    code, why = refusal("x", tmp_path)
    assert code == "MODEL-UNSUPPORTED" and "no GGUF file" in why
    pull(tmp_path, place, {"model": b"GGUF"})["model"].unlink()
    assert refusal("x", tmp_path)[0] == "MODEL-BROKEN"
    manifest = tmp_path / "manifests" / place
    digest = "sha256:../../../etc/passwd"
    manifest.write_text(json.dumps({"layers": [{"mediaType": KIND + "model", "digest": digest}]}))
    code, why = refusal("x", tmp_path)
    assert code == "MODEL-BROKEN" and "names the digest" in why
    for garbage in ("", "[]", '{"layers": 3}', '{"layers": [{}]}'):
        manifest.write_text(garbage)
        assert refusal("x", tmp_path)[0] == "MODEL-BROKEN"


def test_folders_that_are_looked_at(tmp_path: Path) -> None:
    own = ollama_folders({"OLLAMA_MODELS": str(tmp_path / "mine")}, tmp_path)
    assert own[:2] == [tmp_path / "mine", tmp_path / ".ollama" / "models"]
    assert ollama_folders({}, tmp_path)[0] == tmp_path / ".ollama" / "models"


def test_a_daemon_brings_in_a_model_of_ollamas(
    tmp_path: Path, tiny_gguf: Callable[..., Path]
) -> None:
    data = tiny_gguf(tmp_path / "tiny.gguf").read_bytes()
    pull(tmp_path / "ollama", "registry.ollama.ai/library/tiny/1b", {"model": data})
    daemon = DaemonProcess(tmp_path / "home")
    daemon.environment["OLLAMA_MODELS"] = str(tmp_path / "ollama")
    with daemon:
        model = daemon.api("POST", "/models", json={"source": "ollama:tiny:1b"})
        assert model["name"] == "tiny:1b" and model["kind"] == "gguf"

        def settled() -> Any:
            now = daemon.api("GET", f"/models/{model['id']}")
            return now if now["state"] != "importing" else None

        assert wait_until(settled, what="the model is imported")["state"] == "ready"
        again = daemon.api("POST", "/models", json={"source": "ollama:tiny:1b"})
        assert again["id"] == model["id"]
        with daemon.http() as client:
            refused = client.post("/api/v1/models", json={"source": "ollama:tiny"})
        assert refused.status_code == 404
        assert "tiny:1b" in refused.text and "MODEL-NOT-FOUND" in refused.text
