"""Questions, conversations and given answers as token ids, and where an answer ends."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from clew.base.errors import InputError
from clew.base.texts import shortened
from clew.storage.reading import hash_text

PLACEHOLDER = "{question}"
CONTEXT = "{context}"
CHAT_TEMPLATE = "chat_template_sha256"
CHAT_PROMPT = "{question}"
# The instructions for questions whose accepted answers are a few words, or sentences.
SHORT_ANSWERS = "Answer only, without a sentence."
SENTENCES = "Answer in one or two sentences."
PLAIN_PROMPT = "Answer the question concisely. Q: {question} A:"
# Before the prompt of a question that has a context.
CONTEXT_LEAD = "{context}\n\nUse only the text above to answer. "


Cut = Literal["sentence", "line", "none"]
Asked = tuple[str, str | None]  # a question and its context
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
_PLACEHOLDERS = re.compile(r"\{(?:question|context)\}")
# Tokens that are decoded at once to find their ends, and those before them.
_WINDOW, _OVERLAP = 32, 8
_REPEATS = 3
_MIN_REPEATED_TOKENS = 6
_PROBE = "answer"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A template that contains {question}, wrapped in the model's chat format if `chat`.

    `context_template` also contains {context} and is used for questions that have one; without it,
    the context comes first, then the template. `chat_template_sha256` is the hash of the chat
    format; stores of earlier versions of clew do not have it.
    """

    template: str
    chat: bool
    context_template: str | None = None
    chat_template_sha256: str | None = None

    def fill(self, question: str, context: str | None = None) -> str:
        if context is None:
            return self.template.replace(PLACEHOLDER, question)
        texts = {PLACEHOLDER: question, CONTEXT: context}
        return _PLACEHOLDERS.sub(lambda found: texts[found[0]], self._with_context)

    @property
    def _with_context(self) -> str:
        return self.context_template or f"{CONTEXT_LEAD}{self.template}"

    def describe(self) -> dict[str, Any]:
        """As manifests record it; without contexts, as they always have."""
        described: dict[str, Any] = {"template": self.template, "chat": self.chat}
        for name in ("context_template", CHAT_TEMPLATE):
            if (value := getattr(self, name)) is not None:
                described[name] = value
        return described

    def length(self, question: str, context: str | None = None) -> int:
        """The characters of the filled template."""
        template = self.template if context is None else self._with_context
        places = template.count(PLACEHOLDER), template.count(CONTEXT) if context else 0
        added = len(question) - len(PLACEHOLDER), len(context or "") - len(CONTEXT)
        return len(template) + places[0] * added[0] + places[1] * added[1]


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
    tokenizer: Any,
    template: str | None,
    chat: bool | None,
    instruction: str = "",
    *,
    with_context: bool = False,
) -> Prompt:
    """The user's template and format, or defaults for the model and the questions, which may have
    their own `instruction` and, `with_context`, a context. A user's template without {context}
    has no context template: the contexts are not used."""
    has_chat = bool(getattr(tokenizer, "chat_template", None))
    if chat and not has_chat:
        raise InputError(
            "this model's tokenizer has no chat template. Use `chat=False` or a chat model.",
            setting="chat",
            value=chat,
        )
    chat = has_chat if chat is None else chat
    own = f"{CHAT_PROMPT} {instruction}".strip() if chat else PLAIN_PROMPT
    prompt = with_chat_template(Prompt(template=own, chat=chat), tokenizer)
    if template is None:
        return replace(prompt, context_template=f"{CONTEXT_LEAD}{own}" if with_context else None)
    if CONTEXT not in template:
        return replace(prompt, template=template)
    if not with_context:
        raise InputError(
            f"it contains {CONTEXT}, but no question has a context. Add a column named context to "
            "the questions, or omit it.",
            setting="prompt",
            value=template,
        )
    return replace(prompt, context_template=template)


