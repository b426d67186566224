"""Open a store of traces in Polars: the shards are plain Arrow files.

Requires: pip install polars
Usage: python examples/polars_store.py traces_data
"""

import sys

import polars as pl

store = sys.argv[1] if len(sys.argv) > 1 else "traces_data"
traces = pl.scan_ipc(f"{store}/batch_*.arrow")  # lazy: only the columns below are read

least_confident = (
    traces.select(
        "question",
        "answer",
        "stop_reason",
        logprob=pl.col("token_logprobs").list.mean(),
        tokens=pl.col("token_logprobs").list.len(),
    )
    .sort("logprob")
    .head(10)
    .collect()
)
print(least_confident)
print(traces.group_by("stop_reason").agg(pl.len()).collect())
