"""Embed large corpora in resumable jobs, and read the vectors from disk.

    from elmo.jobs import EmbedJob, embed_corpus, read_embeddings

    embed_corpus(EmbedJob(inputs=("corpus.txt",), out=Path("vectors.h5")), "en")
    for encoding in read_embeddings("vectors.h5"):
        print(encoding.tokens)

Files, in reading order:

- ``plan.py``: ``EmbedJob``, the options of a job; ``plan_corpus``, which estimates its output and memory.
- ``run.py``: ``embed_corpus``, which runs a job.
- ``groups.py``: split the sentences into groups, one per shard.
- ``sharded.py``: write the shards of a job, or resume an earlier run.
- ``pipeline.py``: threads that read ahead and write in the background.
- ``workers.py``: make shards, in this process or in worker processes.
- ``engines.py``: make shards on a cluster, with Ray or Spark.
- ``shard.py``: a shard as flat arrays.
- ``manifest.py``: the names of the output files, and the manifest.
- ``estimate.py``: ``estimate_job``, which runs a job on a sample to estimate its time, memory and cost.
- ``writers.py`` and ``reader.py``: the file formats, and ``read_embeddings``.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
