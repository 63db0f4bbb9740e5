"""Add a column of vectors to a table, with Spark.

    pip install 'pyelmo[parquet,spark]'
    python examples/spark/encode.py reviews.csv text vectors

The table is a CSV file, or a Parquet file or folder. The result is a folder of Parquet files with all columns and a new
one, text_vector. With ``spark-submit --master spark://host:7077``, it runs on a cluster.
"""

import os
import sys

from pyspark.sql import SparkSession

from elmo.integrations import encode_batches


def main() -> None:
    source, column, out = sys.argv[1:4]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("elmo").getOrCreate()
    is_csv = source.endswith(".csv")
    table = spark.read.csv(source, header=True, multiLine=True, escape='"') if is_csv else spark.read.parquet(source)
    encode = encode_batches("en", column)
    table.mapInArrow(encode, encode.schema(table.schema)).write.parquet(out)
    spark.stop()


if __name__ == "__main__":
    main()
