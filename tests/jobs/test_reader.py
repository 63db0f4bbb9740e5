from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmo.embed.elmo import Elmo
from elmo.errors import ChecksumError, DataError, ElmoError
from elmo.jobs.plan import EmbedJob
from elmo.jobs.reader import read_embeddings
from elmo.jobs.run import embed_corpus
from elmo.jobs.writers import WRITERS, write_hdf5
from tests.embed.sentences import HOSTILE, assert_same, sentences, shard

SUFFIXES = [".h5", ".hdf5", ".jsonl", ".npz", ".parquet", ".safetensors"]
LINES = ["The river bank .", "", "A/b c", "The river bank .", "x", ""]


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("".join(line + "\n" for line in LINES))
    return str(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("shard_tokens", [3, None])
@pytest.mark.parametrize(("layers", "dtype"), [("average", "float16"), ("all", "float32")])
def test_a_job_is_read_by_its_output_or_its_manifest(
    tmp_path: Path, elmo: Elmo, text: str, suffix: str, shard_tokens: int | None, layers: str, dtype: str
) -> None:
    out = tmp_path / f"v{suffix}"
    embed_corpus(EmbedJob((text,), out, layers=layers, dtype=dtype, shard_tokens=shard_tokens), elmo)  # type: ignore[arg-type]
    expected = elmo.encode(LINES, layers=layers, dtype=dtype)  # type: ignore[arg-type]
    for path in (out, tmp_path / f"v{suffix}.manifest.json", str(out)):
        assert_same(list(read_embeddings(path)), expected, dtype="float32" if suffix == ".jsonl" else dtype)


def test_a_single_shard_can_be_read(tmp_path: Path, elmo: Elmo, text: str) -> None:
    embed_corpus(EmbedJob((text,), tmp_path / "v.npz", shard_tokens=4), elmo)
    assert [one.tokens for one in read_embeddings(tmp_path / "v-00001.npz")] == [("A/b", "c")]


def test_a_sentence_does_not_keep_its_shard_in_memory(tmp_path: Path, elmo: Elmo, text: str) -> None:
    embed_corpus(EmbedJob((text,), tmp_path / "v.npz"), elmo)
    vectors = next(read_embeddings(tmp_path / "v.npz")).vectors
    assert isinstance(vectors, np.ndarray)
    assert vectors.base is None
    assert vectors.flags.writeable


def test_the_error_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"v\.npz: neither this file nor v\.npz\.manifest\.json exists"):
        read_embeddings(tmp_path / "v.npz")
    with pytest.raises(DataError, match=r"v\.txt: the file name must end in \.hdf5"):
        read_embeddings(tmp_path / "v.txt")


def test_reading_an_unfinished_job_is_an_error(tmp_path: Path, elmo: Elmo, text: str) -> None:
    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_corpus(EmbedJob((text,), tmp_path / "v.npz", shard_tokens=3), elmo, on_progress=stop)
    with pytest.raises(DataError, match=r"the job is not finished; run it again"):
        read_embeddings(tmp_path / "v.npz")


def test_a_damaged_shard_is_named(tmp_path: Path, elmo: Elmo, text: str) -> None:
    embed_corpus(EmbedJob((text,), tmp_path / "v.safetensors", shard_tokens=4), elmo)
    path = tmp_path / "v-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-9] ^= 1  # inside a number: only the checksum detects it
    path.write_bytes(data)
    with pytest.raises(ChecksumError, match=r"v-00001\.safetensors: SHA-256 must be"):
        list(read_embeddings(tmp_path / "v.safetensors"))
    assert len(list(read_embeddings(tmp_path / "v.safetensors", verify=False))) == len(LINES)
    path.unlink()
    with pytest.raises(DataError, match=r"v-00001\.safetensors: the manifest lists this file"):
        list(read_embeddings(tmp_path / "v.safetensors"))


def test_a_manifest_cannot_name_files_outside_its_folder(tmp_path: Path, elmo: Elmo, text: str) -> None:
    embed_corpus(EmbedJob((text,), tmp_path / "v.npz"), elmo)
    path = tmp_path / "v.npz.manifest.json"
    values = json.loads(path.read_text())
    for name in ("../secret.npz", "/etc/passwd", "a/b.npz", "..", "", "a\0b"):
        values["shards"][0]["file"] = name
        path.write_text(json.dumps(values))
        with pytest.raises(DataError, match="must have a plain name"):
            list(read_embeddings(path))


