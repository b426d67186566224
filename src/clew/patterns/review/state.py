"""The review as the page is told of it."""

from typing import Any

from clew.patterns.review.queue import Question
from clew.patterns.review.session import Review
from clew.patterns.review.wording import safe_text, tell_new_classes
from clew.wording import whole_percent


def describe_state(review: Review) -> dict[str, Any]:
    """Everything that the page shows. Photos are named by their number in the queue alone."""
    question = review.current
    total, counts = len(review.queue.questions), review.counts()
    return {
        "place": review.place,
        "total": total,
        "question": question and _describe(question, review),
        "following": review.place + 1 if review.place + 1 < total else None,
        "counts": {name: counts[name] for name in ("approved", "corrected", "skipped")},
        "can_undo": review.place > 0,
        "new_classes": tell_new_classes(review.new_classes()),
        "moves": review.moves,
        "folder": safe_text(review.folder),
        "command": safe_text(review.next_command),
        "again": safe_text(f"{review.again_command} --web"),
    }


def _describe(question: Question, review: Review) -> dict[str, Any]:
    keys = {choice.label: choice.key for choice in review.choices()}
    guesses = [
        {
            "label": guess.label,
            "key": keys.get(guess.label, ""),
            "probability": guess.probability,
            "text": whole_percent(guess.probability),
        }
        for guess in question.guesses
    ]
    return {"name": safe_text(question.name), "guesses": guesses, "keys": keys}
