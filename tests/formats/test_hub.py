"""Load models from a Hub on 127.0.0.1, in new processes, because huggingface_hub reads settings only once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elmo.formats import native
from elmo.formats.hub import split_id
from elmo.formats.pretrained import fingerprint, load
from tests.formats.damage import SOURCE
from tests.formats.hub_server import COMMIT, Hub, serving
from tests.formats.tiny import assert_same_model, tiny_model

CODE = """
import json, logging, sys, warnings
warnings.simplefilter("error")
from elmo.errors import ElmoError
from elmo.formats.pretrained import load
from elmo.formats.pretrained import fingerprint
from elmo.formats.hub import download, split_id
answers = []
for task, source in json.loads(sys.argv[1]):
    try:
        answers.append(fingerprint(load(source)) if task == "load" else str(download(*split_id(source))))
    except ElmoError as error:
        answers.append(f"{type(error).__name__}: {error}")
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "tiny"
    native.write(tiny_model(softmax=True, vocab=True), folder)
    (folder / "modeling_evil.py").write_text("raise SystemExit")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    return folder


@pytest.fixture(scope="module")
def hub(model: Path) -> Iterator[Hub]:
    other = model.with_name("llama")
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "llama"}')
    (other / "model.safetensors").write_bytes(b"gigabytes of it")
    with serving({"me/tiny": model, "me/broken": model, "me/llama": other}) as hub:
        yield hub


def ask(home: Path, hub: Hub | str, *tasks: tuple[str, str], **settings: str) -> list[str]:
    """Load or download each source in a new process that uses only this Hub and this cache."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_HOME": str(home), "HF_ENDPOINT": hub if isinstance(hub, str) else hub.address,
                    "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(SOURCE),
                    **settings}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(tasks)],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    assert all("\n" not in answer for answer in answers)
    return answers


@pytest.fixture(scope="module")
def home(hub: Hub, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache to which the model is downloaded."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def answers(hub: Hub, home: Path) -> dict[str, str]:
    sources = ["me/tiny", "me/tiny@v1", f"me/tiny@{COMMIT}", "me/tiny@v9", "me/none", "me/gated", "me/down",
               "me/nonsense", "me/broken", "me/llama"]  # fmt: skip
    found = ask(home, hub, *(("load", source) for source in sources), ("download", "me/tiny"))
    return dict(zip([*sources, "folder"], found, strict=True))


@pytest.mark.slow
def test_a_model_on_the_hub_loads_at_any_revision(answers: dict[str, str], model: Path) -> None:
    expected = fingerprint(load(model))
    assert answers["me/tiny"] == answers["me/tiny@v1"] == answers[f"me/tiny@{COMMIT}"] == expected


def test_only_files_that_a_reader_may_open_are_downloaded(answers: dict[str, str], hub: Hub) -> None:
    asked = {request.rpartition("/")[2] for request in hub.requests if "/me/tiny/resolve/" in request}
    assert asked == {"config.json", "model.safetensors", "vocab.txt", "softmax.safetensors", "SHA256SUMS"}
    assert {path.name for path in Path(answers["folder"]).iterdir()} == asked


def test_a_model_of_another_kind_is_refused_before_its_weights_are_downloaded(
    answers: dict[str, str], hub: Hub
) -> None:
    assert answers["me/llama"] == (
        "FormatError: me/llama: expected an ELMo model, found a transformers model of type 'llama'"
    )
    assert not [request for request in hub.requests if "llama" in request and request.endswith("safetensors")]


def test_the_folder_in_the_cache_loads_as_a_path_too(answers: dict[str, str]) -> None:
    folder = Path(answers["folder"])
    assert (folder / "config.json").is_symlink()  # the layout of the cache, which must not be refused as an escape
    assert_same_model(load(folder), tiny_model(softmax=True, vocab=True))


def test_errors_of_the_hub_are_reported_in_one_line(answers: dict[str, str]) -> None:
    assert answers["me/tiny@v9"] == "FormatError: me/tiny@v9: the Hub has this model, but not the revision 'v9'"
    assert "me/none: no such folder or archive, and no such model on the Hub" in answers["me/none"]
    assert "me/gated: access to this model is restricted" in answers["me/gated"]
    assert "me/down: " in answers["me/down"]
    assert "500" in answers["me/down"]
    assert "me/nonsense: the download from the Hub failed" in answers["me/nonsense"]
    assert answers["me/broken"].startswith("FormatError: me/broken: ")


@pytest.mark.slow
def test_a_model_in_the_cache_loads_offline_and_others_say_why_not(
    answers: dict[str, str], hub: Hub, home: Path
) -> None:
    n_requests = len(hub.requests)
    found = ask(home, hub, ("load", "me/tiny"), ("load", "me/other"), HF_HUB_OFFLINE="1")
    assert found[0] == answers["me/tiny"]
    assert "me/other: no such folder or archive" in found[1]
    assert "HF_HUB_OFFLINE is set" in found[1]
    assert len(hub.requests) == n_requests


@pytest.mark.slow
def test_without_a_network_the_cache_serves_and_others_say_why_not(answers: dict[str, str], home: Path) -> None:
    found = ask(home, "http://127.0.0.1:9", ("load", "me/tiny"), ("load", "me/other"))
    assert found[0] == answers["me/tiny"]
    assert "me/other: no such folder or archive" in found[1]
    assert "onnect" in found[1]  # "Connection refused" in any spelling
    assert "check the network, HF_HUB_OFFLINE and HF_ENDPOINT" in found[1]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("org/name", ("org/name", None)),
        ("org/name@v1.0", ("org/name", "v1.0")),
        ("org/name@refs/pr/1", ("org/name", "refs/pr/1")),
        *((path, None) for path in ("a/b/c", "name", "./name", "../name", "/org/name", "org/", "C:\\models/x", "")),
        *((odd, None) for odd in ("org/na me", "org/name@", "org/name\n", "órg/name", "org/name@a@b", "o" * 97 + "/n")),
    ],
)
def test_a_hub_id_is_distinguished_from_a_path(source: str, expected: tuple[str, str | None] | None) -> None:
    assert split_id(source) == expected
