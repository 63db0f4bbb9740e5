"""``Elmo.push_to_hub`` with a Hub on 127.0.0.1, in a new process, because huggingface_hub reads settings only once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from elmo import Elmo, FormatError
from elmo.formats import HubUpload, native
from tests.formats.damage import SOURCE
from tests.formats.tiny import tiny_model
from tests.integrations.hub_upload_server import UploadHub, accepting

CODE = """
import json, sys
from elmo import Elmo, ElmoError
from elmo.formats import CardScore, HubUpload, fingerprint
from elmo.formats.pretrained import load
elmo, answers = Elmo.from_pretrained(sys.argv[1]), []
for repo, values in json.loads(sys.argv[2]):
    try:
        values["scores"] = [CardScore(*score) for score in values.get("scores", [])]
        answers.append(elmo.push_to_hub(repo, HubUpload(token="hf_test", **values)))
        answers.append(fingerprint(load(repo)) == fingerprint(elmo.as_pretrained()))
    except ElmoError as error:
        answers.append(f"{type(error).__name__}: {error}")
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("upload") / "tiny"
    native.write(tiny_model(softmax=True, vocab=True, warm=True), folder)
    return folder


def push(home: Path, hub: UploadHub | str, model: Path, *uploads: tuple[str, dict[str, object]]) -> list[object]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_HOME": str(home), "HF_ENDPOINT": hub if isinstance(hub, str) else hub.address,
                    "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(SOURCE),
                    "HF_HUB_DISABLE_PROGRESS_BARS": "1"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(model), json.dumps(uploads)],
        env=environment, cwd=home, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_an_uploaded_model_is_found_with_its_card_and_loads_again(tmp_path: Path, model: Path) -> None:
    store = tmp_path / "hub"
    store.mkdir()
    options = {
        "language": "en", "license": "apache-2.0", "private": True,
        "scores": [["accuracy", 58.0, "WiC dev"], ["spearman", 0.72, "SICK dev"]],
    }  # fmt: skip
    with accepting(store) as hub:
        first, is_same, *refused = push(
            tmp_path, hub, model, ("me/small-elmo", options), ("not an id", {}), ("you/elmo", {})
        )
    assert str(first).startswith(f"{hub.address}/me/small-elmo/commit/")
    assert is_same is True  # downloaded by from_pretrained
    assert hub.private == {"me/small-elmo": True}
    assert "Bearer hf_test" in hub.tokens
    files = {path.name for path in (store / "small-elmo").iterdir()}
    assert {"config.json", "model.safetensors", "softmax.safetensors", "warm.safetensors", "vocab.txt"} <= files
    assert hub.lfs  # the weights came by Git LFS
    card = ModelCard.load(store / "small-elmo" / "README.md")
    assert card.data.library_name == "pyelmo"
    assert card.data.language == "en"
    assert card.data.license == "apache-2.0"
    assert [(score.metric_type, score.metric_value, score.dataset_name) for score in card.data.eval_results] == [
        ("accuracy", 58.0, "WiC dev"),
        ("spearman", 0.72, "SICK dev"),
    ]
    assert 'Elmo.from_pretrained("me/small-elmo")' in card.text
    assert "| WiC dev | accuracy | 58 |" in card.text
    assert refused[0] == "ConfigError: repo_id must be a Hub id such as org/name; found 'not an id'"
    assert str(refused[1]).startswith("OutputError: cannot upload to you/elmo: ")
    assert "\n" not in str(refused[1])
    assert len(refused) == 2


@pytest.mark.slow
def test_your_own_card_is_uploaded_unchanged_and_a_hub_that_is_down_is_one_line(tmp_path: Path, model: Path) -> None:
    store, card = tmp_path / "hub", tmp_path / "card.md"
    store.mkdir()
    card.write_text("---\nlicense: mit\n---\n# Mine\n")
    with accepting(store) as hub:
        _, is_same = push(tmp_path, hub, model, ("me/mine", {"card": str(card), "dtype": "float32"}))
    assert is_same is True
    assert (store / "mine" / "README.md").read_text() == card.read_text()
    (error,) = push(tmp_path, hub, model, ("me/mine", {}))  # the server is closed
    assert str(error).startswith("OutputError: cannot upload to me/mine: ")
    assert "\n" not in str(error)


def test_a_card_that_is_not_utf8_is_one_line_before_anything_is_written(tmp_path: Path) -> None:
    card = tmp_path / "card.md"
    card.write_bytes(b"# caf\xe9\n")
    with pytest.raises(FormatError, match=r"card\.md: expected UTF-8, found byte 0xe9 in line 1, at offset 5$"):
        Elmo(tiny_model()).push_to_hub("me/mine", HubUpload(card=card))
