"""Write tiny models with the file names and the layouts of published ones."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from elmo.formats import bilm_hdf5
from tests.formats.many_langs_folder import write_folder
from tests.formats.tiny import tiny_model
from tests.formats.write_bilm import hub_cell, write_hub_folder, write_training_folder

MODEL = tiny_model(softmax=True)
BARE = tiny_model()


def hdf5(
    folder: Path,
    *,
    options: str = "options.json",
    weights: str = "weights.hdf5",
    softmax: str | None = None,
    vocab: str | None = None,
) -> None:
    """Write options and weights under other names, with the softmax and the vocabulary if they have a name."""
    bilm_hdf5.write(MODEL if softmax else BARE, folder)
    (folder / "options.json").rename(folder / options)
    (folder / "weights.hdf5").rename(folder / weights)
    if softmax:
        (folder / "softmax_weights.h5").rename(folder / softmax)
        (folder / "vocab.txt").rename(folder / (vocab or "vocab.txt"))
    elif vocab:
        (folder / vocab).write_text("<S>\n</S>\n<UNK>\na\n")


def checkpoint(folder: Path, *, step: int = 7, vocab: str = "vocab.txt", has_pointer: bool = True) -> None:
    """Write a checkpoint as bilm-tf does."""
    folder.mkdir(parents=True, exist_ok=True)
    write_training_folder(folder, MODEL, step=step)
    (folder / f"model.ckpt-{step}.meta").write_bytes(b"a graph")
    (folder / "vocab.txt").rename(folder / vocab)
    if not has_pointer:
        (folder / "checkpoint").unlink()


def deeppavlov(folder: Path, *, saves: str = "saves", has_pointer: bool = False) -> None:
    """Write a checkpoint as DeepPavlov does: the variables have other names and are in another folder."""
    inner = folder / saves
    inner.mkdir(parents=True)
    write_training_folder(inner, MODEL, cell_name=hub_cell)
    for path in list(inner.glob("model.ckpt-7.*")):
        path.rename(path.with_name(path.name.replace("model.ckpt-7", "model")))
    for name in ("options.json", "vocab.txt"):
        (inner / name).rename(folder / name)
    pointer = inner / "checkpoint"
    pointer.unlink()
    if has_pointer:
        pointer.write_text('model_checkpoint_path: "model"\n')


def hub_module(folder: Path) -> None:
    """Write a TF-Hub module as DeepPavlov exports it."""
    write_hub_folder(folder, tiny_model(mix=True))
    (folder / "tfhub_module.pb").write_bytes(b"\x08\x03")
    (folder / "assets").mkdir()


def many_langs(folder: Path) -> None:
    """Write a folder of ELMoForManyLangs."""
    folder.mkdir(parents=True)
    write_folder(folder)


def korean(folder: Path) -> None:
    """Write a checkpoint with its weights in an HDF5 file called ``elmo.model``."""
    checkpoint(folder, vocab="elmo-vocab.txt")
    hdf5(folder / "hdf5")
    (folder / "hdf5" / "weights.hdf5").rename(folder / "elmo.model")
    for path in (folder / "hdf5").iterdir():
        path.unlink()
    (folder / "hdf5").rmdir()


# --- archives ---------------------------------------------------------------------------------------------


def zipped(folder: Path, *, below: str = "") -> bytes:
    """Return a zip of a folder."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, below + path.relative_to(folder).as_posix())
    return out.getvalue()


def tarred(folder: Path, *, below: str = "model") -> bytes:
    """Return a tar of a folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add(folder, below)
    return out.getvalue()


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".tar": bytes, ".tar.gz": gzip.compress, ".tgz": gzip.compress, ".tar.bz2": bz2.compress, ".tbz2": bz2.compress,
    ".tar.xz": lzma.compress, ".txz": lzma.compress,
}  # fmt: skip


def packed(folder: Path, name: str, *, below: str = "model") -> bytes:
    """Return the archive of a folder, of the kind that a name asks for."""
    if name.endswith(".zip"):
        return zipped(folder, below=f"{below}/" if below not in ("", ".") else "")
    suffix = next(suffix for suffix in COMPRESS if name.endswith(suffix))
    return COMPRESS[suffix](tarred(folder, below=below))


def nested(inner: dict[str, bytes]) -> bytes:
    """Return a zip of files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in inner.items():
            archive.writestr(name, content)
    return out.getvalue()


def in_parts(content: bytes, n: int) -> list[bytes]:
    """Split a file."""
    size = -(-len(content) // n)
    return [content[k * size : (k + 1) * size] for k in range(n)]
