"""Add a column of vectors to a table, with Ray Data.

    pip install 'pyelmo[parquet,ray]'
    python examples/ray/encode.py reviews.csv text vectors

The table is a CSV file, or a Parquet file or folder. The result is a folder of Parquet files with all columns and a new
one, text_vector. If this machine belongs to a cluster of Ray, it runs there.
"""

import sys

import ray

from elmo.integrations import ElmoBatchEncoder


def main() -> None:
    source, column, out = sys.argv[1:4]
    ray.init()
    n_workers = max(1, int(ray.cluster_resources()["CPU"]) - 1)  # at least one CPU must be left to read and write
    table = ray.data.read_csv(source) if source.endswith(".csv") else ray.data.read_parquet(source)
    table.map_batches(
        ElmoBatchEncoder,
        fn_constructor_kwargs={"column": column},
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=n_workers),  # one thread each
    ).write_parquet(out)


if __name__ == "__main__":
    main()
