"""Statements to confirm or deny, one half of them true and one half false."""

from collections.abc import Iterable, Iterator
from itertools import combinations

from clew.hallucination.questions.records import Question
from clew.hallucination.questions.sets.making import (
    BuiltInSet,
    Entry,
    choose,
    draw,
    entry,
    listed,
    word_questions,
)
from clew.hallucination.questions.sets.word_lists import KINDS, with_article

_YES = ("Yes", "true", "correct")
_NO = ("No", "false", "incorrect", "not true", "not correct")
# Kinds that a false statement may confuse.
_CLOSE = (
    ("a mammal", "a bird", "a fish", "a reptile", "an insect"),
    ("a fruit", "a vegetable"),
    ("a tree", "a flower"),
    ("a tool", "a vehicle", "a piece of furniture", "a garment", "a musical instrument"),
    ("a metal", "a gas at room temperature", "a planet"),
    ("a sport", "a language", "a color", "a profession", "a part of the body"),
)
# From the least to the most, so that any two can be compared.
_ORDERS = {
    "larger than": "an ant; a mouse; a cat; a sheep; a horse; an elephant; a whale",
    "larger in area than": "Luxembourg; Belgium; Portugal; Germany; Mexico; Brazil; Russia",
    "faster than": "a snail; a walking man; a bicycle; a racing car; an airplane; a rocket",
    "heavier than": "a feather; an apple; a brick; a bicycle; a car; a truck; a ship",
    "hotter than": "ice; cold water; boiling water; molten iron; the surface of the Sun",
    "farther from the Sun than": "Mercury; Venus; Earth; Mars; Jupiter; Saturn; Neptune",
    "longer than": "a second; a minute; an hour; a day; a week; a month; a year; a century",
    "an older invention than": "the smartphone; television; the telephone; the steam engine; "
    "the printing press; the wheel",
    "later in the year than": "January; March; April; June; August; October; December",
    "worth more than": "a penny; a nickel; a dime; a quarter; a dollar",
}
_CAPITALS = """
France: Paris; Italy: Rome; Spain: Madrid; Germany: Berlin; Japan: Tokyo; Egypt: Cairo; Peru: Lima;
Canada: Ottawa; Australia: Canberra; Brazil: Brasília; Turkey: Ankara; Poland: Warsaw;
Austria: Vienna; Hungary: Budapest; Norway: Oslo; Sweden: Stockholm; Finland: Helsinki;
Denmark: Copenhagen; Greece: Athens; Portugal: Lisbon; Ireland: Dublin; Russia: Moscow;
Ukraine: Kyiv; China: Beijing; India: New Delhi; Thailand: Bangkok; Vietnam: Hanoi; Kenya: Nairobi;
Cuba: Havana; Chile: Santiago; Argentina: Buenos Aires; Colombia: Bogotá; Iran: Tehran;
Iraq: Baghdad; Morocco: Rabat; Ethiopia: Addis Ababa; Nepal: Kathmandu; Belgium: Brussels;
Bulgaria: Sofia; Romania: Bucharest; Serbia: Belgrade; Croatia: Zagreb; Latvia: Riga;
Estonia: Tallinn; Lithuania: Vilnius; Iceland: Reykjavik; Pakistan: Islamabad; Bangladesh: Dhaka;
Afghanistan: Kabul; Lebanon: Beirut; Syria: Damascus; Jordan: Amman; Saudi Arabia: Riyadh;
Nigeria: Abuja; Ghana: Accra; Senegal: Dakar; Uganda: Kampala; Zimbabwe: Harare; Indonesia: Jakarta;
Philippines: Manila; Malaysia: Kuala Lumpur; South Korea: Seoul; Mongolia: Ulaanbaatar;
Venezuela: Caracas; Ecuador: Quito; Uruguay: Montevideo; New Zealand: Wellington; Jamaica: Kingston
"""
_CONTINENTS = """
Africa: Egypt, Kenya, Nigeria, Ghana, Morocco, Ethiopia, Tanzania, Senegal, Uganda, Zambia, Angola,
Mali, Niger, Sudan, Libya, Algeria, Tunisia, Namibia, Botswana, Cameroon;
Asia: Japan, China, Thailand, Vietnam, Nepal, Mongolia, Cambodia, Pakistan, Laos, India, Iran, Iraq,
Bangladesh, Sri Lanka, Myanmar, Jordan, Yemen, Oman, Bhutan, South Korea;
Europe: France, Italy, Poland, Norway, Portugal, Austria, Belgium, Hungary, Greece, Finland, Spain,
Sweden, Denmark, Ireland, Romania, Bulgaria, Croatia, Latvia, Estonia, Germany;
South America: Brazil, Peru, Chile, Argentina, Bolivia, Ecuador, Uruguay, Paraguay, Colombia, Guyana
"""
# What is true, and what is false.
_SENTENCES = """
the {heart|liver} pumps blood through the body; water boils at {100|50} degrees Celsius at sea
level; water freezes at {0|20} degrees Celsius; the Earth goes around {the Sun|the Moon}; a spider
has {eight|six} legs; an insect has {six|ten} legs; a triangle has {three|five} sides; a square has
{four|six} sides; a hexagon has {six|eight} sides; an octagon has {eight|seven} sides; the Sun rises
in the {east|west}; plants take in {carbon dioxide|nitrogen} for photosynthesis; bees make
{honey|milk}; sharks have skeletons made of {cartilage|bone}; a leap year has {366|364} days; a week
has {seven|eight} days; there are {60|100} seconds in a minute; a dozen is {12|20} things; diamonds
are made of {carbon|iron}; glass is made from {sand|wood}; paper is made from {wood|cotton candy};
bread is made from {flour|sand}; cheese is made from {milk|honey}; wine is made from
{grapes|potatoes}; the Great Wall is in {China|India}; the Eiffel Tower is in {Paris|London}; the
Statue of Liberty is in {New York|Boston}; the Colosseum is in {Rome|Athens}; the Kremlin is in
{Moscow|Warsaw}; Big Ben is in {London|Dublin}; the Taj Mahal is in {India|Turkey}; Machu Picchu is
in {Peru|Mexico}; the Sahara is in {Africa|Asia}; the Amazon flows through {Brazil|Spain}; the Nile
flows through {Egypt|Greece}; the Thames flows through {London|Madrid}; Mount Everest is in the
{Himalayas|Alps}; the largest ocean is the {Pacific|Arctic}; the largest planet is {Jupiter|Mars};
the planet closest to the Sun is {Mercury|Saturn}; the planet with the famous rings is
{Saturn|Venus}; the Moon goes around {the Earth|the Sun}; Shakespeare wrote {Hamlet|Don Quixote};
Beethoven was a {composer|painter}; Picasso was a {painter|composer}; Einstein was a
{physicist|novelist}; Darwin wrote about {evolution|gravity}; Newton described {gravity|evolution};
Columbus reached America in {1492|1776}; World War II ended in {1945|1918}; World War I began in
{1914|1939}; the first person on the Moon was {Neil Armstrong|Yuri Gagarin}; the Berlin Wall fell in
{1989|1961}; the first US president was {George Washington|Abraham Lincoln}; the chemical formula of
water is {H2O|CO2}; table salt is {sodium chloride|potassium nitrate}; humans breathe in
{oxygen|helium} to live; the hardest natural material is {diamond|chalk}; gold is a {metal|gas};
rust forms on {iron|plastic}; penguins live in the {southern|northern} half of the Earth in the
wild; polar bears live in the {Arctic|Antarctic}; kangaroos come from {Australia|Africa}; pandas eat
{bamboo|fish} most of all; cows eat {grass|meat}; lions eat {meat|grass}; whales breathe with
{lungs|gills}; fish breathe with {gills|lungs}; birds hatch from {eggs|cocoons}; caterpillars turn
into {butterflies|beetles}; tadpoles turn into {frogs|fish}; a group of wolves is a {pack|school};
the human body has {two|three} lungs; adults usually have {32|20} teeth; the skull protects the
{brain|stomach}; blood is pumped by {the heart|the kidneys}; people hear with their {ears|noses};
people see with their {eyes|elbows}; a piano has {88|50} keys; a violin has {four|nine} strings; a
football team has {eleven|eight} players on the field; a chess board has {64|100} squares; tennis is
played with a {racket|bat}; golf is played with {clubs|rackets}; Spanish is spoken in
{Mexico|Brazil} by most people; Portuguese is spoken in {Brazil|Mexico} by most people; the currency
of Japan is the {yen|won}; the currency of the United Kingdom is the {pound|euro}; the currency of
India is the {rupee|peso}; sushi comes from {Japan|Italy}; pizza comes from {Italy|Norway}; the
tango comes from {Argentina|Canada}; the first month of the year is {January|March}; the last month
of the year is {December|October}; February is the {shortest|longest} month; winter is
{colder|warmer} than summer in Europe; light is {faster|slower} than sound; ice {floats|sinks} in
water; oil {floats|sinks} in water; a magnet attracts {iron|wood}; the opposite of north is
{south|east}; red and blue make {purple|green}; blue and yellow make {green|purple}; red and yellow
make {orange|blue}
"""
_TEMPLATES = (
    "Is it true that {statement}? Answer yes or no.",
    "{capitalized}. Is that correct? Answer yes or no.",
    "{question} Answer yes or no.",
    "{question} Answer yes or no.",
)
_PER_CATEGORY = 300
# A key, a true statement, and a false one that resembles it.
_Pair = tuple[str, str, str]


