"""The page of `clew serve`: ask, look into an answer, browse stored answers and comparisons."""
