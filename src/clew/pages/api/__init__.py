"""What every API that clew serves has: keys, errors, metrics, and its end."""