@pytest.mark.parametrize("text_of_manifest", ["", "[]", "{}", '{"version": 1}', '{"version": 2}', "\xff", "[" * 9999])
def test_a_damaged_manifest_is_a_one_line_error(tmp_path: Path, text_of_manifest: str) -> None:
    path = tmp_path / "v.manifest.json"
    path.write_text(text_of_manifest, encoding="latin-1")
    with pytest.raises(DataError) as caught:
        read_embeddings(path)
    assert "v.manifest.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [*WRITERS, ".hdf5"])
def test_files_with_changed_or_missing_bytes_are_errors_or_readable(tmp_path: Path, suffix: str) -> None:
    one = shard(sentences([row for row in HOSTILE if len("".join(row)) < 100], with_offsets=True))
    path = tmp_path / f"v{suffix}"
    if suffix == ".hdf5":
        write_hdf5([one], path)
    else:
        with path.open("wb") as file:
            WRITERS[suffix](one, file)
    sound, chance = path.read_bytes(), random.Random(0)
    refusals: list[str] = []
    for _ in range(150):
        data = bytearray(sound)
        if chance.random() < 0.7:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:
            del data[chance.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            for encoding in read_embeddings(path):
                assert encoding.vectors.shape[-2] == len(encoding.tokens)
        except ElmoError as error:
            refusals.append(str(error))
    assert len(refusals) >= 30
    assert not [refusal for refusal in refusals if "\n" in refusal]


def npz(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def test_an_npz_file_with_pickles_or_a_false_size_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "v.npz"
    pickled = npy(np.array([{}], dtype=object))
    huge = npy(np.zeros(1, np.float32)).replace(b"(1,)", b"(99999999999999,)")
    for data, reason in ((pickled, "plain numbers"), (huge, "npy|bytes of data|header")):
        npz(path, {"vectors.npy": data})
        with pytest.raises(DataError, match=reason):
            list(read_embeddings(path))
    npz(path, {"vectors.npy": npy(np.zeros(10**6))}, zipfile.ZIP_DEFLATED)
    with pytest.raises(DataError, match="is compressed"):
        list(read_embeddings(path))


def test_a_safetensors_header_with_a_false_size_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "v.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    with pytest.raises(DataError, match="invalid header size"):
        list(read_embeddings(path))
    entry = {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}
    header = json.dumps({"__metadata__": {"elmo": "{}"}, "vectors": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(DataError, match="the file is truncated"):
        list(read_embeddings(path))


def test_an_hdf5_file_cannot_link_to_other_files(tmp_path: Path) -> None:
    path, other = tmp_path / "v.hdf5", tmp_path / "other.hdf5"
    write_hdf5([shard(sentences([("a",)]))], other)
    with h5py.File(path, "w") as file:
        file["0"] = h5py.ExternalLink(str(other), "0")
    with pytest.raises(DataError, match="'0' must be a dataset that is stored in this file"):
        list(read_embeddings(path))
    with h5py.File(path, "w") as file:
        data = file.create_dataset("0", (1, 4), "f4", external=[(str(other), 0, 16)])
        data.attrs["tokens"] = '["a"]'
    with pytest.raises(DataError, match="'0' must be a dataset that is stored in this file"):
        list(read_embeddings(path))


def test_an_hdf5_file_with_a_false_length_of_a_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "v.hdf5"
    write_hdf5([shard(sentences([("a",)]))], path)
    data = bytearray(path.read_bytes())
    at = data.index(struct.pack("<I", len('["a"]')), data.index(b"tokens\0"))
    data[at : at + 4] = struct.pack("<I", 4_000_000_000)  # libhdf5 would allocate 4 GB
    path.write_bytes(data)
    with pytest.raises(ElmoError, match="found a length of 4000000000"):
        list(read_embeddings(path))
    with h5py.File(path, "w") as file:
        many = file.create_dataset("0", data=np.zeros((1, 4), np.float32))
        many.attrs.create("tokens", ["a"] * 100, dtype=h5py.string_dtype())
    with pytest.raises(DataError, match="'tokens' must be one string"):
        list(read_embeddings(path))
    with h5py.File(path, "w") as file:
        file.create_dataset("0", (1, 4), "f4", chunks=(1, 4), compression="gzip").attrs["tokens"] = '["a"]'
    with pytest.raises(DataError, match="in one piece"):
        list(read_embeddings(path))


def test_an_hdf5_file_without_tokens_is_an_error(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "v.hdf5", "w") as file:
        file["0"] = np.zeros((1, 4), np.float32)
    with pytest.raises(DataError, match="only files of elmo embed have it"):
        list(read_embeddings(tmp_path / "v.hdf5"))
