"""Load models from a Hub on 127.0.0.1, in new processes, because huggingface_hub reads settings only once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import elmo
from elmo.errors import FormatError
from elmo.formats import native
from elmo.formats.hub import _check_folder, download, split_id
from elmo.formats.pretrained import fingerprint, load
from tests.formats.damage import SOURCE
from tests.formats.hub_server import COMMIT, Answer, Change, Hub, serving
from tests.formats.tiny import assert_same_model, tiny_model

HOSTILE_REVISIONS = ["a/../../x", "..", ".", "../x", "a/..", "a/./b", "/etc", "a//b", "a/", ".git/x", "a/.x", "a..b",
                     "a\\..\\b", "a\0b", "a\nb", "a\x7f", "a\x1b[31m", "", "a b", "C:x", "x" * 201]  # fmt: skip

CODE = """
import json, logging, sys, warnings
from pathlib import Path
warnings.simplefilter("error")
from elmo.errors import ElmoError
from elmo.formats.pretrained import load
from elmo.formats.pretrained import fingerprint
from elmo.formats.hub import download, split_id
answers = []
for task, source in json.loads(sys.argv[1]):
    if task == "peak":
        # ru_maxrss would also count the process that started this one
        lines = Path("/proc/self/status").read_text().splitlines()
        answers += [str(int(line.split()[1]) * 1024) for line in lines if line.startswith("VmHWM:")]
        break
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
    found = ask(home, hub, ("load", "me/tiny"), ("load", "me/other"), ELMO_OFFLINE="1")
    assert found[0] == answers["me/tiny"]
    assert "ELMO_OFFLINE is set" in found[1]
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
        *((f"org/name@{odd}", None) for odd in HOSTILE_REVISIONS),
    ],
)
def test_a_hub_id_is_distinguished_from_a_path(source: str, expected: tuple[str, str | None] | None) -> None:
    assert split_id(source) == expected


@pytest.mark.parametrize("revision", HOSTILE_REVISIONS)
def test_a_revision_that_could_leave_the_cache_is_not_requested(revision: str) -> None:
    with pytest.raises(FormatError, match="expected a Hub id") as caught:
        download("org/name", revision)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "repo_id", ["../name", "org/..", "org/a..b", "/etc/x", "org/name/x", "org\\x/n", "o\0/n", "name"]
)
def test_an_id_that_could_leave_the_cache_is_not_requested(repo_id: str) -> None:
    with pytest.raises(FormatError, match="expected a Hub id"):
        download(repo_id)


def change_json(part: str, change: Callable[[Any], Any]) -> Change:
    """Change the JSON answers whose path has a part."""

    def apply(path: str, answer: Answer) -> Answer:
        if f"/{part}/" not in path or not path.startswith("/api/"):
            return answer
        status, headers, body = answer
        return status, headers, json.dumps(change(json.loads(body))).encode()

    return apply


def change_header(name: str, value: str) -> Change:
    return lambda path, answer: (answer[0], answer[1] | {name: value}, answer[2]) if "/resolve/" in path else answer


