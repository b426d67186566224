"""How a run uses its machine: what is there, what was asked for, what is fastest."""
