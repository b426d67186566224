"""Which questions can be captured: their prompts as tokens, and why others are skipped."""

from dataclasses import dataclass
from typing import Any

from clew.base.errors import InputError
from clew.base.texts import bytes_text
from clew.hallucination.capture.dialogue import Prompt, PromptTokenizer
from clew.hallucination.capture.plan import MAX_FULL_TRACE_BYTES, full_bytes
from clew.hallucination.questions import Question, QuestionSet
from clew.hallucination.traces.schema import TraceShape


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a trace: the model's maximum tokens including new ones; with `full_shape`, the
    bytes of a full trace."""

    new_tokens: int
    evaluation_tokens: int
    tokens: int
    full_shape: TraceShape | None

    def reason_against(self, prompt_tokens: int, question: Question) -> str | None:
        """Why a question whose prompt has this many tokens cannot be captured."""
        tokens = prompt_tokens + self.new_tokens
        if tokens + self.evaluation_tokens > self.tokens:
            long = "question" if question.context is None else "question or its context"
            evaluation = self.evaluation_tokens
            more = f", with {evaluation} tokens of self-evaluation," if evaluation else ""
            return (
                f"{prompt_tokens} prompt tokens and {self.new_tokens} new tokens{more} exceed the "
                f"model's limit of {self.tokens}: shorten the {long}, or lower "
                "`max_new_tokens`"
            )
        size = full_bytes(self.full_shape, tokens) if self.full_shape else 0
        if size > MAX_FULL_TRACE_BYTES:
            return (
                f"its full trace of {tokens} tokens would take {bytes_text(size)}; use "
                f'`keep="compact"` for it'
            )
        return None


@dataclass(frozen=True, kw_only=True)
class AskedQuestions:
    """The questions that can be captured, their tokens, and the skipped ones with the reason."""

    questions: list[Question]
    prompts: list[list[int]]
    skipped: list[dict[str, str]]


def ask_questions(
    questions: QuestionSet, prompt: Prompt, tokenizer: Any, limits: Limits
) -> AskedQuestions:
    """Tokenize all questions, and skip those that are too long and malformed records."""
    texts = [question.question for question in questions.questions]
    skipped = [{"where": s.where, "reason": s.reason} for s in questions.skipped]
    asked = AskedQuestions(questions=[], prompts=[], skipped=skipped)
    contexts = [question.context for question in questions.questions]
    prompts = PromptTokenizer(tokenizer, prompt, limits.tokens).tokenize(texts, contexts)
    for question, tokens in zip(questions.questions, prompts, strict=True):
        reason: str | None
        if isinstance(tokens, str):
            reason = tokens
        elif (reason := limits.reason_against(len(tokens), question)) is None:
            asked.questions.append(question)
            asked.prompts.append(tokens)
            continue
        skipped.append({"where": f"question {question.id:.80}", "reason": reason})
    if not asked.questions:
        first = skipped[len(questions.skipped)]
        raise InputError(
            f"none of the {len(texts)} questions of {questions.name} can be captured. The "
            f"first, {first['where']}: {first['reason']}."
        )
    return asked
