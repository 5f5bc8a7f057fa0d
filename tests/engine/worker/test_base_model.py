"""A base model without a chat template: a named one stands in, and goes with the result."""

import json
from pathlib import Path

import pytest
from support.runs import make_run, run_worker, tiny_spec
from support.tiny import save_tiny_model
from transformers import AutoTokenizer

from slidepack.engine.contract.job import FullMethod, LoraMethod
from slidepack.engine.data.rows import Turn
from slidepack.engine.data.tokenizer import load_tokenizer


def _without_template(folder: Path) -> Path:
    model = folder / "model"
    save_tiny_model(model)
    (model / "chat_template.jinja").unlink(missing_ok=True)
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_bytes())
    config.pop("chat_template", None)
    path.write_text(json.dumps(config), encoding="utf-8")
    return model


@pytest.mark.full
@pytest.mark.parametrize("method", [LoraMethod(rank=2), FullMethod()], ids=["lora", "full"])
def test_the_stand_in_goes_with_the_result(tmp_path: Path, method: LoraMethod | FullMethod) -> None:
    model = _without_template(tmp_path)
    tokenizer = load_tokenizer(model)
    assert tokenizer.stands_in
    run = make_run(tmp_path / "run", tiny_spec(tmp_path, method=method, steps=2))
    assert run_worker(run) == 0, run.log.read_text()
    name = "adapter" if isinstance(method, LoraMethod) else "model"
    result = run.result / name
    source = (result / "chat_template.jinja").read_text(encoding="utf-8")
    assert source == tokenizer.template_source
    if name == "model":
        # What transformers renders with it is what was learned.
        theirs = AutoTokenizer.from_pretrained(result)
        turns = [{"role": "user", "content": "Who wrote you?"}]
        rendered = theirs.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert rendered == tokenizer.render((Turn("user", "Who wrote you?", False),), prompt=True)
        again = load_tokenizer(result)
        assert again.template_name == "the model's own"
        ends = json.loads((result / "generation_config.json").read_bytes())["eos_token_id"]
        assert set(ends) >= tokenizer.answer_end_ids
        assert tokenizer.answer_end_ids


@pytest.mark.full
def test_a_models_own_template_stays_alone(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, steps=2)
    run = make_run(tmp_path / "run", spec)
    assert run_worker(run) == 0, run.log.read_text()
    assert not load_tokenizer(Path(spec.base.path)).stands_in
    assert not (run.result / "adapter" / "chat_template.jinja").exists()
