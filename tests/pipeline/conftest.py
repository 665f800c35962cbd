"""One Spark for all tests of the pipeline: starting it takes longer than most of them."""

from collections.abc import Iterator

import pytest

from mist.pipeline.session import end_session, make_session

QUICK = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "4",
    "spark.default.parallelism": "2",
}


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[object]:
    """A `pyspark.sql.SparkSession` on two cores, the `mist` data source known to it."""
    spark = make_session("local[2]", QUICK, name="mist tests")
    yield spark
    end_session(spark)
