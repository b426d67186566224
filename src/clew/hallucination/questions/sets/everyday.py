"""What everybody knows: kinds of things, jobs, animals, and how many there are of something.
Written for this file from common knowledge."""

from collections.abc import Iterator

from clew.hallucination.questions.records import Question
from clew.hallucination.questions.sets.making import (
    BuiltInSet,
    Entry,
    entry,
    listed,
    number_answers,
    word_questions,
)
from clew.hallucination.questions.sets.word_lists import KINDS, with_article

# What is accepted for each kind of thing.
_ANIMAL_CLASSES = {
    "a mammal": ("mammal", "mammals", "mammalia"),
    "a bird": ("bird", "birds", "aves"),
    "a fish": ("fish", "fishes"),
    "a reptile": ("reptile", "reptiles", "reptilia"),
    "an insect": ("insect", "insects", "insecta"),
}
_NATURAL_KINDS = {
    "a fruit": ("fruit", "fruits"),
    "a vegetable": ("vegetable", "vegetables", "plant"),
    "a tree": ("tree", "trees", "plant"),
    "a flower": ("flower", "flowers", "flowering plant", "plant"),
    "a grain": ("grain", "cereal", "cereal grain", "crop"),
    "a spice": ("spice", "spices", "seasoning"),
    "a gemstone": ("gemstone", "gem", "precious stone", "jewel"),
    "a dog": ("dog", "dogs", "dog breed", "breed of dog"),
}
_KINDS = {
    # Not "instrument" alone, which "A trumpet is a string instrument" contains.
    "a musical instrument": ("musical instrument", "type of instrument", "kind of instrument"),
    "a tool": ("tool", "tools"),
    "a vehicle": ("vehicle", "vehicles", "means of transport", "mode of transportation"),
    "a piece of furniture": ("furniture", "piece of furniture"),
    "a garment": ("garment", "clothing", "clothes", "piece of clothing", "apparel"),
    "a sport": ("sport", "sports"),
    "a language": ("language", "languages"),
    "a profession": ("profession", "job", "occupation"),
    "a drink": ("drink", "beverage", "drinks"),
    "a dance": ("dance", "dances", "dance form"),
    "a fabric": ("fabric", "textile", "material", "cloth"),
    "a disease": ("disease", "illness", "infection", "infectious disease"),
    "a weapon": ("weapon", "weapons"),
    "a country": ("country", "nation", "sovereign state"),
    "a city": ("city", "cities", "metropolis"),
    "a river": ("river", "rivers"),
    "a part of the body": ("body part", "part of the body", "part of the human body"),
}
# Accepted for some things of a kind only.
_OF_SOME = {
    "herb": "oregano basil",
    "mineral": "ruby sapphire emerald diamond topaz amethyst garnet",
    "string instrument": "violin guitar cello harp banjo piano",
    "stringed instrument": "violin guitar cello harp banjo piano",
    "wind instrument": "trumpet flute clarinet saxophone trombone tuba oboe",
    "brass instrument": "trumpet trombone tuba",
    "woodwind instrument": "flute clarinet saxophone oboe",
    "percussion instrument": "drum piano",
    "keyboard instrument": "piano",
    "ball game": "tennis football basketball rugby golf volleyball",
    "martial art": "judo boxing",
    "fiber": "silk cotton linen nylon polyester wool",
    "fibre": "silk cotton linen nylon polyester wool",
    "firearm": "rifle pistol",
    "republic": "Kenya Peru Cuba Poland Nepal Portugal Ghana Chile",
    "island nation": "Cuba",
    "capital": "Vienna",
    "joint": "elbow knee shoulder ankle wrist",
    "organ": "stomach liver",
    "finger": "thumb",
}
_ACCEPTED = {"animal-class": _ANIMAL_CLASSES, "natural-kind": _NATURAL_KINDS, "kind": _KINDS}
_JOBS = """
bakes bread: baker; cuts hair: hairdresser|barber|hair stylist; repairs cars: mechanic|auto
mechanic; repairs water pipes: plumber; flies airplanes: pilot; puts out fires: firefighter|fireman;
teaches children at school: teacher; treats sick people: doctor|physician; treats teeth: dentist;
treats sick animals: veterinarian|vet; designs buildings: architect; builds things from wood:
carpenter|woodworker; sells meat: butcher; grows crops: farmer; catches fish: fisherman|fisher;
takes photographs: photographer; paints pictures: painter|artist; writes books: author|writer;
writes poems: poet; writes for a newspaper: journalist|reporter; plays the piano: pianist; plays the
violin: violinist; plays the guitar: guitarist; plays the drums: drummer; leads an orchestra:
conductor; writes music: composer; studies the stars: astronomer; studies rocks: geologist; studies
plants: botanist; studies animals: zoologist; studies fossils: paleontologist|palaeontologist;
studies the past: historian; studies the weather: meteorologist; studies the mind: psychologist;
studies ancient ruins: archaeologist|archeologist; studies chemicals: chemist; works with numbers
and equations: mathematician; writes computer programs: programmer|software
developer|developer|software engineer; sews clothes: tailor|seamstress; makes shoes:
shoemaker|cobbler; makes watches: watchmaker; sells flowers: florist; serves food in a restaurant:
waiter|waitress|server; cooks in a restaurant: cook|chef; mixes drinks: bartender|barman; delivers
letters: mail carrier|mailman|postman|letter carrier; drives a taxi: taxi driver|cab driver; travels
into space: astronaut|cosmonaut; defends people in court: lawyer|attorney; decides cases in court:
judge; lends books to readers: librarian; sells medicine: pharmacist; helps at births: midwife;
looks after patients in a hospital: nurse; operates on patients: surgeon; keeps bees:
beekeeper|apiarist; tends a garden: gardener; herds sheep: shepherd; shoes horses:
farrier|blacksmith; works with iron and a forge: blacksmith|smith; lays bricks: bricklayer|mason;
installs electric wires: electrician; digs for coal: miner|coal miner; leads a ship: captain; leads
a church service: priest|pastor|minister; performs magic tricks: magician|illusionist; makes people
laugh in a circus: clown; walks on a tightrope: tightrope walker|acrobat|funambulist; acts in films:
actor|actress; directs films: director|film director; translates texts: translator; keeps the
accounts: accountant|bookkeeper; guards the goal in soccer: goalkeeper|goalie|keeper; trains
athletes: coach|trainer; rides racehorses: jockey; dances in ballets: ballet dancer|ballerina;
collects stamps: philatelist; collects coins: numismatist; makes pots of clay: potter; carves
statues: sculptor; draws maps: cartographer; rules a kingdom: king|queen|monarch; treats feet:
podiatrist; treats skin: dermatologist; treats the heart: cardiologist; treats children:
pediatrician|paediatrician; treats eyes: ophthalmologist|eye doctor|optometrist; treats mental
illness: psychiatrist
"""
_ANIMALS = """
What sound does a dog make = bark|woof; What sound does a cat make = meow|purr; What sound does a
cow make = moo; What sound does a sheep make = baa|bleat; What sound does a duck make = quack; What
sound does a pig make = oink|grunt; What sound does a lion make = roar; What sound does a snake make
= hiss; What sound does a bee make = buzz; What sound does an owl make = hoot; What sound does a
frog make = croak|ribbit; What sound does a horse make = neigh|whinny; What sound does a wolf make =
howl; What sound does a rooster make = crow|cock-a-doodle-doo; What sound does a mouse make =
squeak; What sound does a donkey make = bray|hee-haw; What sound does a turkey make = gobble; What
sound does a crow make = caw; Where do bees live = hive|beehive; What is the home of a bird called =
nest; What is the home of a spider called = web; Where does a dog sleep outdoors = kennel|doghouse;
Where do horses sleep on a farm = stable|barn|stall; Where do pigs live on a farm =
sty|pigsty|pigpen|pen; What is the home of a lion called = den|lair; What do rabbits dig to live in
= burrow|burrows|hole|warren; Where do fish live = water|ocean|sea|river|lake; What do beavers build
across streams = dam|dams; Where do chickens sleep = coop|henhouse; Which animal is the tallest on
Earth = giraffe; Which animal is the largest on Earth = blue whale; Which land animal is the fastest
= cheetah; Which land animal is the largest = elephant; Which bird is the largest = ostrich; Which
bird is the smallest = hummingbird|bee hummingbird; Which animal is called the king of beasts =
lion; Which animal is called man's best friend = dog; Which animal gives us wool = sheep; Which
animal gives us most of our milk = cow; Which insect makes honey = bee|honeybee|honey bee; Which
insect makes silk = silkworm; Which animal has black and white stripes = zebra; Which animal carries
its baby in a pouch = kangaroo|koala|opossum|wombat; Which animal has a trunk = elephant; Which
animal has humps = camel; Which animal carries its house on its back = snail|turtle|tortoise; Which
animal has eight arms = octopus; Which animal sleeps hanging upside down = bat; Which animal eats
mostly bamboo = panda|giant panda; Which animal eats mostly eucalyptus leaves = koala; Which bird
can imitate human speech = parrot|mynah; Which bird hoots at night = owl; Which black and white bird
cannot fly and lives in Antarctica = penguin; Which animal changes its color to hide =
chameleon|octopus; Which sea animal has five arms = starfish|sea star; Which animal spins webs =
spider; Which animal does a caterpillar become = butterfly|moth; Which animal does a tadpole become
= frog|toad; Which animal is known for its quills = porcupine|hedgehog; Which animal is known for
spraying a bad smell = skunk; Which animal do people ride in the desert = camel; Which bird is the
symbol of peace = dove; Which bird is on the great seal of the United States = bald eagle|eagle;
Which animal did the Trojans let into their city as a wooden statue = horse; Which animal is Moby
Dick = whale|sperm whale; Which animal has the longest neck = giraffe; Which dog breed is known for
rescuing people in the Alps = St. Bernard|Saint Bernard
"""
_COUNTS = """
legs does a spider have: 8; legs does an insect have: 6; legs does a dog have: 4; legs does a bird
have: 2; arms does an octopus have: 8; wheels does a bicycle have: 2; wheels does a tricycle have:
3; wheels does a car have: 4; sides does a triangle have: 3; sides does a square have: 4; sides does
a pentagon have: 5; sides does a hexagon have: 6; sides does an octagon have: 8; faces does a cube
have: 6; days are in a week: 7; months are in a year: 12; hours are in a day: 24; minutes are in an
hour: 60; seconds are in a minute: 60; weeks are in a year: 52; days does a normal year have: 365;
days does a leap year have: 366; days are in June: 30; days are in January: 31; days does February
have in a normal year: 28; years are in a decade: 10; years are in a century: 100; years are in a
millennium: 1000; seasons does a year have: 4; letters are in the English alphabet: 26; vowels are
in the English alphabet: 5; continents are there: 7; oceans are there: 5; planets are in the solar
system: 8; moons does the Earth have: 1; states are in the United States: 50; stars are on the
American flag: 50; stripes are on the American flag: 13; fingers are on one hand: 5; toes does a
person have: 10; eyes does a person have: 2; teeth does an adult have: 32; bones are in the adult
human body: 206; chambers does the human heart have: 4; lungs does a person have: 2; strings does a
violin have: 4; strings does a standard guitar have: 6; keys does a piano have: 88; players of one
soccer team are on the field: 11; players of one basketball team are on the court: 5; players of one
baseball team are on the field: 9; players of one volleyball team are on the court: 6; squares are
on a chessboard: 64; cards are in a standard deck: 52; suits are in a deck of cards: 4; pawns does
each player have in chess: 8; dots are on a die in total: 21; rings are in the Olympic symbol: 5;
colors are in the rainbow: 7; cents are in a dollar: 100; cents are in a quarter: 25; cents is a
dime worth: 10; cents is a nickel worth: 5; inches are in a foot: 12; feet are in a yard: 3;
centimeters are in a meter: 100; meters are in a kilometer: 1000; grams are in a kilogram: 1000;
millimeters are in a centimeter: 10; ounces are in a pound: 16; eggs are in a dozen: 12; degrees are
in a circle: 360; degrees does a right angle have: 90; dwarfs does Snow White meet: 7; little pigs
are in the fairy tale: 3; wonders of the ancient world are there: 7; commandments did Moses receive:
10; apostles did Jesus have: 12; musketeers are in the title of Dumas's novel: 3; lives does a cat
have in the proverb: 9; people are in a quartet: 4; people are in a trio: 3; babies are twins: 2;
babies are triplets: 3; years does a US president's term last: 4; senators does each US state have:
2; zeros are in one million: 6; zeros are in one thousand: 3; quarters make a dollar: 4; dimes make
a dollar: 10; sides does a coin have: 2; holes does a golf course usually have: 18; events are in a
decathlon: 10; events are in a triathlon: 3; days did Phileas Fogg take to go around the world: 80;
thieves are in the story of Ali Baba: 40; years did Sleeping Beauty sleep: 100; horns does a unicorn
have: 1; humps does a Bactrian camel have: 2; legs does a tripod have: 3; eyes does a cyclops have:
1
"""
_TEMPLATES = {
    "animal-class": (
        "Which class of animals does {of} belong to?",
        "What class of animal is {of}?",
    ),
    "natural-kind": ("What kind of thing is {of}?", "What is {of}?"),
    "kind": ("What kind of thing is {of}?", "What sort of thing is {of}?"),
    "job": ("What do you call a person who {of}?", "Who {of}?"),
    "animal": ("{of}?",),
    "count": ("How many {of}?",),
}


def _questions() -> list[Question]:
    return word_questions(_TEMPLATES, [*_kinds(), *_from_lists()])


def _kinds() -> Iterator[Entry]:
    for line in listed(KINDS):
        kind, members = line.split(": ")
        for category, accepted in _ACCEPTED.items():
            for member in members.split() if kind in accepted else ():
                more = [answer for answer, of in _OF_SOME.items() if member in of.split()]
                answers, of = (*accepted[kind], *more), with_article(member, kind)
                yield entry(category, member.lower(), answers, of=of)


def _from_lists() -> Iterator[Entry]:
    for line in listed(_JOBS):
        of, _, answers = line.partition(": ")
        yield entry("job", of.lower().replace(" ", "-"), answers.split("|"), of=of)
    for line in listed(_ANIMALS):
        of, _, answers = line.partition(" = ")
        yield entry("animal", of.lower().replace(" ", "-"), answers.split("|"), of=of)
    for line in listed(_COUNTS):
        of, _, count = line.partition(": ")
        yield entry("count", of.lower().replace(" ", "-"), number_answers(int(count)), of=of)


EVERYDAY = BuiltInSet(
    name="everyday",
    about="kinds of things, jobs, animals, and how many there are of something",
    make=_questions,
)
