"""The prompt of a question, its tokens, and where the answer ends."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from clew.errors import InputError
from clew.foreign_text import shortened

PLACEHOLDER = "{question}"
CHAT_PROMPT = "{question}"
PLAIN_PROMPT = "Answer the question concisely. Q: {question} A:"


Cut = Literal["sentence", "line", "none"]
StopReason = Literal["end", "line", "sentence", "repetition", "length"]
_SENTENCE_END = re.compile(r"""[.!?]["'”’)\]]*$""")
# A period after these does not end a sentence: initials, titles, common abbreviations.
_ABBREVIATION = re.compile(
    r"(^|[\s(\"'.])"
    r"([A-Za-z]|St|Ste|Mr|Mrs|Ms|Dr|Prof|Jr|Sr|Mt|Ft|Gen|Col|Lt|Capt|Sgt|Gov|Sen|Rep|Rev|Hon"
    r"|No|vs|etc|Inc|Ltd|Co|Corp|Bros|Ave|Blvd|Rd|ca|approx|est|fl|cf|al|Vol|Op|pp|Ph|D\.C|U\.S)\.$"
)
# A tokenizer gets at most about this many characters at once, and a piece of a long text.
_CHARACTERS_AT_ONCE = 1 << 20
_PIECE_CHARACTERS = 1 << 14
_REPEATS = 3
_MIN_REPEATED_TOKENS = 6


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A template that contains {question}, wrapped in the model's chat format if `chat`."""

    template: str
    chat: bool

    def fill(self, question: str) -> str:
        return self.template.replace(PLACEHOLDER, question)

    def length(self, question: str) -> int:
        """The characters of the filled template."""
        places = self.template.count(PLACEHOLDER)
        return len(self.template) + places * (len(question) - len(PLACEHOLDER))


def check_template(template: str) -> None:
    """Raise InputError for a template without {question}, which the model would never see, or with
    bytes that are not text, which no tokenizer takes."""
    if any("\ud800" <= letter <= "\udfff" for letter in template):
        raise InputError(
            "it is not UTF-8 text. Type it again, or save its file as UTF-8.",
            setting="prompt",
            value=template,
        )
    if PLACEHOLDER not in template:
        raise InputError(
            f"it does not contain {PLACEHOLDER}, so the model would never see the question. "
            f'Use, for example, "Q: {PLACEHOLDER} A:".',
            setting="prompt",
            value=template,
        )


def choose_prompt(
    tokenizer: Any, template: str | None, chat: bool | None, instruction: str = ""
) -> Prompt:
    """The user's template and format, or defaults for the model and the questions, which may have
    their own `instruction`."""
    has_chat = bool(getattr(tokenizer, "chat_template", None))
    if chat and not has_chat:
        raise InputError(
            "this model's tokenizer has no chat template. Use `chat=False` or a chat model.",
            setting="chat",
            value=chat,
        )
    chat = has_chat if chat is None else chat
    own = f"{CHAT_PROMPT} {instruction}".strip() if chat else PLAIN_PROMPT
    return Prompt(template=template or own, chat=chat)