def send_bomb(path: str, answer: Answer) -> Answer:
    """A compressed answer of 30 MB, which needs a gigabyte of memory as a list."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = packer.compress(b"[" + b"{}," * 10_000_000 + b"{}]") + packer.flush()
    return 200, answer[1] | {"Content-Encoding": "gzip"}, body


def hostile_changes() -> dict[str, Change]:
    """Answers that would write outside the cache, or that are not what the Hub sends, by their ids."""
    paths = [
        "../../../../escaped.json",
        "/tmp/escaped.json",
        "a/../../escaped.json",
        "C:\\escaped.json",
        "",
        "a\0.json",
    ]
    tags = ["../../../../escaped", "/tmp/escaped", "..", "a\\b"]
    odd = [None, 5, [], {}, "text", [5], {"sha": 5}, {"sha": COMMIT, "siblings": 5}, {"sha": COMMIT, "siblings": [7]},
           {"sha": COMMIT, "siblings": [{}]}, {"sha": None}, {"error": "no"}]  # fmt: skip
    entries = [None, 5, {}, [5], [None], [{}], [{"type": "file"}], [{"type": "file", "path": 5, "size": "x", "oid": 1}],
               [{"type": "file", "path": "config.json", "size": [], "oid": {}, "lfs": 5}],
               [{"type": "file", "path": "config.json", "size": 1, "oid": "a", "lfs": {"size": "x"}}]]  # fmt: skip
    file = {"type": "file", "size": 5, "oid": "a" * 40}
    changes = [
        *(change_json("revision", lambda value, sha=tag: value | {"sha": sha}) for tag in tags),
        *(change_json("revision", lambda value, at=path: value | {"siblings": [{"rfilename": at}]}) for path in paths),
        *(change_json("tree", lambda value, path=path: [*value, file | {"path": path}]) for path in paths),
        *(change_json("tree", lambda value, tag=tag: [item | {"oid": tag} for item in value]) for tag in tags),
        *(change_json("tree", lambda value, tag=tag: [
            item | {"lfs": {"oid": tag, "size": 1, "pointerSize": 1}, "xetHash": "a" * 64} for item in value
        ]) for tag in tags),
        *(change_header(name, f'"{tag}"') for name in ("ETag", "X-Linked-Etag") for tag in tags),
        *(change_header("X-Repo-Commit", tag) for tag in tags),
        *(change_json("revision", lambda _, value=value: value) for value in odd),
        *(change_json("tree", lambda _, value=value: value) for value in entries),
        send_bomb,
    ]  # fmt: skip
    return {f"me/hostile{number}": change for number, change in enumerate(changes)}


@pytest.mark.slow
def test_hostile_answers_give_one_error_and_write_nothing_outside_the_cache(model: Path, tmp_path: Path) -> None:
    changes = hostile_changes()
    home = tmp_path / "a" / "b" / "home"
    home.mkdir(parents=True)
    with serving(dict.fromkeys(changes, model), changes) as hub:
        before = set(Path("/tmp").iterdir())
        *answers, peak = ask(home, hub, *(("load", source) for source in changes), ("peak", ""))
    expected = fingerprint(load(model))
    # some servers only lie about what nobody needs
    assert [found for found in answers if not found.startswith("FormatError: ") and found != expected] == []
    assert sum(found != expected for found in answers) > 40
    assert all("try again; try again" not in found for found in answers)
    outside = [path for path in tmp_path.rglob("*") if not path.is_relative_to(home / "hub") and not path.is_dir()]
    assert [path for path in outside if not path.is_relative_to(home)] == []
    assert not [
        path for path in (*tmp_path.rglob("*"), *(set(Path("/tmp").iterdir()) - before)) if "escaped" in path.name
    ]
    assert int(peak) < 600 << 20


@pytest.mark.slow
def test_the_hub_is_told_the_version_of_this_package(hub: Hub, answers: dict[str, str]) -> None:
    assert hub.agents
    assert all(f"pyelmo/{elmo.__version__}; " in agent for agent in hub.agents)


def test_a_model_in_the_shared_part_of_the_cache_loads(tmp_path: Path, model: Path) -> None:
    """huggingface_hub stores large files once for all models, and links from one ``blobs`` folder to the other."""
    snapshot, own = (tmp_path / "models--me--tiny" / name for name in (f"snapshots/{COMMIT}", "blobs"))
    shared = tmp_path / "blobs" / "ab"
    for folder in (snapshot, own, shared):
        folder.mkdir(parents=True)
    for number, path in enumerate(sorted(model.iterdir())):
        blob = shared / f"ab{number:062x}"
        blob.write_bytes(path.read_bytes())
        (own / f"{number}").symlink_to(f"../../blobs/ab/{blob.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    assert fingerprint(load(snapshot)) == fingerprint(load(model))
    (tmp_path / "blobs" / "secret").write_bytes((model / "config.json").read_bytes())
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(tmp_path / "blobs" / "secret")
    with pytest.raises(FormatError, match="links to a file outside its folder"):
        load(snapshot)


def test_a_link_out_of_the_cache_is_noticed_after_the_download(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--me--tiny" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    assert _check_folder(snapshot, "me/tiny", tmp_path) == snapshot
    with pytest.raises(FormatError, match="outside the Hub's cache"):
        _check_folder(tmp_path, "me/tiny", tmp_path)
    (tmp_path / "secret").touch()
    (snapshot / "config.json").symlink_to(tmp_path / "secret")
    with pytest.raises(FormatError, match="links to a file outside"):
        _check_folder(snapshot, "me/tiny", tmp_path)
