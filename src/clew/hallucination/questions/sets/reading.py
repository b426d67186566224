"""Short invented texts with a question that is to be answered from them. Some texts do not have the
answer, and some contradict what is known: knowledge does not help."""

from collections.abc import Callable, Iterator, Sequence

from clew.hallucination.questions.records import Question
from clew.hallucination.questions.sets.making import (
    BuiltInSet,
    Entry,
    choose,
    draw,
    entry,
    listed,
    number_answers,
    word_questions,
)

_PER_CATEGORY = 180
_NAMES = listed(
    """
Alice; Bruno; Clara; Dennis; Elena; Frank; Gloria; Hugo; Irene; Jonas; Karen; Leo; Martha; Nina;
Oscar; Paula; Quentin; Rosa; Simon; Tessa; Ursula; Victor; Wanda; Xavier
"""
)
_SURNAMES = listed(
    """
Abbott; Barlow; Castro; Dalton; Ellis; Fischer; Graves; Hobbs; Ingram; Jansen; Keller; Lambert;
Mercer; Norris; Osborne; Palmer; Quinn; Rossi; Sutton; Turner
"""
)
_TOWNS = listed(
    """
Ashford; Brookhaven; Cedarville; Dunmore; Eastwick; Fairhaven; Glenwood; Hartley; Inverness;
Kingsbury; Lakeside; Millbrook; Northfield; Oakdale; Pinehurst; Redmond; Stonebridge; Thornton;
Westerly; Winslow
"""
)
_JOBS = listed(
    """
baker; carpenter; cook; dentist; farmer; journalist; lawyer; mechanic; nurse; pilot; plumber;
postman; sailor; tailor; teacher; waiter; librarian; butcher
"""
)
_PETS = listed(
    "a cat; a dog; a parrot; a rabbit; a turtle; a goldfish; a hamster; a canary; a pony; a snake"
)
_HOBBIES = listed(
    """
chess; sailing; pottery; fishing; photography; knitting; hiking; swimming; painting; singing;
cycling; dancing; archery; gardening; tennis; skating
"""
)
_THINGS = listed("key; letter; ring; coin; map; book; lamp; cup; watch; ticket; ball; hat")
_SPOTS = listed(
    """
drawer; basket; cupboard; garage; cellar; attic; kitchen; suitcase; garden; bathroom; car; desk
"""
)
_DAYS = listed("Monday; Tuesday; Wednesday; Thursday; Friday; Saturday; Sunday")
_MONTHS = listed("March; April; May; June; July; September; October; November")
_FAIRS = listed(
    "book fair; flower show; film night; chess tournament; spring concert; craft market"
)
_PLACES = listed("town hall; old library; school gym; city park; railway museum; harbor hall")
_KINDS = listed("museum; bakery; theater; brewery; school; hotel; orchestra; newspaper")
# What is known of the world, and never the answer here.
_CAPITALS = {
    **{"France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima"},
    **{"Spain": "Madrid", "Germany": "Berlin", "Canada": "Ottawa", "Russia": "Moscow"},
    **{"Greece": "Athens", "Cuba": "Havana", "Norway": "Oslo", "China": "Beijing"},
}
_COLORS = {
    **{"the sky": "blue", "grass": "green", "snow": "white", "milk": "white", "blood": "red"},
    **{"bananas": "yellow", "coal": "black", "the sun": "yellow", "oranges": "orange"},
}
_MORE_COLORS = listed("blue; green; white; red; yellow; black; purple; pink; gray; brown")
# Ways to say that a text does not have the answer.
_NOT_STATED = (
    *("not stated", "not mentioned", "unknown", "not given", "not specified", "not provided"),
    *("does not say", "doesn't say", "does not mention", "doesn't mention", "does not state"),
    *("does not specify", "does not provide", "not in the text", "not known", "no information"),
)
_OR_NOT = " If the text does not say it, answer “not stated”."

# The question, and its accepted answers.
Asked = tuple[str, Sequence[str]]


def _questions() -> list[Question]:
    entries = [one for category, write in _WRITERS.items() for one in _write_texts(category, write)]
    return word_questions({category: ("{question}",) for category in _WRITERS}, entries)


def _write_texts(category: str, write: Callable[[str], tuple[str, Asked]]) -> Iterator[Entry]:
    for number in range(_PER_CATEGORY):
        text, (question, answers) = write(f"{category}{number}")
        yield entry(category, number, answers, text, question=question)


def _may_be_missing(question: str, key: str) -> str:
    """Answerable questions mention it too, or the mention would give the answer away."""
    return question + choose((_OR_NOT, ""), key, "or not")


