"""The one engine for every pass of a language model: load, prompt, batch, decode, record."""
