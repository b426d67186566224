"""Normalize the spelling of answers: case, accents, punctuation, articles. TriviaQA's rules,
extended to every script and to numbers, without dependencies.
"""

import re
import unicodedata
from collections.abc import Callable

# English only, as in TriviaQA: "die" and "la" are articles too, but also words of other answers.
ARTICLES = ("a", "an", "the")
# Not the last word: "Vitamin A" must not become "vitamin", which "Vitamin C" contains.
_ARTICLE = re.compile(rf"\b(?:{'|'.join(ARTICLES)}) (?=\S)")
# "U.S.A." is one word; with separate letters, the last would look like an article.
_ABBREVIATION = re.compile(r"\b[a-zα-ωа-я](?:\.[a-zα-ωа-я]\b)+")
# "C. S. Lewis" is also written "C.S. Lewis" and "CS Lewis".
_INITIALS = re.compile(r"(?<![^\W_])([A-Z]\.) (?=[A-Z]\.(?!\w))")
# "12,500" is one number; so is "3.5", which does not contain 5. "8.5.1945" is three.
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_DECIMAL = re.compile(r"(?<![\d.])(\d+)\.(\d+)(?!\.?\d)")
_KEPT_POINT = "\ue000"
# Letters that Unicode does not decompose into a base letter and an accent.
_PLAIN_LETTERS = {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i"}
# Scripts without spaces between words: each character can start or end one.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u309f\u3400-\u4dbf\u4e00-\u9fff"
_UNSPACED_CHARACTER = re.compile(rf"([{UNSPACED}])")


class Translation(dict[int, str]):
    """The replacement of each character, cached."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str:
        self[code] = self._rule(chr(code))
        return self[code]


def _plain_character(character: str) -> str:
    kind = unicodedata.category(character)
    if character == _KEPT_POINT:
        return "."
    if _is_accent(character) or kind == "Cf":
        return ""
    # Not with \w: the vowel signs of many scripts are not letters, but parts of words.
    if kind[0] in "PSZC":
        return " "
    return _PLAIN_LETTERS.get(character, character)


def _is_accent(character: str) -> bool:
    """Marks that are optional in a word; not those that change it, such as ハ, バ and パ."""
    return (
        "\u0300" <= character <= "\u036f"  # Latin, Greek, Cyrillic
        or "\u02b0" <= character <= "\u02ff"  # Hawaiʻi
        or ("\u0591" <= character <= "\u05c7" and unicodedata.category(character) == "Mn")  # Hebrew
        or "\u064b" <= character <= "\u0652"  # Arabic vowels
        or character in "\u0640\u0670"
    )


_WITHOUT_ACCENTS = Translation(lambda character: "" if _is_accent(character) else character)
_PLAIN = Translation(_plain_character)


def normalize_answer(text: str) -> str:
    """The text in lowercase without accents, punctuation and English articles.

    "The Café  de_Flore!" and "cafe de flore" become the same. A text that would become empty, such
    as "?", keeps its characters, in lowercase.
    """
    return drop_articles(normalize_words(text))


def normalize_words(text: str) -> str:
    """Like `normalize`, but keeps articles."""
    plain = _fold(text)
    if "." in plain:
        plain = _ABBREVIATION.sub(lambda found: found[0].replace(".", ""), plain)
        plain = _DECIMAL.sub(rf"\1{_KEPT_POINT}\2", plain)
    if "," in plain:
        plain = _GROUPED.sub("", plain)
    return " ".join(plain.translate(_PLAIN).split()) or " ".join(text.casefold().split())


def join_initials(text: str) -> str:
    """ "J. R. R. Tolkien" as "J.R.R. Tolkien"."""
    return _INITIALS.sub(r"\1", text)


def drop_articles(plain: str) -> str:
    return _ARTICLE.sub("", plain)


def _fold(text: str) -> str:
    if text.isascii():
        return text.lower()
    apart = unicodedata.normalize("NFKD", text).casefold()
    # Recomposed, so that a Korean syllable and a Japanese パ are one character.
    return unicodedata.normalize("NFKC", apart.translate(_WITHOUT_ACCENTS))


def answer_words(text: str) -> list[str]:
    """The words of the normalized text; for scripts without spaces, its characters."""
    plain = normalize_answer(text)
    return (plain if plain.isascii() else _UNSPACED_CHARACTER.sub(r" \1 ", plain)).split()
