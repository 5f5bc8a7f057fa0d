import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chat_shop import ChatShop
from support.chats import chat_model, peft_adapter


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="session")
def patient_model(model: Path) -> Path:
    """The same for conversations that are long enough to be in the middle of one."""
    folder = Path(shutil.copytree(model, model.parent / "patient"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1 << 15}))
    return folder


@pytest.fixture(scope="session")
def tuned(model: Path) -> Path:
    peft_adapter(model, model.parent / "tuned")
    return model.parent / "tuned"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ChatShop]:
    made = ChatShop(tmp_path)
    yield made
    made.close()
