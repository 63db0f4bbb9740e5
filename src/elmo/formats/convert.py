"""A model of any format in, a folder of ours or of AllenNLP's out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from elmo.errors import ConfigError
from elmo.formats import detect
from elmo.formats.containers.safetensors_file import Dtype


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
    model = detect.load(source)
    if to == "native":
        native.write(model, Path(out), dtype=dtype)
    else:
        hdf5.write(model, Path(out))
