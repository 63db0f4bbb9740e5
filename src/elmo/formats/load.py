"""A path or a Hub id in, a model out: finds which published format a folder or an archive holds.

A model of any format in, a folder of ours or of AllenNLP's out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from elmo import models
from elmo.config import BiLmConfig, n_parameters
from elmo.errors import ConfigError, FormatError
from elmo.formats import archive, hub
from elmo.formats.archive import is_wanted
from elmo.formats.pretrained import Pretrained, fingerprint
from elmo.storage.files import names, reason, shown
from elmo.storage.tensors import Dtype

_MAX_DEPTH = 3  # of a model's folder inside an archive
_LOOKED_FOR = (
    "config.json with model.safetensors, *options.json with an HDF5 file, a TensorFlow checkpoint (*.index), "
    "a TF-Hub module (saved_model.pb or tfhub_module.pb), or encoder.pkl with char.dic or word.dic"
)


class Reader(Protocol):
    """What every module of a format offers."""

    @property
    def NAME(self) -> str:  # noqa: N802  a constant of the module
        """How ``elmo info`` names the format."""
        ...

    def is_here(self, folder: Path) -> bool:
        """Whether the folder looks like this format."""
        ...

    def read(self, folder: Path) -> Pretrained:
        """Read the folder's model."""
        ...


@dataclass(frozen=True)
class ModelInfo:
    """What ``elmo info`` tells about a model."""

    source: str
    format: str
    files: dict[str, int]  # name and bytes; inside an archive, of the unpacked files
    config: BiLmConfig
    n_parameters: int
    n_words: int | None  # of the vocabulary
    has_softmax: bool
    has_warm: bool
    has_mix: bool
    fingerprint: str  # SHA-256 over config and weights, the same in every format
    metadata: dict[str, object]


def load(source: str | Path | None) -> Pretrained:
    """Read a model of any format from a folder, an archive, one of its files, or the Hugging Face Hub.

    None is the bundled English model, and so is ``en``; each bundled one goes by its name (a folder of that
    name is ``./en``). A string that names no file here may be a Hub id, ``org/name`` or
    ``org/name@revision``. Where files of several formats lie together, the first of ``readers()`` counts.
    """
    with _found(source) as (folder, is_temporary):
        return _read(folder, is_temporary)


def describe(source: str | Path | None) -> ModelInfo:
    """Load a model, and tell what it is."""
    with _found(source) as (folder, is_temporary):
        model = _read(folder, is_temporary)
        sizes = {name: size for name, size in _sizes(folder) if is_wanted(name)}
    return ModelInfo(
        source=models.DEFAULT if source is None else str(source),
        format=model.format,
        files=sizes,
        config=model.config,
        n_parameters=n_parameters(model.config),
        n_words=None if model.vocab is None else len(model.vocab),
        has_softmax=model.softmax is not None,
        has_warm=model.warm is not None,
        has_mix=model.mix is not None,
        fingerprint=fingerprint(model),
        metadata=dict(model.metadata),
    )


def bundled_name(wanted: str, *, with_warm: bool = False) -> str | None:
    """The name of the bundled model whose ``fingerprint`` is ``wanted``; None when it is of another."""
    found = (name for name in models.names() if fingerprint(load(name), with_warm=with_warm) == wanted)
    return next(found, None)


def readers() -> Iterator[Reader]:
    """The formats, in the order in which a folder is tried: our own, which has checksums, is first."""
    from elmo.formats import native

    yield native
    from elmo.formats import hdf5  # imported one by one: most searches end here

    yield hdf5
    from elmo.formats import bilm_tf, many_langs, tf_hub

    yield bilm_tf
    yield tf_hub
    yield many_langs


def _read(folder: Path, is_temporary: bool) -> Pretrained:
    from elmo.formats import native

    for reader in readers():
        if reader.is_here(folder):
            try:
                if reader is native:  # mapped weights would be lost with a temporary folder
                    return native.read(folder, is_mapped=not is_temporary)
                return reader.read(folder)
            except ConfigError as error:  # sizes that a file tells of, and no network can have
                raise FormatError(f"{shown(folder)}: {error}") from error
            except OSError as error:  # a disk or a network that fails in the middle of a file
                raise FormatError(f"{shown(folder)}: cannot be read: {reason(error)}") from error
    found = ", ".join(map(shown, names(folder)[:8])) or "nothing"
    raise FormatError(f"{shown(folder)}: expected {_LOOKED_FOR}; found {found}")


