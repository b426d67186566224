"""The networks, with their settings."""
