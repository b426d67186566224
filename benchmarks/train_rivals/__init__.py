"""The plain way to train the same networks on the same data."""