class PromptTokenizer:
    """Turns questions into the tokens of their prompts, in bounded memory: a tokenizer takes
    hundreds of bytes per character."""

    def __init__(self, tokenizer: Any, prompt: Prompt, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._max_tokens = max_tokens
        self._template_is_too_long = bool(self._clearly_too_long(prompt.template))

    def tokenize(self, questions: Sequence[str]) -> Iterator[list[int] | str]:
        """For every question, the token ids of its prompt, special tokens included as the model
        expects them, or why it certainly has too many to be tokenized."""
        for some in _in_groups(questions, self._prompt.length):
            reasons = [self._reason_against(question) for question in some]
            fit = [text for text, why in zip(some, reasons, strict=True) if why is None]
            tokens = iter(self._encode([self._format(text) for text in fit]) if fit else [])
            yield from (why if why is not None else next(tokens) for why in reasons)

    def _reason_against(self, question: str) -> str | None:
        if self._template_is_too_long:
            return (
                f"the prompt alone exceeds the model's limit of {self._max_tokens:,} tokens: "
                "shorten `prompt`"
            )
        return self._clearly_too_long(question)

    def _clearly_too_long(self, text: str) -> str | None:
        """Why a text has too many tokens. Pieces of it are counted until they have twice as many
        as allowed: a cut adds about one token."""
        count = 0
        if len(text) <= _PIECE_CHARACTERS:
            return None
        for start in range(0, len(text), _PIECE_CHARACTERS):
            stop = start + _PIECE_CHARACTERS
            ids = self._tokenizer(text[start:stop], add_special_tokens=False)["input_ids"]
            count += len(ids)
            if count > 2 * self._max_tokens and stop < len(text):
                return (
                    f"it has {len(text):,} characters, and the first {stop:,} alone have "
                    f"{count:,} tokens; the model's limit is {self._max_tokens:,}: shorten it"
                )
        return None

    def _format(self, question: str) -> str:
        text = self._prompt.fill(question)
        return _in_chat_format(self._tokenizer, text) if self._prompt.chat else text

    def _encode(self, texts: list[str]) -> list[list[int]]:
        encoded = self._tokenizer(
            texts, add_special_tokens=not self._prompt.chat, return_attention_mask=False
        )
        return [list(ids) for ids in encoded["input_ids"]]


def _in_groups(texts: Sequence[str], length: Callable[[str], int]) -> Iterator[list[str]]:
    """Consecutive texts whose prompts are tokenized at once; `length` gives the characters of a
    prompt. One that is too long for that is a group of its own."""
    group: list[str] = []
    room = _CHARACTERS_AT_ONCE
    for text in texts:
        size = length(text)
        if group and size > room:
            yield group
            group, room = [], _CHARACTERS_AT_ONCE
        group.append(text)
        room -= size
    if group:
        yield group


def shared_prefix(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all prompts start with; every prompt keeps at least one of its own."""
    if len(prompts) < 2:
        return []
    # What the first and last prompt in lexicographic order share, all share.
    first, last = min(map(tuple, prompts)), max(map(tuple, prompts))
    limit = min(len(prompt) for prompt in prompts) - 1
    length = 0
    while length < limit and first[length] == last[length]:
        length += 1
    return list(first[:length])


def _in_chat_format(tokenizer: Any, text: str) -> str:
    """The text in the model's chat template, which is a program by the model's author. Raises
    InputError if it fails, or its result is too long to be tokenized."""
    from jinja2 import TemplateError

    messages = [{"role": "user", "content": text}]
    try:
        whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise _unusable_template(shortened(str(error))) from error
    if len(whole) > len(text) + _CHARACTERS_AT_ONCE:
        raise _unusable_template(f"it makes {len(whole):,} characters of {len(text):,}")
    return str(whole)


def _unusable_template(reason: str) -> InputError:
    return InputError(
        f"the model's chat template cannot be used ({reason}). Use `chat=False`, or correct "
        "chat_template in the model's folder."
    )


class AnswerEnd:
    """Decides, one token at a time, whether an answer is complete."""

    def __init__(self, tokenizer: Any, cut: Cut, end_tokens: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._cut = cut
        self.end_tokens = list(end_tokens)
        self._pieces: dict[int, str] = {}
        self._anchor = tokenizer.encode("a", add_special_tokens=False)
        self._anchor_text = tokenizer.decode(self._anchor)

    def before(self, answer: list[int], token: int) -> StopReason | None:
        """Why the answer is complete *without* `token`, the model's next token."""
        if token in self.end_tokens:
            return "end"
        if self._cut == "none" or not answer:
            return None
        piece = self._piece(token)
        if not piece[:1].isspace() and "\n" not in piece:
            return None
        text = self._tokenizer.decode(answer, skip_special_tokens=True)
        if "\n" in piece and text.strip():
            return "line"
        if self._cut == "sentence" and ends_sentence(text):
            return "sentence"
        return None

    def repeats(self, answer: list[int]) -> int | None:
        """How many tokens to keep of an answer that repeats itself, or None if it does not."""
        keep = None if self._cut == "none" else repetition_start(answer)
        return None if keep is None or self._is_number(answer[keep:]) else keep

    def cut(self, tokens: Sequence[int]) -> tuple[list[int], StopReason]:
        """Cut finished text where a greedy answer would have stopped; returns the tokens and the
        stop reason."""
        answer: list[int] = []
        for token in tokens:
            reason = self.before(answer, token)
            if reason is not None:
                return answer, reason
            answer.append(token)
            keep = self.repeats(answer)
            if keep is not None:
                return answer[:keep], "repetition"
        return answer, "length"

    def _is_number(self, tokens: list[int]) -> bool:
        """Digits may repeat: many tokenizers split ",000,000,000" into twelve tokens."""
        text = self._tokenizer.decode(tokens)
        return any(map(str.isdigit, text)) and not any(map(str.isalpha, text))

    def _piece(self, token: int) -> str:
        """The text that a token adds in the middle of a sentence, leading space included."""
        if token not in self._pieces:
            text = self._tokenizer.decode([*self._anchor, token])
            self._pieces[token] = text[len(self._anchor_text) :]
        return self._pieces[token]


def ends_sentence(text: str) -> bool:
    """Whether the text closes a sentence: "in Paris." does, "in St." and "J. R." do not."""
    text = text.rstrip()
    return bool(_SENTENCE_END.search(text)) and not _ABBREVIATION.search(text)


def repetition_start(answer: Sequence[int]) -> int | None:
    """Where to cut an answer whose last tokens repeat the same text three times in a row. Returns
    how many tokens to keep (up to the first occurrence), or None.
    """
    if answer[-1:] and answer[:-1].count(answer[-1]) < _REPEATS - 1:
        return None
    for size in range(1, len(answer) // _REPEATS + 1):
        times = max(_REPEATS, -(-_MIN_REPEATED_TOKENS // size))
        if len(answer) < size * times:
            continue
        unit = answer[-size:]
        if all(answer[-size * (i + 1) : len(answer) - size * i] == unit for i in range(times)):
            return len(answer) - size * (times - 1)
    return None
