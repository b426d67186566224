"""The HTTP service: OpenAI's API with a risk in every answer."""
