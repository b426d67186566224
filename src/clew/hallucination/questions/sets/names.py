"""Compare names as people write them."""

import re
import unicodedata


def plain(text: str) -> str:
    """Lowercase without accents and punctuation, for comparing names."""
    letters = unicodedata.normalize("NFKD", text.replace("'", "").replace("’", ""))
    bare = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return " ".join(re.sub(r"[^\w]+", " ", bare.casefold()).split())
