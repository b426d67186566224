"""How a run uses its machine: what is available, what was requested, what is fastest."""