def _questions() -> list[Question]:
    makers = {
        "kind": _kinds,
        "order": _orders,
        "capital": _capitals,
        "continent": _continents,
        "knowledge": _sentences,
        "number": _comparisons,
    }
    entries = [one for category, make in makers.items() for one in _ask_half(category, make())]
    return word_questions(dict.fromkeys(makers, _TEMPLATES), entries)


def _ask_half(category: str, pairs: Iterable[_Pair]) -> Iterator[Entry]:
    """Each pair is asked once, in turn as the true statement and as the false one."""
    for place, (key, true, false) in enumerate(draw(pairs, _PER_CATEGORY, category)):
        statement, answers = (true, _YES) if place % 2 == 0 else (false, _NO)
        capitalized = statement[0].upper() + statement[1:]
        values = {"statement": statement, "capitalized": capitalized}
        yield entry(category, key, answers, **values, question=_invert(statement))


def _invert(statement: str) -> str:
    """ "a carp is a fish" as "Is a carp a fish?"."""
    if " is " in statement:
        return f"Is {statement.replace(' is ', ' ', 1)}?"
    return f"Is it right that {statement}?"


def _kinds() -> Iterator[_Pair]:
    members = dict(line.split(": ") for line in listed(KINDS))
    for group in _CLOSE:
        for kind in group:
            others = [other for other in group if other != kind]
            for member in members[kind].split():
                subject = with_article(member, kind)
                other = choose(others, member)
                yield member.lower(), f"{subject} is {kind}", f"{subject} is {other}"


