"""An embedding job: its options, an estimate of its size, its progress and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from elmo.config import BiLmConfig, n_parameters
from elmo.embed.encoding import Encoding
from elmo.engine.batches import split_batches
from elmo.errors import ConfigError, NotFiniteError, OutputError, SentenceTooLongError
from elmo.jobs.groups import Group, check_length, split_groups
from elmo.jobs.manifest import OutputFiles
from elmo.jobs.shard import Layout
from elmo.storage import remote
from elmo.text.lines import ErrorPolicy, Source, Tally, expand_paths
from elmo.text.reader import InputFormat, Sentence, UnusableSentence, read_sentences
from elmo.text.sentences import SPLIT_SAMPLE, choose_split
from elmo.text.tokenizers import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

SHARD_BYTES = 1 << 26  # default size of the vectors of one shard
SHARD_TOKENS = (
    1 << 17
)  # upper limit of the default, because the text of a token takes memory even if vectors are narrow
_LIBRARY_BYTES = 300 << 20  # estimated memory that Python and torch use
TOKEN_TEXT_BYTES = 200  # estimated memory of a token with its offsets
_COUNTED_BYTES = 1 << 32  # lines are not counted in larger inputs, because that takes too long
_COMPRESSED = (b"\x1f\x8b", b"\xfd7", b"BZh", b"\x28\xb5")  # first bytes of compressed files


@dataclass(frozen=True)
class EmbedJob:
    """Options of ``embed_corpus``.

    Args:
        inputs: Files, globs or folders of text, compressed or not; "-" is stdin. They can be in an object store, such
            as "s3://bucket/corpus/*.txt".
        out: Output file. Its suffix selects the format: .h5 (AllenNLP's layout), .safetensors, .npz, .parquet
            or .jsonl. It can be in an object store, except .h5. Default: JSON lines on stdout.
        layers: Layers to write: "average", "top", "all", "concat" or a layer number.
        input_format: Format of the input: raw text ("text") or tokens separated by spaces ("tokens"), with one sentence
            per line, or "conllu".
        split: Split lines of text into sentences. Default: if they are paragraphs.
        errors: What to do with bytes that are not UTF-8: stop ("strict"), replace them, skip the line, or keep them
            as surrogate escapes.
        dtype: Data type of the vectors in the output.
        start: State at the start of a sentence: "zero", or "warm" (stored with the model).
        batch_size: Number of sentences per batch; affects the speed, not the vectors. Default: as many as fit into
            16,384 tokens.
        shard_tokens: Maximum number of tokens per shard. Default: about 64 MB of vectors.
        restart: Replace the output of an earlier run instead of resuming it.
        workers: Number of processes; affects the speed, not the vectors. More than one requires an output file.
        devices: Devices of the workers, assigned in turn. Default: the device of the model.
        runner: What runs the workers: processes of this machine ("local"), "ray" or "spark"; affects the speed, not the
            vectors. On a cluster, the output must be on storage that all machines share, or in an object store.
        cluster: Address of the Ray cluster, such as "auto", or master of Spark, such as "spark://host:7077". Default:
            this machine, or the cluster that this process is connected to.
        set_aside: Leave out sentences that are too long, or have a token that is too long, and write them to this file:
            a JSON object per line with file, line, start, text and error. The file is complete when the job is. Other
            errors end the job. Default: such a sentence ends the job.

    Example:
        >>> job = EmbedJob(("corpus.txt",), Path("vectors.h5"), layers="all")
        >>> len(list(job.sentences(elmo.tokenizer)))
        10
    """

    inputs: tuple[str, ...]
    out: Path | None = None
    layers: str | int = "average"
    input_format: InputFormat = "text"
    split: bool | None = None
    errors: ErrorPolicy = "strict"
    dtype: Literal["float32", "float16"] = "float32"
    start: Literal["zero", "warm"] = "zero"
    batch_size: int | None = None
    shard_tokens: int | None = None
    restart: bool = False
    workers: int = 1
    devices: tuple[str, ...] = ()
    runner: Literal["local", "ray", "spark"] = "local"
    cluster: str | None = None
    set_aside: Path | None = None

    def __post_init__(self) -> None:
        if self.out is not None and not remote.is_remote(self.out):
            object.__setattr__(self, "out", remote.parse_path(self.out))
        if self.set_aside is not None:
            object.__setattr__(self, "set_aside", remote.parse_path(self.set_aside))
            if remote.is_remote(self.set_aside):
                raise ConfigError("set_aside must be a local file (--set-aside)")
        for name in ("inputs", "devices"):
            if isinstance(value := getattr(self, name), str):
                raise ConfigError(f"{name} must be a tuple of strings; found one string; use ({value[:40]!r},)")
        for name in ("batch_size", "shard_tokens", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1; found {value}")
        if self.workers > 1 and self.out is None:
            raise ConfigError(f"cannot use {self.workers} workers without an output file; set out (--out)")
        if self.runner not in ("local", "ray", "spark"):
            raise ConfigError(f"runner must be local, ray or spark; found {self.runner!r:.40}")
        if self.runner == "local" and self.cluster is not None:
            raise ConfigError("cluster needs a runner; set runner to ray or spark (--runner)")
        if self.runner != "local" and self.out is None:
            raise ConfigError(f"cannot use the runner {self.runner} without an output file; set out (--out)")
        if self.runner != "local" and self.devices:
            raise ConfigError(f"devices are not supported by the runner {self.runner}")
        if len(self.devices) > self.workers:
            raise ConfigError(f"--workers must be at least {len(self.devices)}, one per device; found {self.workers}")
        if len({name.partition(":")[0] for name in self.devices}) > 1:
            raise ConfigError(f"devices must be of one type; found {', '.join(self.devices)[:80]}")
        if self.set_aside is not None and self.set_aside == self.out:
            raise ConfigError("set_aside must not be the output file; choose another file (--set-aside)")

    @property
    def has_workers(self) -> bool:
        """Whether other processes make the shards."""
        return self.workers > 1 or self.runner != "local"

    def tokens_per_shard(self, layout: Layout) -> int:
        """Return the maximum number of tokens per shard; only a shard with a single longer sentence exceeds it."""
        return self.shard_tokens or min(max(1, SHARD_BYTES // layout.token_bytes), SHARD_TOKENS)

    def reads_pipe(self) -> bool:
        """Return whether an input is stdin or a pipe, which may block and can be read only once."""
        return any(path == "-" or not (remote.is_remote(path) or path.is_file()) for path in self.files())

    def files(self) -> list[Source]:
        """Return the files of the input; raise ``DataError`` if one does not exist."""
        return expand_paths(self.inputs, is_remote_allowed=True)

    def count_lines(self) -> int | None:
        """Count the lines of the input, each of which is a sentence.

        If lines are split, the number of sentences is estimated. Returns None if the input is CoNLL-U, a pipe,
        compressed or in an object store, or if it is too large.
        """
        if self.input_format == "conllu" or any(map(remote.is_url, self.inputs)) or self.reads_pipe():
            return None
        files = [path for path in self.files() if path != "-"]
        if sum(path.stat().st_size for path in files) > _COUNTED_BYTES:
            return None
        n_lines = 0
        sample = ""
        for path in files:
            with path.open("rb") as file:
                if self.split is not False and len(sample) <= SPLIT_SAMPLE:
                    sample += file.read(SPLIT_SAMPLE + 1).decode("utf-8", "replace")
                    file.seek(0)
                last = b"\n"
                while chunk := file.read(1 << 20):
                    if last == b"\n" and file.tell() == len(chunk) and chunk.startswith(_COMPRESSED):
                        return None
                    n_lines += chunk.count(b"\n")
                    last = chunk[-1:]
                n_lines += last != b"\n"
        if self.input_format == "text" and self.split is not False:
            choice = choose_split(sample)
            if choice.is_split or self.split:
                return round(n_lines * choice.sentences_per_line)
        return n_lines

    def sentences(
        self,
        tokenizer: Tokenizer,
        tally: Tally | None = None,
        on_unusable: Callable[[UnusableSentence], None] | None = None,
    ) -> Iterator[Sentence]:
        """Check that the inputs exist, and return an iterator over their tokenized sentences.

        ``tally`` counts the lines that are not valid UTF-8. With ``set_aside``, ``on_unusable`` receives the sentences
        that are left out.
        """
        if self.set_aside is not None:
            on_unusable = on_unusable or (lambda _: None)
            return _leave_out(self._read(tokenizer, tally, on_unusable), on_unusable)
        return self._read(tokenizer, tally, None)

    def _read(
        self, tokenizer: Tokenizer, tally: Tally | None, on_unusable: Callable[[UnusableSentence], None] | None
    ) -> Iterator[Sentence]:
        return read_sentences(
            self.inputs,
            tokenizer=tokenizer,
            input_format=self.input_format,
            split=self.split,
            errors=self.errors,
            tally=tally,
            on_unusable=on_unusable,
        )


def _leave_out(sentences: Iterator[Sentence], on_unusable: Callable[[UnusableSentence], None]) -> Iterator[Sentence]:
    """Yield the sentences that the network accepts."""
    for sentence in sentences:
        try:
            check_length(sentence)
        except SentenceTooLongError as error:
            on_unusable(UnusableSentence.of(sentence, error))
        else:
            yield sentence


@dataclass(frozen=True)
class Progress:
    """Progress of a job.

    Attributes:
        stage: The current stage.
        sentences: Number of sentences done so far, including those of earlier runs.
        tokens: Number of tokens done so far, including those of earlier runs.
        shards: Number of complete shards.
        kept: Number of sentences that an earlier run had completed.
    """

    stage: Literal["embedding", "assembling", "predicting"]
    sentences: int
    tokens: int
    shards: int
    kept: int


@dataclass(frozen=True)
class JobSummary:
    """Result of a job.

    Attributes:
        sentences: Number of sentences in the output.
        tokens: Number of tokens in the output.
        kept: Number of sentences that an earlier run had completed.
        was_complete: Whether an earlier run had finished the job, so that this run wrote nothing.
        files: The output files, in order.
        manifest: Path of the manifest; None if the output is a stream.
        repaired_lines: Number of lines that were not valid UTF-8 and were repaired.
        skipped_lines: Number of lines that were not valid UTF-8 and were skipped.
        is_cut_short: Whether the reader closed the output stream before the end.
        set_aside: Number of sentences that were left out and written to ``EmbedJob.set_aside``.
    """

    sentences: int
    tokens: int
    kept: int = 0
    was_complete: bool = False
    files: tuple[Path, ...] = ()
    manifest: Path | None = None
    repaired_lines: int = 0
    skipped_lines: int = 0
    is_cut_short: bool = False
    set_aside: int = 0


@dataclass(frozen=True)
class JobPlan:
    """Estimated size of a job.

    Attributes:
        sentences: Number of sentences in the input.
        tokens: Number of tokens in the input.
        shards: Number of shards; 0 if the output is a stream.
        tokens_per_shard: Maximum number of tokens per shard.
        output_bytes: Estimated size of the output.
        memory_bytes: Estimated peak memory of all processes.
        files: Files that the job writes, in order; the manifest is the last one.
    """

    sentences: int
    tokens: int
    shards: int
    tokens_per_shard: int
    output_bytes: int
    memory_bytes: int
    files: tuple[Path, ...]


def plan_corpus(
    job: EmbedJob,
    model: Elmo | BiLmConfig,
    *,
    tokenizer: Tokenizer | None = None,
    on_group: Callable[[Group], None] | None = None,
) -> JobPlan:
    """Read the input of a job and estimate the size of its output and the memory it needs, without running it.

    Args:
        job: The job.
        model: The model, or its config.
        tokenizer: Tokenizer. Default: that of the model, or the English one if ``model`` is a config.
        on_group: Called with the sentences of each shard.

    Example:
        >>> plan_corpus(EmbedJob(("corpus.txt",), Path("planned.npz")), elmo).sentences
        10
    """
    config = model if isinstance(model, BiLmConfig) else model.config
    if tokenizer is None:
        tokenizer = load_tokenizer("en") if isinstance(model, BiLmConfig) else model.tokenizer
    layout = Layout.of(config, layers=job.layers, dtype=job.dtype)
    limit = job.tokens_per_shard(layout)
    files = None if job.out is None else OutputFiles(job.out)
    n_sentences = n_tokens = n_bytes = n_shards = widest_shard = widest_batch = 0
    for group in split_groups(job.sentences(tokenizer), max_tokens=limit):
        if on_group is not None:
            on_group(group)
        widest_shard = max(widest_shard, group.n_tokens)
        for batch in split_batches(group.sentences, batch_size=job.batch_size):
            widest_batch = max(widest_batch, sum(len(sentence.tokens) for sentence in batch))
        n_shards += 1
        n_sentences += len(group.sentences)
        n_tokens += group.n_tokens
        n_bytes += sum(len(token) for sentence in group.sentences for token in sentence.tokens.tokens)
    # A number takes about 12 characters in JSON. Other formats store the end and the offsets of each token.
    is_json = files is None or files.suffix == ".jsonl"
    per_token = 12 * (layout.n_layers or 1) * layout.width if is_json else layout.token_bytes + 24
    per_sentence = 1000 if files is not None and files.is_assembled else 40  # HDF5 has one dataset per sentence
    # The network holds about three copies of the layers of a batch, and a writer holds two copies of its shard.
    loaded = _LIBRARY_BYTES + 4 * n_parameters(config)
    computing = 3 * widest_batch * 4 * config.n_layers * config.width
    writing, text = 2 * widest_shard * layout.token_bytes, widest_shard * TOKEN_TEXT_BYTES
    if job.workers == 1:  # one group is computed while another is written and a third is read
        memory = loaded + computing + writing + widest_shard * layout.token_bytes + 3 * text
    else:
        memory = loaded + 2 * job.workers * text + job.workers * (loaded + computing + writing + text)
    paths: tuple[Path, ...] = ()
    if files is not None:
        is_single = n_shards == 1 or files.is_assembled
        shards = [files.shard(i, is_only=is_single) for i in range(n_shards)]
        paths = (*([files.out] if is_single else shards), files.manifest)
    return JobPlan(
        sentences=n_sentences,
        tokens=n_tokens,
        shards=0 if files is None else n_shards,
        tokens_per_shard=limit,
        output_bytes=n_tokens * per_token + n_bytes + n_sentences * per_sentence,
        memory_bytes=memory,
        files=paths,
    )


def encode_sentences(sentences: Sequence[Sentence], job: EmbedJob, elmo: Elmo) -> list[Encoding]:
    """Encode sentences with the options of a job; raise ``OutputError`` if a value does not fit its dtype."""

    def encode(some: Sequence[Sentence]) -> list[Encoding]:
        return elmo.encode(
            [sentence.tokens for sentence in some],
            layers=cast("Any", job.layers),
            start=job.start,
            batch_size=job.batch_size,
            dtype=job.dtype,
            overflow="error",
        )

    try:
        return encode(sentences)
    except NotFiniteError:
        for sentence in sentences:  # find the first one
            try:
                encode([sentence])
            except NotFiniteError as error:
                problem = f"cannot store the vectors as {job.dtype}: {error}"
                raise OutputError(f"{sentence.place}: {problem}") from error
        raise