def with_chat_template(prompt: Prompt, tokenizer: Any) -> Prompt:
    """The prompt as this tokenizer fills it: with the hash of its chat template, if it uses that.
    Some tokenizers have several, by name."""
    template = getattr(tokenizer, "chat_template", None) if prompt.chat else None
    sha256 = hash_text(json.dumps(template, sort_keys=True)) if template else None
    return replace(prompt, chat_template_sha256=sha256)


def _in_groups(
    asked: Sequence[Asked], length: Callable[[str, str | None], int]
) -> Iterator[list[Asked]]:
    """Consecutive questions whose prompts are tokenized at once; `length` gives the characters of
    a prompt. One that is too long for that is a group of its own."""
    group: list[Asked] = []
    room = _CHARACTERS_AT_ONCE
    for question, context in asked:
        size = length(question, context)
        if group and size > room:
            yield group
            group, room = [], _CHARACTERS_AT_ONCE
        group.append((question, context))
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


def format_chat(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    generate: bool = True,
) -> str:
    """A conversation in the model's chat template, which is a program by the model's author, ready
    for the next answer if `generate`; it shows the model the `tools` that it may call. Raises
    InputError if it fails, or its result is too long to be tokenized."""
    from jinja2 import TemplateError

    given = sum(len(str(one)) for one in (*messages, *(tools or ())))
    try:
        whole = tokenizer.apply_chat_template(
            list(messages),
            tools=list(tools) if tools else None,
            add_generation_prompt=generate,
            tokenize=False,
        )
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise _unusable_template(shortened(str(error))) from error
    if len(whole) > given + _CHARACTERS_AT_ONCE:
        raise _unusable_template(f"it makes {len(whole):,} characters of {given:,}")
    return str(whole)


def _unusable_template(reason: str) -> InputError:
    return InputError(
        f"the model's chat template cannot be used ({reason}). Use `chat=False`, or correct "
        "chat_template in the model's folder."
    )


class Pieces:
    """The text that tokens add to a text, kept per token."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._anchor = tokenizer.encode("a", add_special_tokens=False)
        self._anchor_text = tokenizer.decode(self._anchor)
        self._known: dict[int, str] = {}

    def whole(self, tokens: Sequence[int]) -> str:
        """The text of a whole answer."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def added(self, tokens: Sequence[int]) -> str:
        """What tokens add in the middle of a text, leading space included."""
        if len(tokens) > 1:
            return self._decode(tokens)
        if tokens[0] not in self._known:
            self._known[tokens[0]] = self._decode(tokens)
        return self._known[tokens[0]]

    def _decode(self, tokens: Sequence[int]) -> str:
        text = self._tokenizer.decode([*self._anchor, *tokens], skip_special_tokens=True)
        return str(text[len(self._anchor_text) :])


