"""The test photos worth a look: the surest mistakes, and some of each class that were right."""

from collections.abc import Sequence

from clew.pages.markup import Html, tag
from clew.pages.results import as_number
from clew.pages.wording import counted
from clew.patterns.report.headline import percents
from clew.patterns.report.pictures import Looking, Shown, Wanted, show_photos
from clew.patterns.report.run import Answer, Run

MOST_MISTAKES, MOST_RIGHT = 60, 48
_RIGHT_OF_EACH = 2


def draw_mistakes(run: Run, looking: Looking) -> Html:
    """The most sure first: they are the ones that nothing would have warned of."""
    mistakes = run.mistakes
    shown = mistakes[:MOST_MISTAKES]
    wanted = [_want(run, one, (one.predicted, one.label)) for one in shown]
    cards = [
        _card(answer, picture, (f'speaks for "{answer.predicted}"', f'speaks for "{answer.label}"'))
        for answer, picture in zip(shown, show_photos(wanted, looking), strict=True)
    ]
    return tag("div", _tell_rest(len(shown), len(mistakes)), tag("div", cards, class_="photos"))


def _tell_rest(shown: int, mistakes: int) -> Html | None:
    if shown == mistakes:
        return None
    words = (
        f"{shown} of {counted(mistakes, 'mistake')} are shown, the surest first; predictions.csv "
        f"has all."
    )
    return tag("p", words, class_="empty")


def draw_right(run: Run, looking: Looking) -> Html:
    chosen = choose_right(run)
    wanted = [_want(run, one, (one.predicted,)) for one in chosen]
    cards = [
        _card(answer, picture, ("what it looked at",))
        for answer, picture in zip(chosen, show_photos(wanted, looking), strict=True)
    ]
    classes = len({answer.label for answer in chosen})
    missing = len({answer.label for answer in run.answers if answer.is_right}) - classes
    told = (
        f"The {classes} classes with the lowest share of recognised photos are shown; "
        f"{counted(missing, 'class', 'classes')} more would make the page slow to open."
    )
    cut = tag("p", told, class_="empty") if missing > 0 else None
    return tag("div", cut, tag("div", cards, class_="photos small"))


def choose_right(run: Run) -> list[Answer]:
    """Of each class one that is typical (its sureness is the middle one) and, where there is room,
    the one that was least sure. With too many classes, those that are hardest."""
    by_class: dict[str, list[Answer]] = {name: [] for name in run.classes}
    for answer in run.answers:
        if answer.is_right and answer.label in by_class:
            by_class[answer.label].append(answer)
    recall = {row["class"]: as_number(row.get("recall")) or 0.0 for row in run.per_class}
    known = sorted((name for name in by_class if by_class[name]), key=lambda name: recall[name])
    kept = set(known[:MOST_RIGHT])
    each = _RIGHT_OF_EACH if _RIGHT_OF_EACH * len(kept) <= MOST_RIGHT else 1
    return [one for name in run.classes if name in kept for one in _typical(by_class[name])[:each]]


def _typical(answers: list[Answer]) -> list[Answer]:
    ordered = sorted(answers, key=lambda answer: (-answer.probability, answer.name))
    middle, last = ordered[len(ordered) // 2], ordered[-1]
    return [middle] if middle is last else [middle, last]


def _want(run: Run, answer: Answer, classes: Sequence[str]) -> Wanted:
    folder = run.data_folder or run.folder
    return Wanted(path=folder / answer.name, classes=tuple(dict.fromkeys(classes)))


def _card(answer: Answer, picture: Shown, captions: Sequence[str]) -> Html:
    pictures = [_figure(picture.photo, "photo", f"photo {answer.name}")] if picture.photo else []
    pictures += [
        _figure(heat, caption, f"{answer.name}: {caption}")
        for heat, caption in zip(picture.heats, captions, strict=False)
    ]
    fault = tag("p", picture.fault, class_="empty") if picture.fault else None
    return tag(
        "article",
        tag("div", pictures, class_="strip") if pictures else fault,
        tag("div", _verdict(answer), class_="verdict"),
        tag("div", tag("bdi", answer.name), class_="file", title=answer.name),
        class_=f"photo-card {'right' if answer.is_right else 'wrong'}",
    )


def _figure(address: str, caption: str, words: str) -> Html:
    image = tag("img", src=address, alt=words, loading="lazy", decoding="async")
    return tag("figure", image, tag("figcaption", caption))


def _verdict(answer: Answer) -> list[Html]:
    said = tag("span", "said ", tag("b", tag("bdi", answer.predicted)))
    sure = tag("span", percents(answer.probability), class_="sure")
    if answer.is_right:
        return [tag("span", tag("b", tag("bdi", answer.label))), sure]
    truth = tag("span", "is ", tag("b", tag("bdi", answer.label)), class_="truth")
    second = f"{percents(answer.second_probability)} for " if answer.second else ""
    beside = tag("span", second, tag("bdi", answer.second), class_="muted") if second else None
    return [truth, said, sure, *([beside] if beside else [])]
