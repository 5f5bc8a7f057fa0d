"""A whole run over a base with windows, soft caps, four norms and a scaled embedding."""

from pathlib import Path

import pytest
from support.families import tiny_family
from support.runs import events_of, make_run, run_worker, tiny_spec
from support.tiny import save_tokenizer

from slidepack.engine.contract.events import Finished, Sampled


@pytest.mark.full
def test_a_gemma_2_trains_to_the_end(tmp_path: Path) -> None:
    tiny_family(tmp_path / "model", "gemma2", tied=True)
    save_tokenizer(tmp_path / "model")
    folder = make_run(tmp_path / "run", tiny_spec(tmp_path))
    assert run_worker(folder) == 0, folder.log.read_text()
    events = events_of(folder)
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.eval_loss_before is not None
    assert finished.eval_loss_after is not None
    assert finished.eval_loss_after < finished.eval_loss_before
    assert any(isinstance(event, Sampled) for event in events)
    assert (folder.result / "adapter" / "adapter_model.safetensors").exists()
