"""Photos decoded once: squares of one size in Arrow shards, and batches from RAM, disk or GPU."""
