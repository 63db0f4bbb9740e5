"""A group of sentences in, its vectors out; its vectors in, a whole shard on disk and its record out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo.embed.atomic import replacing
from elmo.embed.groups import Group
from elmo.embed.manifest import ShardRecord
from elmo.embed.output_files import OutputFiles
from elmo.embed.pieces import pieces
from elmo.embed.request import EmbedJob, encode
from elmo.embed.shard import Layout, Shard
from elmo.embed.writers import WRITERS
from elmo.errors import ConfigError
from elmo.formats.checksums import sha256

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

Vectors = np.ndarray[Any, Any]


class ShardMaker:
    """Makes the shards of one job, each from its group alone; whoever holds the job's lock may use it."""

    def __init__(self, job: EmbedJob, elmo: Elmo) -> None:
        if job.out is None:
            raise ConfigError("shards need a file to go to: give out")
        self.job, self.elmo, self.files = job, elmo, OutputFiles(job.out)
        self.layout = Layout.of(elmo.config, layers=job.layers, dtype=job.dtype)

    def vectors(self, group: Group, on_piece: Callable[[int, int], None] | None = None) -> Vectors:
        """The vectors of all its tokens; ``on_piece`` hears how many sentences and tokens are done."""
        vectors, n_sentences, at = self.layout.empty(group.n_tokens), 0, 0
        for piece in pieces(group.sentences, batch_size=self.job.batch_size):
            for encoding in encode(piece, self.job, self.elmo):
                vectors[..., at : at + len(encoding), :] = encoding.vectors
                at += len(encoding)
            n_sentences += len(piece)
            if on_piece is not None:
                on_piece(n_sentences, at)
        return vectors

    def write(self, group: Group, vectors: Vectors) -> ShardRecord:
        """Write the shard; when its record is there, so is the whole file."""
        files = self.files
        shard = Shard.of(group.sentences, vectors, first=group.first)
        path = files.shard(group.index, is_only=group.is_last and group.index == 0)
        with replacing(path) as temporary:
            path.parent.mkdir(exist_ok=True)
            with temporary.open("xb") as file:
                WRITERS[files.shard_suffix.lower()](shard, file)
        return ShardRecord(
            file=path.name,
            sha256=sha256(path),
            first=group.first,
            sentences=len(group.sentences),
            tokens=group.n_tokens,
            input=group.digest,
        )
