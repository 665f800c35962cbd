#!/bin/sh
# The Python of Spark's workers; see worker_python.py.
kept=
set -f
IFS=:
for each in $PYTHONPATH; do
  case $each in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) kept=$kept:$each ;;
  esac
done
unset IFS
PYTHONPATH=${kept#:} exec "$MIST_WORKER_PYTHON" "$@"
