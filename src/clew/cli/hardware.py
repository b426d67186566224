"""The flags that override the hardware plan, under one heading in all commands that train."""

HARDWARE = {
    "Hardware (what is not given is measured)": (
        *("device", "amp", "compile", "cuda_graph", "channels_last", "num_workers"),
        *("batch_size", "grad_accum", "gradient_checkpointing", "max_cache_batches"),
    )
}
