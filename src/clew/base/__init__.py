"""What every folder may use: errors, settings, texts, progress, cores and memory."""