@contextmanager
def _found(source: str | Path | None) -> Iterator[tuple[Path, bool]]:
    """The folder that holds the model, and whether it is a temporary one."""
    if source is None:
        source = models.folder()
    elif source == "":  # an unset variable of a script, which never meant the bundled model
        raise ConfigError("expected a model's name, path or Hub id, found an empty one")
    elif isinstance(source, str) and source in models.names():
        source = models.folder(source)
    path = Path(source)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:  # a name too long, for instance
        raise FormatError(f"{shown(path)!s:.200}: cannot be opened: {error.strerror}") from error
    if is_folder:
        yield path, False
    elif is_file and is_wanted(path.name):  # one of a model's files stands for them all
        yield path.parent, False
    elif is_file and archive.is_archive(path):
        with archive.opened(path) as root:
            try:
                yield _model_below(root, path), True
            except FormatError as error:  # nobody knows the temporary folder
                raise type(error)(str(error).replace(str(root), shown(path))) from error
    elif is_file:
        raise FormatError(
            f"{shown(path)}: expected a model's folder or archive, found a file of another kind"
        )
    elif isinstance(source, str) and (repo := hub.split_id(source)) and not _is_meant_as_path(path):
        yield hub.fetch(*repo), False
    else:
        raise FormatError(
            f"{shown(path)!s:.200}: expected a folder, an archive or a Hub id such as org/name, found none; "
            f"bundled are {', '.join(models.names()) or 'none'}"
        )


def _is_meant_as_path(path: Path) -> bool:
    """Whether what could be a Hub id is rather a path with a typing error in it."""
    return path.parent.is_dir() or is_wanted(path.name) or path.name.lower().endswith(archive.SUFFIXES)


def _model_below(root: Path, source: Path) -> Path:
    """The one folder of an unpacked archive that holds a model, wherever the archive keeps it."""
    level = [root]
    for _ in range(_MAX_DEPTH + 1):
        found = [folder for folder in level if any(reader.is_here(folder) for reader in readers())]
        if len(found) == 1:
            return found[0]
        if found:
            listed = ", ".join(shown(folder.relative_to(root)) for folder in found[:8])
            raise FormatError(
                f"{shown(source)}: expected one model, found {listed}; unpack it and give a folder"
            )
        level = [
            Path(entry)
            for folder in level
            for entry in sorted(os.scandir(folder), key=_name)
            if entry.is_dir()
        ]
    inside = ", ".join(shown(name) for name, _ in _sizes(root)[:8])
    raise FormatError(
        f"{shown(source)}: expected {_LOOKED_FOR} in the archive; found {inside or 'no such file'}"
    )


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _sizes(folder: Path) -> list[tuple[str, int]]:
    """Names below a folder, and their bytes."""
    found = []
    for path, folders, files in os.walk(folder):
        folders.sort()
        if len(Path(path).relative_to(folder).parts) >= _MAX_DEPTH:
            folders.clear()
        for name in sorted(files):
            file = Path(path, name)
            found.append((file.relative_to(folder).as_posix(), file.stat().st_size if file.exists() else 0))
    return found


def convert(
    source: str | Path, out: str | Path, *, to: Literal["native", "hdf5"] = "native", dtype: Dtype = "float32"
) -> None:
    """Write the model at ``source`` to the new folder ``out``.

    ``native`` is our own format, with checksums and a model card; ``hdf5`` is read by bilm-tf, AllenNLP and
    simple_elmo, and holds float32 only.
    """
    from elmo.formats import hdf5, native

    if to not in ("native", "hdf5"):
        raise ConfigError(f"convert: expected to be 'native' or 'hdf5', found {to!r:.40}")
    if to == "hdf5" and dtype != "float32":
        raise ConfigError(f"convert: hdf5 holds float32 only, found dtype {dtype!r:.40}; use native for it")
    model = load(source)
    if to == "native":
        native.write(model, Path(out), dtype=dtype)
    else:
        hdf5.write(model, Path(out))
