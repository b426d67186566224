"""Statements that everybody can finish, and proverbs: the beginning, and the accepted endings."""

KNOWLEDGE = """
the organ that pumps blood through the body is the = heart; the gas that plants take in for
photosynthesis is = carbon dioxide|CO2; the gas in the air that people need to breathe is = oxygen;
a caterpillar turns into a = butterfly|moth; a tadpole turns into a = frog|toad; the opposite of
north is = south; the sun rises in the = east; the sun sets in the = west; the largest ocean is the
= Pacific|Pacific Ocean; the planet closest to the Sun is = Mercury; the largest planet of the solar
system is = Jupiter; the planet that is called the red planet is = Mars; the planet with the widest
rings is = Saturn; the main material of glass is = sand|silica|silicon dioxide|quartz; cheese is
made from = milk; wine is made from = grapes|grape; the main ingredient of bread is =
flour|wheat|wheat flour; diamonds consist of the element = carbon; the hardest natural material is =
diamond|diamonds; mixing red and blue paint gives = purple|violet; mixing blue and yellow paint
gives = green; mixing red and yellow paint gives = orange; mixing black and white paint gives =
gray; the frozen form of water is = ice; water that has turned into a gas is called =
steam|vapor|water vapor; the force that pulls things to the ground is = gravity|gravitation; the
star at the center of the solar system is the = Sun; fish breathe with their = gills; whales breathe
with their = lungs; people hear with their = ears|ear; people smell with their = nose|noses; people
see with their = eyes|eye; the highest mountain in the world is = Mount Everest|Everest; the largest
desert in Africa is the = Sahara; the shortest month of the year is = February; the first month of
the year is = January; the last month of the year is = December; the season between winter and
summer is = spring; the season between summer and winter is = fall|autumn; the study of living
things is called = biology; the study of the stars and planets is called = astronomy; the study of
the mind is called = psychology; the study of the Earth and its rocks is called = geology; the study
of plants is called = botany; the bones that protect the brain form the = skull|cranium; the organ
that makes insulin is the = pancreas; the organ that makes bile is the = liver; the largest organ of
the human body is the = skin; the organs that clean the blood and make urine are the =
kidneys|kidney; the organs that people breathe with are the = lungs|lung; the organ that people
think with is the = brain; the instrument that measures temperature is the = thermometer; the
instrument that shows where north is is the = compass; the instrument that makes small things look
large is the = microscope; the instrument that makes distant stars visible is the = telescope; the
instrument that measures earthquakes is the = seismograph|seismometer; the instrument that measures
air pressure is the = barometer; the center of an atom is called the = nucleus; the particle of an
atom that has a negative charge is the = electron; the particle of an atom that has a positive
charge is the = proton; the process by which plants make food from light is called = photosynthesis;
a triangle whose three sides are equally long is called = equilateral; an angle of 90 degrees is
called a = right angle; an angle of less than 90 degrees is called = acute|acute angle; the distance
around a circle is called its = circumference|perimeter; half of the diameter of a circle is its =
radius; a number that only one and itself divide is called a = prime|prime number; the line around
the middle of the Earth is called the = equator; the unit of electric resistance is the = ohm; the
unit of force is the = newton; the unit of power is the = watt; the unit of frequency is the =
hertz; the unit of electric current is the = ampere|amp; the unit of energy is the = joule; the main
gas of the air is = nitrogen; the lightest chemical element is = hydrogen; the liquid metal in old
thermometers is = mercury; the natural satellite of the Earth is the = Moon; the galaxy that we live
in is the = Milky Way; molten rock that flows from a volcano is called = lava|magma; animals that
eat only plants are called = herbivores|herbivore; animals that eat only meat are called =
carnivores|carnivore; animals that eat both plants and meat are called = omnivores|omnivore; animals
that are active at night are called = nocturnal; animals without a backbone are called =
invertebrates|invertebrate; the long winter sleep of some animals is called = hibernation; a word
that means the same as another is called a = synonym; a word that means the opposite of another is
called an = antonym; a word that names a thing is called a = noun; a word that describes a noun is
called an = adjective; a word for an action is called a = verb; the mark at the end of a question is
the = question mark; a story of one's own life is called an = autobiography|memoir; a doctor for the
heart is called a = cardiologist; a doctor for children is called a = pediatrician|paediatrician; a
doctor for the skin is called a = dermatologist; the lack of red blood cells is called =
anemia|anaemia; the lack of vitamin C causes = scurvy; the lack of vitamin D causes = rickets; the
fear of closed spaces is called = claustrophobia; the fear of spiders is called = arachnophobia; the
fear of heights is called = acrophobia; a government by a king or a queen is called a = monarchy; a
government that the people elect is called a = democracy; the money that people pay to the state is
called = taxes|tax; the money that a bank asks for a loan is called = interest; a general rise of
prices is called = inflation; goods that a country sells abroad are called its = exports|export;
goods that a country buys abroad are called its = imports|import; the day after Christmas Eve is =
Christmas|Christmas Day; the holiday on the last day of October is = Halloween; the holiday on
February 14 is = Valentine's Day|Valentine's; the holy book of Islam is the = Quran|Koran|Qur'an;
the holy book of Christianity is the = Bible; the place of worship of Muslims is called a = mosque;
the place of worship of Jews is called a = synagogue|temple; the game with a king, a queen and pawns
is = chess; the sport of Wimbledon is = tennis; the largest continent is = Asia; the coldest
continent is = Antarctica; the canal between the Mediterranean and the Red Sea is the = Suez|Suez
Canal; the canal between the Atlantic and the Pacific is the = Panama|Panama Canal; the language of
ancient Rome was = Latin; the main food of pandas is = bamboo; the material that silkworms make is =
silk; the material that sheep give is = wool|fleece; the food that bees make is = honey; the fat
that is made from cream is = butter; the drink that is made from roasted beans is = coffee; the fuel
that most cars burn is = gasoline|petrol|gas; the part of a plant that is in the ground is the =
root|roots; the part of a plant that makes seeds is the = flower; the green pigment of leaves is =
chlorophyll; the molecule that carries the genes is = DNA|deoxyribonucleic acid; the blood cells
that fight infections are the = white blood cells|white cells|leukocytes; a substance that kills
bacteria in the body is called an = antibiotic|antibiotics; a person who eats no meat is called a =
vegetarian|vegan; the front of a ship is called the = bow|prow; the back of a ship is called the =
stern
"""
PROVERBS = """
the early bird catches the = worm; a bird in the hand is worth two in the = bush; actions speak
louder than = words; all that glitters is not = gold; an apple a day keeps the doctor = away; better
late than = never; birds of a feather flock = together; blood is thicker than = water; curiosity
killed the = cat; don't bite the hand that = feeds you|feeds; don't count your chickens before they
= hatch|are hatched; don't judge a book by its = cover; don't put all your eggs in one = basket;
every cloud has a silver = lining; fortune favors the = bold|brave; good things come to those who =
wait; haste makes = waste; honesty is the best = policy; it takes two to = tango; keep your friends
close and your enemies = closer; knowledge is = power; laughter is the best = medicine; let sleeping
dogs = lie; like father, like = son; look before you = leap; many hands make light = work; money
does not grow on = trees; necessity is the mother of = invention; out of sight, out of = mind;
people who live in glass houses should not throw = stones; practice makes = perfect; Rome was not
built in a = day; strike while the iron is = hot; the apple does not fall far from the = tree; the
grass is always greener on the other = side; the pen is mightier than the = sword; there is no place
like = home; there is no smoke without = fire; time flies when you are having = fun; time is =
money; too many cooks spoil the = broth|soup|stew; two heads are better than = one; two wrongs do
not make a = right; when the cat is away, the mice will = play; where there is a will, there is a =
way; you can lead a horse to water, but you cannot make it = drink; you cannot teach an old dog new
= tricks; a picture is worth a thousand = words; a rolling stone gathers no = moss; a watched pot
never = boils; absence makes the heart grow = fonder; beauty is in the eye of the = beholder;
beggars cannot be = choosers; cleanliness is next to = godliness; easy come, easy = go; great minds
think = alike; hope for the best, prepare for the = worst; ignorance is = bliss; the best things in
life are = free; the customer is always = right; the squeaky wheel gets the = grease|oil; the road
to hell is paved with good = intentions; variety is the spice of = life; you reap what you = sow; a
penny saved is a penny = earned; a friend in need is a friend = indeed; a chain is only as strong as
its weakest = link; all is fair in love and = war; barking dogs seldom = bite; better safe than =
sorry; every dog has its = day; first come, first = served; half a loaf is better than = none|no
bread; he who laughs last, laughs = best|longest|loudest; if at first you don't succeed, try, try =
again; it is better to give than to = receive; jack of all trades, master of = none; love is =
blind; make hay while the sun = shines; misery loves = company; never look a gift horse in the =
mouth; old habits die = hard; once bitten, twice = shy; one good turn deserves = another; pride
comes before a = fall; seeing is = believing; silence is = golden; slow and steady wins the = race;
still waters run = deep; the proof of the pudding is in the = eating; the third time is the = charm;
what goes up must come = down; when life gives you lemons, make = lemonade; when it rains, it =
pours; you are what you = eat; a leopard cannot change its = spots; the bigger they are, the harder
they = fall; the more the = merrier; don't cry over spilled = milk; every rose has its =
thorn|thorns; beauty is only skin = deep; charity begins at = home; clothes make the = man; crime
does not = pay; don't put the cart before the = horse; familiarity breeds = contempt; the end
justifies the = means; truth is stranger than = fiction; a fool and his money are soon = parted; a
journey of a thousand miles begins with a single = step; an idle mind is the devil's =
workshop|playground; don't make a mountain out of a = molehill; early to bed and early to rise makes
a man healthy, wealthy and = wise; if you play with fire, you will get = burned|burnt; it is always
darkest before the = dawn; you can't make an omelette without breaking = eggs; there is no such
thing as a free = lunch; the devil is in the = details; the straw that broke the camel's = back; an
ounce of prevention is worth a pound of = cure; an army marches on its = stomach; a stitch in time
saves = nine; never put off until tomorrow what you can do = today
"""
# From the least to the most, so that any two can be compared.
ORDERS = """
larger animal: an ant, a mouse, a cat, a sheep, a horse, an elephant, a whale; larger bird: a
hummingbird, a sparrow, a pigeon, an eagle, an ostrich; larger fruit: a cherry, a plum, an apple, a
melon, a pumpkin; larger vehicle: a scooter, a car, a bus, a train, a ship; faster one: a snail, a
walking man, a bicycle, a racing car, an airplane, a rocket; older invention: the smartphone,
television, the telephone, the steam engine, the printing press, the wheel
"""