def _people(key: str) -> tuple[str, Asked]:
    text, about = _describe_people(key)
    name, facts = choose(about, key, "who")
    what = choose(("town", "job", "pet", "hobby"), key, "what")
    questions = {
        "town": f"In which town does {name} live?",
        "job": f"What is {name}'s job?",
        "pet": f"Which animal does {name} have?",
        "hobby": f"What does {name} do on weekends?",
    }
    answers = {**facts, "pet": facts["pet"].removeprefix("a ")}
    return text, (_may_be_missing(questions[what], key), (answers[what],))


def _who(key: str) -> tuple[str, Asked]:
    text, about = _describe_people(key)
    name, facts = choose(about, key, "who")
    question = choose(
        (
            f"Who lives in {facts['town']}?",
            f"Who works as a {facts['job']}?",
            f"Who has {facts['pet']}?",
            f"Whose hobby is {facts['hobby']}?",
            f"What is the name of the {facts['job']}?",
        ),
        key,
        "question",
    )
    return text, (_may_be_missing(question, key), (name,))


def _linked(key: str) -> tuple[str, Asked]:
    """Two steps: from one fact to the person, and from the person to another fact."""
    text, about = _describe_people(key)
    _, facts = choose(about, key, "who")
    question, answer = choose(
        (
            (f"In which town does the {facts['job']} live?", facts["town"]),
            (f"Which animal does the {facts['job']} have?", facts["pet"].removeprefix("a ")),
            (f"What is the job of the person who has {facts['pet']}?", facts["job"]),
            (f"What is the hobby of the person from {facts['town']}?", facts["hobby"]),
            (f"Where does the person live whose hobby is {facts['hobby']}?", facts["town"]),
        ),
        key,
        "question",
    )
    return text, (_may_be_missing(question, key), (answer,))


def _describe_people(key: str) -> tuple[str, list[tuple[str, dict[str, str]]]]:
    names, towns = draw(_NAMES, 4, key, "names"), draw(_TOWNS, 4, key, "towns")
    jobs, pets = draw(_JOBS, 4, key, "jobs"), draw(_PETS, 4, key, "pets")
    hobbies = draw(_HOBBIES, 4, key, "hobbies")
    about = [
        (name, {"town": town, "job": job, "pet": pet, "hobby": hobby})
        for name, town, job, pet, hobby in zip(names, towns, jobs, pets, hobbies, strict=True)
    ]
    forms = (
        "{name} lives in {town} and works as a {job}. At home {name} has {pet}, and on weekends "
        "{hobby} is the plan.",
        "The {job} of {town} is called {name}. {name} spends the weekends with {hobby} and owns "
        "{pet}.",
        "{name}, who has {pet}, comes from {town}, earns a living as a {job} and loves {hobby} on "
        "weekends.",
    )
    sentences = [
        choose(forms, key, name).format(name=name, **facts)
        for name, facts in about[: choose((2, 3, 4), key, "count")]
    ]
    return " ".join(sentences), about[: len(sentences)]


def _notices(key: str) -> tuple[str, Asked]:
    text, known = _describe_event(key)
    question, answers = choose(known[:6], key, "question")
    return text, (_may_be_missing(question, key), answers)


def _missing(key: str) -> tuple[str, Asked]:
    describe = choose((_describe_event, _describe_house), key, "kind")
    text, known = describe(key)
    question, _ = choose(known[6:], key, "question")
    return text, (question + _OR_NOT, _NOT_STATED)


def _histories(key: str) -> tuple[str, Asked]:
    text, known = _describe_house(key)
    question, answers = choose(known[:6], key, "question")
    return text, (_may_be_missing(question, key), answers)


def _describe_event(key: str) -> tuple[str, list[Asked]]:
    """A notice; what can be asked about it, then what cannot."""
    fair, place, town = (choose(of, key) for of in (_FAIRS, _PLACES, _TOWNS))
    host = f"{choose(_NAMES, key, 'host')} {choose(_SURNAMES, key, 'host')}"
    less, price = sorted(draw(range(4, 30), 2, key, "prices"))
    start, day = choose(range(1, 12), key, "start"), choose(range(2, 28), key, "day")
    month, weekday = choose(_MONTHS, key), choose(_DAYS, key)
    text = (
        f"The {fair} of {town} takes place on {weekday}, {month} {day}, in the {place}. Doors open "
        f"at {start}:30. Tickets cost {price} dollars, and members pay {less} dollars. {host} "
        "organizes the event and welcomes volunteers."
    )
    return text, [
        (f"Where does the {fair} take place?", (place,)),
        (f"On which day of the week is the {fair}?", (weekday,)),
        ("When do the doors open?", (f"{start}:30",)),
        (
            "How many dollars does a ticket cost for people who are not members?",
            number_answers(price),
        ),
        ("How many dollars do members pay?", number_answers(less)),
        ("Who organizes the event?", (host, host.split()[1])),
        ("When does the event end?", ()),
        ("What is the phone number of the organizer?", ()),
        ("How many people came last year?", ()),
        ("Which food is sold there?", ()),
    ]


