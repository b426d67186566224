"""Words and phrases that tell whether an answer states what it mentions, as patterns on normalized
words: an apostrophe is a space there."""

import re

# Words that may stand between "not" and a name, or between "is" and a name.
FILLERS = frozenset(
    (
        *("a", "an", "the", "in", "on", "at", "by", "of", "from", "to", "for", "with", "as"),
        *("called", "named", "city", "country", "state", "island", "province", "town", "region"),
        *("continent", "river", "kingdom", "republic", "year", "number", "answer", "really"),
        *("actually", "necessarily", "considered", "known", "be", "about", "around", "even"),
        *("king", "queen", "president", "emperor", "typically", "usually", "generally", "often"),
    )
)
COPULAS = frozenset(("is", "was", "are", "were"))
NOT_BEFORE = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|except|excluding|unlike)|n t|\b(?:rather|other) than"
    r"|\binstead of|\bas opposed to|\bno longer|\bdifferent from|\bdistinct from"
    r"|\bcontrary to|\b(?:confused|mistaken) (?:with|for)|\bruled out|\bdenie[sd])$"
)
NOT_ONLY = re.compile(r"(?:(?:not|n t) (?:only|just|merely|simply|sure|certain)|none other than)$")
NOT_AFTER = re.compile(
    r"(?:(?:is|was|are|were|does|did|do|has|had|have|can|could|would|will)(?: \w+)?"
    r" (?:not|never|t|no longer)|isn t|wasn t|aren t|(?:is|was) (?:incorrect|wrong|false)|never"
    r"|is (?:often|commonly|frequently|sometimes)"
    r" (?:thought|believed|confused|mistaken|considered))\b"
)
OTHERS_SAY = re.compile(
    r"\b(?:(?:many|most|some|other|few)(?: people| sources| of us)?|people|everyone|often|commonly"
    r"|mistakenly|falsely|incorrectly|wrongly|erroneously|frequently)"
    r" (?:\w+ ){0,2}?(?:think|thinks|thought|believe|believes|believed|assume|assumed|say|says"
    r"|claim|claimed|confuse|confused|mistaken|called|cited|stated)\b"
    r"|\b(?:not|n t|never) (?:\w+ )?(?:say|state|mention|specify|indicate)\b"
)
_COMPASS_OF = r"(?:north|south|east|west|northeast|northwest|southeast|southwest) of"
ASIDE = re.compile(
    r"\b(?:near|nearby|close to|next to|adjacent to|bordering|borders|border with|bordered by"
    r"|neighbou?ring|derivative of|derived from|pegged to|similar to"
    r"|compared (?:to|with)|named (?:after|for)|succeeded by|preceded by|followed by|replaced by"
    r"|across from|far from|away from|outside(?: of)?"
    r"|(?:days?|weeks?|months?|years?|hours?|minutes?) (?:after|before|from)"
    r"|(?:contemporary|friend|rival|pupil|student|disciple|colleague|successor|predecessor|reign"
    r"|son|daughter) of"
    r"|(?:larger|smaller|longer|shorter|taller|bigger|greater|less|more|older|younger|fewer) than"
    rf"|(?P<compass>{_COMPASS_OF}))$"
)
# "In the south east of Italy" is in Italy.
PART_OF = re.compile(rf"\bthe (?:\w+ )?{_COMPASS_OF}$")
_BUT = r"(?:but|although|though|however|while|whereas)"
_POSSIBLY = (
    r"(?:some|sometimes|others?|may|might|could|can|depends?|depending|not always|occasionally"
    r"|also)"
)
HEDGE_AFTER = re.compile(
    rf"\b{_BUT}\b(?: \w+){{0,5}}? {_POSSIBLY}\b(?! known| called| referred)"
    r"|\b(?:it|this|that|which|and|or) (?:may|might|could|can) also be\b(?! known| called)"
    r"|\bor (?:possibly|perhaps|maybe|sometimes|even)\b"
)
HEDGE_BEFORE = re.compile(rf"\b{_BUT}\b(?: \w+){{0,4}}? {_POSSIBLY}(?: \w+){{0,3}}$")
UNSURE = re.compile(r"\b(?:not (?:\w+ )?(?:sure|certain|know)|don t know|unsure)\b")
# What takes back the words before it: alone, or only with other words after it.
TURN = re.compile(
    r"\b(?:no wait|wait no|actually no|scratch that|i mean|i meant|correction|my mistake"
    r"|i made an? (?:mistake|error)|let me correct|on second thought"
    r"|the (?:correct|right|real|actual) answer is)\b"
)
WEAK_TURN = re.compile(rf"{TURN.pattern}|\b(?:wait|actually|sorry|i apologi[sz]e)\b")
# A word before a name that makes it another name; a point of the compass does with some names.
PREFIXES = frozenset(
    (
        *("new", "saint", "st", "san", "santa", "fort", "port", "el", "los", "las", "lake"),
        *("mount", "mt", "cape", "little", "great", "equatorial", "lower", "upper", "papua"),
        *("inner", "outer", "democratic"),
    )
)
COMPASS = frozenset(
    ("north", "south", "east", "west", "northern", "eastern", "western", "southern")
)
COMPASS_NAMES = frozenset(
    (
        *("korea", "sudan", "carolina", "dakota", "virginia", "america", "timor", "ireland"),
        *("macedonia", "germany", "york", "vietnam", "yemen", "cyprus", "sahara", "marianas"),
    )
)
SUFFIXES = frozenset(
    (
        *("city", "bissau", "university", "college", "airlines", "airport", "street", "avenue"),
        *("jr", "junior", "hotel", "county", "tech"),
    )
)
_TITLES = frozenset(
    (
        *("mr", "mrs", "ms", "dr", "sir", "lord", "lady", "king", "queen", "prince", "princess"),
        *("president", "professor", "saint", "st", "pope", "emperor", "captain", "general"),
    )
)
NOT_NAMES = frozenset(
    (
        *(
            *_TITLES,
            *FILLERS,
            *COMPASS,
            "its",
            "their",
            "his",
            "her",
            "our",
            "this",
            "that",
            "is",
        ),
        *("mainland", "central", "southeast", "northeast", "southwest", "northwest", "modern"),
    )
)
