"""Embed the column of a table and find the rows nearest to a text, with DuckDB.

    pip install 'pyelmo[parquet]' duckdb
    python examples/arrow/search.py reviews.csv text "a film about a river"

The table is a Parquet, CSV or TSV file. The vectors are stored next to it, and used again by the next search.
"""

import sys
from pathlib import Path

import duckdb

from elmo import Elmo
from elmo.jobs import TableJob, embed_table


def main() -> None:
    source, column, text = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    elmo = Elmo.from_pretrained()
    vectors = source.with_name(f"{source.name.split('.')[0]}-vectors.parquet")
    summary = embed_table(TableJob(source, column, vectors), elmo)  # returns at once if it is complete
    query = elmo.encode(text).sentence().tolist()
    array = f"float[{elmo.width}]"  # Parquet has lists only, which DuckDB must convert
    files = [str(file) for file in summary.files]
    rows = duckdb.sql(
        f'select array_cosine_similarity("{column}_vector"::{array}, {query}::{array}) as cosine, "{column}" '
        f'from read_parquet({files}) where len("{column}") > 0 order by cosine desc limit 10'
    ).fetchall()
    for cosine, row in rows:
        print(f"{cosine:.3f}  {row}")


if __name__ == "__main__":
    main()