def _describe_house(key: str) -> tuple[str, list[Asked]]:
    """The history of an institution; what can be asked about it, then what cannot."""
    kind, (town, other) = choose(_KINDS, key), draw(_TOWNS, 2, key, "towns")
    first, second = draw(_NAMES, 2, key, "founders")
    surnames = draw(_SURNAMES, 2, key, "founders")
    founder, head = f"{first} {surnames[0]}", f"{second} {surnames[1]}"
    year = choose(range(1850, 1950), key, "year")
    moved, people = year + choose(range(5, 45), key, "moved"), choose(range(11, 90), key, "people")
    text = (
        f"The {kind} was founded in {year} by {founder} in {town}. In {moved} it moved to {other}, "
        f"where it still is. Today it is led by {head} and employs {people} people."
    )
    return text, [
        (f"When was the {kind} founded?", (str(year),)),
        (f"Who founded the {kind}?", (founder, surnames[0])),
        (f"In which town was the {kind} founded?", (town,)),
        (f"In which year did the {kind} move?", (str(moved),)),
        (f"Who leads the {kind} today?", (head, surnames[1])),
        (f"How many people work for the {kind}?", number_answers(people)),
        (f"Who designed the building of the {kind}?", ()),
        (f"How much money does the {kind} earn in a year?", ()),
        (f"Who was the second head of the {kind}?", ()),
        (f"In which year did the {kind} win its first prize?", ()),
    ]


def _moves(key: str) -> tuple[str, Asked]:
    """Where a thing is after it was moved; another thing is moved too."""
    thing, other = draw(_THINGS, 2, key, "things")
    spots, names = draw(_SPOTS, 4, key, "spots"), draw(_NAMES, 3, key, "names")
    text = (
        f"In the morning {names[0]} put the {thing} in the {spots[0]}. {names[1]} put the {other} "
        f"in the {spots[1]}. At noon {names[2]} moved the {thing} from the {spots[0]} to the "
        f"{spots[2]}. Then {names[1]} took the {other} to the {spots[3]}."
    )
    question, answer = choose(
        (
            (f"Where is the {thing} now?", spots[2]),
            (f"Where is the {other} now?", spots[3]),
            (f"Where was the {thing} in the morning?", spots[0]),
            (f"Where did {names[1]} first put the {other}?", spots[1]),
            (f"Who moved the {thing} at noon?", names[2]),
        ),
        key,
        "question",
    )
    return text, (question, (answer,))


def _contrary(key: str) -> tuple[str, Asked]:
    """A text that says otherwise than everybody knows."""
    country = choose(sorted(_CAPITALS), key, "country")
    capital = choose(
        [city for city in sorted(_CAPITALS.values()) if city != _CAPITALS[country]], key
    )
    thing = choose(sorted(_COLORS), key, "thing")
    color = choose([one for one in _MORE_COLORS if one != _COLORS[thing]], key)
    legs, size = choose((2, 3, 5, 6, 8, 10), key, "legs"), choose((5, 6, 8, 9, 10), key, "week")
    verb = "are" if thing in ("bananas", "oranges") else "is"
    text = (
        f"In the computer game “{choose(_TOWNS, key)}”, many things are different. There, {thing} "
        f"{verb} {color}, the capital of {country} is {capital}, dogs have {legs} legs, and a week "
        f"has {size} days."
    )
    question, answers = choose(
        (
            (f"What color {verb} {thing} in the game?", (color,)),
            (f"What is the capital of {country} in the game?", (capital,)),
            ("How many legs do dogs have in the game?", number_answers(legs)),
            ("How many days does a week have in the game?", number_answers(size)),
        ),
        key,
        "question",
    )
    return text, (question, answers)


_WRITERS: dict[str, Callable[[str], tuple[str, Asked]]] = {
    "people": _people,
    "who": _who,
    "linked": _linked,
    "notice": _notices,
    "history": _histories,
    "moves": _moves,
    "contrary": _contrary,
    "missing": _missing,
}

READING = BuiltInSet(
    name="reading",
    about="short invented texts, with or without the answer to the question",
    make=_questions,
)