class AnswerEnd:
    """Decides, one token at a time, whether an answer is complete."""

    def __init__(self, tokenizer: Any, cut: Cut, end_tokens: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._cut = cut
        self.end_tokens = list(end_tokens)
        self._pieces = Pieces(tokenizer)

    def before(self, answer: list[int], token: int) -> StopReason | None:
        """Why the answer is complete *without* `token`, the model's next token."""
        if token in self.end_tokens:
            return "end"
        if self._cut == "none" or not answer:
            return None
        piece = self._pieces.added([token])
        if not piece[:1].isspace() and "\n" not in piece:
            return None
        text = self._pieces.whole(answer)
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


def find_token_ends(
    tokenizer: Any, answer: Sequence[int], *, clean_up: bool | None = None
) -> list[int]:
    """Where each token of an answer ends in its stripped text, in characters. A character that
    spans several tokens ends with the last of them. `clean_up=False`: the text was not decoded, and
    has the spaces before punctuation that some tokenizers remove."""

    def decode(parts: list[Sequence[int]]) -> list[str]:
        return tokenizer.batch_decode(
            parts, skip_special_tokens=True, clean_up_tokenization_spaces=clean_up
        )

    [whole] = decode([answer])
    before, most, ends, last = len(whole) - len(whole.lstrip()), len(whole.strip()), [], 0
    # Behind a few tokens, a window is decoded as behind all of them.
    for start in range(0, len(answer), _WINDOW):
        first, stop = max(0, start - _OVERLAP), min(start + _WINDOW, len(answer))
        # An unfinished character is decoded as a replacement character.
        texts = decode([answer[first:end] for end in range(start, stop + 1)])
        lengths = [len(text.rstrip("\ufffd")) for text in texts]
        behind = last - lengths[0]
        for length in lengths[1:]:
            last = max(last, behind + length)
            ends.append(min(max(last - before, 0), most))
    return [*ends[:-1], most] if ends else []


def tokenize(tokenizer: Any, texts: list[str], *, special: bool = False) -> list[list[int]]:
    """The token ids of texts, with the special tokens that the model expects if `special`."""
    if not texts:
        return []
    encoded = tokenizer(texts, add_special_tokens=special, return_attention_mask=False)
    return [list(ids) for ids in encoded["input_ids"]]


class PromptTooLongError(InputError):
    """A prompt has more tokens than the model takes."""


class Encoder:
    """Turns texts into the token ids that a model with this prompt reads and generates;
    `max_tokens` is the model's limit. In bounded memory: a tokenizer takes hundreds of bytes per
    character."""

    def __init__(self, tokenizer: Any, prompt: Prompt, max_tokens: int) -> None:
        self.tokenizer, self.prompt, self.max_tokens = tokenizer, prompt, max_tokens
        templates = prompt.template, prompt.context_template or ""
        self._template_is_too_long = any(map(self._find_excess, templates))

    def encode(self, question: str, context: str | None = None) -> list[int]:
        """The prompt of a question. Raises InputError if it is too long."""
        [tokens] = self.encode_prompts([question], [context])
        if isinstance(tokens, str):
            raise PromptTooLongError(f"the question cannot be asked: {tokens}.")
        return tokens

    def encode_prompts(
        self, questions: Sequence[str], contexts: Sequence[str | None]
    ) -> Iterator[list[int] | str]:
        """The prompts of questions; the reason instead of one that is too long."""
        for tokens in self.tokenize(questions, contexts):
            if isinstance(tokens, list) and len(tokens) >= self.max_tokens:
                yield (
                    f"its prompt has {len(tokens):,} tokens, but the model's limit for prompt and "
                    f"answer is {self.max_tokens:,}: shorten it"
                )
            else:
                yield tokens

    def tokenize(
        self, questions: Sequence[str], contexts: Sequence[str | None] | None = None
    ) -> Iterator[list[int] | str]:
        """For every question, the token ids of its prompt, special tokens included as the model
        expects them, or why it certainly has too many to be tokenized. `contexts` are the texts to
        answer from, one per question; None where there is none."""
        asked = list(zip(questions, contexts or [None] * len(questions), strict=True))
        for some in _in_groups(asked, self.prompt.length):
            reasons = [self._reason_against(*one) for one in some]
            fit = [one for one, why in zip(some, reasons, strict=True) if why is None]
            texts = [self._format(*one) for one in fit]
            tokens = iter(self._tokenize(texts, special=not self.prompt.chat))
            yield from (why if why is not None else next(tokens) for why in reasons)

    def encode_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """A conversation, ready for the next answer, which may call `tools`. A model without a chat
        template gets a single user message in the detector's prompt. Raises InputError for a
        conversation that it cannot read, or that is too long."""
        if getattr(self.tokenizer, "chat_template", None):
            whole = format_chat(self.tokenizer, messages, tools=tools)
            self._refuse_excess(whole, "the conversation")
            [tokens] = self._tokenize([whole])
            if len(tokens) >= self.max_tokens:
                raise PromptTooLongError(
                    f"the messages have {len(tokens):,} tokens, but the model's limit for prompt "
                    f"and answer is {self.max_tokens:,}: shorten them."
                )
            return tokens
        if len(messages) != 1 or messages[0].get("role") != "user":
            raise InputError(
                "this model has no chat template: send one message with the role user. A system "
                "message or earlier turns require a chat model."
            )
        return self.encode(str(messages[0].get("content", "")))

    def encode_text(self, text: str) -> list[int]:
        """A text as it is, with the special tokens that the model expects. Raises InputError if it
        is far too long."""
        self._refuse_excess(text, "the prompt")
        return list(self.tokenizer.encode(text))

    def encode_answers(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of answers, as they follow the prompt: with the space that the model puts
        before them, without an end token. Of one that is far too long, only a beginning, which
        alone is too long."""
        before, gap = self.border
        excess = [self._find_excess(text) for text in texts]
        cut = [
            t if found is None else t[: found[0]] for t, found in zip(texts, excess, strict=True)
        ]
        alone = self._tokenize([f"{gap}{text}" for text in cut])
        if not before:
            return alone
        [first], whole = self._tokenize([before]), [f"{before}{gap}{text}" for text in cut]
        return [
            # A tokenizer may merge the answer's start with the prompt's end; generation cannot.
            joined[len(first) :] if joined[: len(first)] == first else own
            for joined, own in zip(self._tokenize(whole), alone, strict=True)
        ]

    def _find_excess(self, text: str) -> tuple[int, str] | None:
        """How many of its first characters alone have far too many tokens, and that in words; None
        for a text that may be short enough. Not all of it is tokenized: pieces are counted until
        they have twice as many tokens as allowed; a cut adds about one."""
        count, most = 0, self.max_tokens
        if len(text) <= _PIECE_CHARACTERS:
            return None
        for start in range(0, len(text), _PIECE_CHARACTERS):
            stop = start + _PIECE_CHARACTERS
            count += len(self._tokenize([text[start:stop]])[0])
            if count > 2 * most and stop < len(text):
                return stop, (
                    f"has {len(text):,} characters, and the first {stop:,} alone have {count:,} "
                    f"tokens; the model's limit is {most:,}: shorten it"
                )
        return None

    def _reason_against(self, question: str, context: str | None) -> str | None:
        """Why a prompt has too many tokens."""
        if self._template_is_too_long:
            return (
                f"the prompt alone exceeds the model's limit of {self.max_tokens:,} tokens: "
                "shorten `prompt`"
            )
        if found := self._find_excess(question):
            return f"it {found[1]}"
        found = self._find_excess(context or "")
        return f"its context {found[1]}" if found else None

    def _refuse_excess(self, text: str, what: str) -> None:
        if found := self._find_excess(text):
            raise PromptTooLongError(f"{what} {found[1]}.")

    def _format(self, question: str, context: str | None) -> str:
        text = self.prompt.fill(question, context)
        if not self.prompt.chat:
            return text
        return format_chat(self.tokenizer, [{"role": "user", "content": text}])

    @cached_property
    def border(self) -> tuple[str, str]:
        """The text that every prompt ends with, and the space between it and an answer."""
        if not self.prompt.chat:
            end = self.prompt.template.rpartition(PLACEHOLDER)[2]
            return end, "" if end[-1:].isspace() else " "
        asked = [{"role": "user", "content": _PROBE}]
        ready = format_chat(self.tokenizer, asked)
        whole = format_chat(
            self.tokenizer, [*asked, {"role": "assistant", "content": _PROBE}], generate=False
        )
        gap = ""
        if whole.startswith(ready):
            gap = whole[len(ready) :].partition(_PROBE)[0]
        return ready.rpartition(_PROBE)[2], gap if gap.isspace() else ""

    def _tokenize(self, texts: list[str], *, special: bool = False) -> list[list[int]]:
        return tokenize(self.tokenizer, texts, special=special)