def _orders() -> Iterator[_Pair]:
    for relation, things in _ORDERS.items():
        for less, more in combinations(things.split("; "), 2):
            key = f"{relation}-{less}-{more}".replace(" ", "-").lower()
            yield key, f"{more} is {relation} {less}", f"{less} is {relation} {more}"


def _capitals() -> Iterator[_Pair]:
    capitals = dict(line.split(": ") for line in listed(_CAPITALS))
    for country, capital in capitals.items():
        other = choose([city for city in capitals.values() if city != capital], country)
        true, false = (f"{city} is the capital of {country}" for city in (capital, other))
        yield country.lower(), true, false


def _continents() -> Iterator[_Pair]:
    continents = dict(line.split(": ") for line in listed(_CONTINENTS))
    for continent, countries in continents.items():
        others = [other for other in continents if other != continent]
        for country in countries.split(", "):
            other = choose(others, country)
            yield country.lower(), f"{country} is in {continent}", f"{country} is in {other}"


def _sentences() -> Iterator[_Pair]:
    for line in listed(_SENTENCES):
        start, _, rest = line.partition("{")
        options, _, end = rest.partition("}")
        true, false = (f"{start}{option}{end}" for option in options.split("|"))
        yield true.lower().replace(" ", "-"), true, false


def _comparisons() -> Iterator[_Pair]:
    for less, more in combinations(range(4, 90, 7), 2):
        word = choose(("greater", "less"), less, more)
        first, second = (more, less) if word == "greater" else (less, more)
        true, false = f"{first} is {word} than {second}", f"{second} is {word} than {first}"
        yield f"{less}-{more}", true, false


STATEMENTS = BuiltInSet(
    name="statements",
    about="statements to confirm or deny, one half of them true",
    make=_questions,
)
