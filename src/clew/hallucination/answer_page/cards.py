"""The answer in words: question, answer, right answers; and how sure the model was of it."""

import numpy as np

from clew.hallucination.answer_page.answer import ShownAnswer
from clew.hallucination.answer_page.tokens import visible_text
from clew.pages.markup import Html, tag

_MOST_ACCEPTED = 8
_HIGH_ENTROPY = 4.0  # nats; the line of a token with more is full


def kind_class(answer: ShownAnswer) -> str:
    return {"right": "right", "made up": "made-up"}.get(answer.kind or "", "unknown")


def draw_card(answer: ShownAnswer) -> Html:
    facts = [
        ("question", answer.question),
        ("answer", answer.answer or "(empty)"),
        ("right answers", accepted_text(answer)),
    ]
    return tag(
        "article",
        tag("p", _chip(answer), f" {describe_source(answer)}", class_="quiet"),
        tag("dl", [tag("div", tag("dt", name), tag("dd", words)) for name, words in facts]),
        class_=f"card {kind_class(answer)}",
    )


def accepted_text(answer: ShownAnswer) -> str:
    more = len(answer.accepted) - _MOST_ACCEPTED
    words = "; ".join(answer.accepted[:_MOST_ACCEPTED]) or "(not known)"
    return f"{words} and {more:,} more" if more > 0 else words


def describe_source(answer: ShownAnswer) -> str:
    """Number, question id and category, in one line."""
    parts = [f"answer {answer.number}", answer.question_id]
    parts += [answer.category] if answer.category else []
    parts += [f"stopped by {answer.stop_reason}"] if answer.stop_reason else []
    return " · ".join(parts)


def describe_sureness(answer: ShownAnswer) -> str:
    """The whole answer in one sentence; empty when its probabilities are not stored."""
    if answer.logprobs is None or answer.perplexity is None:
        return ""
    least = int(np.argmin(answer.logprobs))
    word = visible_text(answer.answer_texts[least])
    chance = percent_text(float(np.exp(answer.logprobs[least])))
    return f"Perplexity {answer.perplexity:.2f}; least sure of “{word}” ({chance})."


def percent_text(share: float) -> str:
    if 0 < share < 0.01:
        return "<1%"
    return f"{min(share, 0.99 if share < 1 else 1.0):.0%}"


def _chip(answer: ShownAnswer) -> Html:
    words = answer.kind or "no label"
    score = "" if answer.score is None else f" (score {answer.score:.2f})"
    return tag("b", words + score, class_="chip")


def draw_sureness(answer: ShownAnswer) -> Html:
    if answer.logprobs is None:
        missing = tag("p", "The probabilities of the tokens are not stored.", class_="quiet")
        return tag("div", missing)
    entropies = answer.entropies if answer.entropies is not None else np.zeros(len(answer.logprobs))
    chances = np.exp(answer.logprobs)
    tokens = zip(answer.answer_texts, chances.tolist(), entropies.tolist(), strict=True)
    chips = tag(
        "div", [_token(place, *token) for place, token in enumerate(tokens)], class_="tokens"
    )
    summary = tag("p", describe_sureness(answer), class_="summary")
    return tag("div", summary, chips, class_=kind_class(answer))


def _token(place: int, text: str, chance: float, entropy: float) -> Html:
    # A token that goes on with a word stands close to the one before it.
    joined = " joined" if place and text[:1].isalnum() else ""
    height = min(1.0, entropy / _HIGH_ENTROPY)
    tints = {"doubt": f"{1 - chance:.2f}", "chance": f"{chance:.3f}", "entropy": f"{height:.3f}"}
    return tag(
        "span",
        tag("span", visible_text(text), class_="text"),
        tag("i", class_="bar"),
        tag("i", class_="line"),
        tag("small", percent_text(chance)),
        class_=f"token{joined}",
        style=";".join(f"--{name}:{value}" for name, value in tints.items()),
        title=f"probability {chance:.4f}, log-probability "
        f"{np.log(max(chance, 1e-30)):.2f}, entropy {entropy:.2f} nats",
    )
