"""Lists of English words, as every dictionary has them."""

PLURALS = """
man men; woman women; child children; mouse mice; louse lice; goose geese; foot feet; tooth teeth;
ox oxen; person people|persons; knife knives; wife wives; life lives; leaf leaves; loaf loaves; half
halves; shelf shelves; thief thieves; wolf wolves; calf calves; elf elves; scarf scarves|scarfs;
hoof hooves|hoofs; self selves; sheaf sheaves; dwarf dwarves|dwarfs; wharf wharves|wharfs; city
cities; baby babies; country countries; party parties; lady ladies; story stories; berry berries;
puppy puppies; fly flies; army armies; family families; library libraries; penny pennies|pence;
cherry cherries; enemy enemies; diary diaries; box boxes; fox foxes; bus buses|busses; class
classes; dish dishes; church churches; watch watches; brush brushes; tax taxes; glass glasses; kiss
kisses; lens lenses; beach beaches; sandwich sandwiches; wish wishes; match matches; bench benches;
potato potatoes; tomato tomatoes; hero heroes; echo echoes; volcano volcanoes|volcanos; mosquito
mosquitoes|mosquitos; photo photos; piano pianos; radio radios; video videos; zoo zoos; kangaroo
kangaroos; studio studios; solo solos|soli; cactus cacti|cactuses; fungus fungi|funguses; nucleus
nuclei|nucleuses; radius radii|radiuses; stimulus stimuli; alumnus alumni; bacterium bacteria; datum
data; medium media|mediums; curriculum curricula|curriculums; stratum strata; memorandum
memoranda|memorandums; analysis analyses; crisis crises; thesis theses; oasis oases; basis bases;
diagnosis diagnoses; hypothesis hypotheses; axis axes; phenomenon phenomena|phenomenons; criterion
criteria|criterions; index indices|indexes; appendix appendices|appendixes; matrix
matrices|matrixes; vertex vertices|vertexes; larva larvae|larvas; vertebra vertebrae|vertebras; alga
algae; antenna antennae|antennas; formula formulas|formulae; day days; key keys; monkey monkeys; boy
boys; toy toys; valley valleys; donkey donkeys; turkey turkeys; roof roofs; chief chiefs; belief
beliefs; cliff cliffs; reef reefs; chef chefs; proof proofs; house houses; horse horses; nose noses;
mother-in-law mothers-in-law; passer-by passers-by|passersby; runner-up runners-up; stepchild
stepchildren; grandchild grandchildren; fireman firemen; policewoman policewomen; snowman snowmen;
bookshelf bookshelves; housewife housewives; quiz quizzes; waltz waltzes
"""
# Base form, past tense, past participle.
PASTS = """
arise arose arisen; awake awoke|awakened awoken|awakened; bear bore borne|born; beat beat
beaten|beat; become became become; begin began begun; bend bent bent; bind bound bound; bite bit
bitten; bleed bled bled; blow blew blown; break broke broken; breed bred bred; bring brought
brought; build built built; buy bought bought; catch caught caught; choose chose chosen; cling clung
clung; come came come; creep crept crept; deal dealt dealt; dig dug dug; do did done; draw drew
drawn; drink drank drunk; drive drove driven; eat ate eaten; fall fell fallen; feed fed fed; feel
felt felt; fight fought fought; find found found; flee fled fled; fly flew flown; forbid
forbade|forbad forbidden; forget forgot forgotten|forgot; forgive forgave forgiven; freeze froze
frozen; get got gotten|got; give gave given; go went gone; grind ground ground; grow grew grown;
hang hung|hanged hung|hanged; have had had; hear heard heard; hide hid hidden; hold held held; keep
kept kept; know knew known; lay laid laid; lead led led; leave left left; lend lent lent; lose lost
lost; make made made; mean meant meant; meet met met; mistake mistook mistaken; pay paid paid; ride
rode ridden; ring rang rung; rise rose risen; run ran run; say said said; see saw seen; seek sought
sought; sell sold sold; send sent sent; shake shook shaken; shine shone|shined shone|shined; shoot
shot shot; shrink shrank|shrunk shrunk|shrunken; sing sang sung; sink sank|sunk sunk; sit sat sat;
sleep slept slept; slide slid slid; speak spoke spoken; spend spent spent; spin spun spun; spring
sprang|sprung sprung; stand stood stood; steal stole stolen; stick stuck stuck; sting stung stung;
stink stank|stunk stunk; strike struck struck|stricken; strive strove|strived striven|strived; swear
swore sworn; sweep swept swept; swim swam swum; swing swung swung; take took taken; teach taught
taught; tear tore torn; tell told told; think thought thought; throw threw thrown; understand
understood understood; wake woke|waked woken|waked; wear wore worn; weave wove|weaved woven|weaved;
weep wept wept; win won won; wind wound wound; withdraw withdrew withdrawn; write wrote written;
overcome overcame overcome; undertake undertook undertaken; foresee foresaw foreseen; withstand
withstood withstood
"""
OPPOSITES = """
hot cold; big small|little; tall short; long short; old young|new; fast slow; high low; rich poor;
happy sad|unhappy; light dark|heavy; hard soft|easy; strong weak; full empty; open closed|shut;
early late; first last; good bad|evil; right wrong|left; true false|untrue; dry wet; clean dirty;
near far; thick thin; wide narrow; deep shallow; loud quiet|soft|silent; brave cowardly|timid; cheap
expensive; safe dangerous|unsafe; sweet sour|bitter; smooth rough; sharp dull|blunt; tight loose; up
down; over under; above below|beneath; inside outside; before after; always never; everything
nothing; many few; more less|fewer; most least; day night; summer winter; north south; east west;
morning evening; friend enemy|foe; love hate|hatred; war peace; life death; victory defeat|loss;
question answer; begin end|finish|stop; start stop|end|finish; buy sell; push pull; give
take|receive; win lose; laugh cry; remember forget; arrive depart|leave; accept
reject|refuse|decline; build destroy|demolish; increase decrease|reduce; rise fall|set; attack
defend; import export; lend borrow; teach learn; float sink; melt freeze; save spend|waste; possible
impossible; legal illegal; visible invisible; regular irregular; polite rude|impolite; patient
impatient; honest dishonest; complete incomplete; formal informal|casual; active passive|inactive;
perfect imperfect; correct incorrect|wrong; fair unfair; lucky unlucky; kind unkind|cruel|mean;
known unknown; able unable; usual unusual; ancient modern; public private; guilty innocent;
permanent temporary; maximum minimum; positive negative; optimist pessimist; entrance exit; ceiling
floor; husband wife; king queen; uncle aunt; nephew niece; boy girl; brother sister; father mother;
hero villain; teacher student|pupil; junior senior; majority minority; superior inferior; internal
external; horizontal vertical; vertical horizontal; artificial natural; natural
artificial|unnatural; simple complex|complicated; domestic foreign|wild|international; generous
stingy|selfish|mean; humble proud|arrogant; tame wild; rare common; fresh stale|rotten; asleep
awake; alive dead; single married|double; male female; odd even; absent present; front back|rear;
top bottom; left right; together apart|separately; forward backward|backwards; success failure;
wealth poverty; freedom slavery|captivity|imprisonment; pride shame|humility
"""
# Adjective, comparative, superlative.
COMPARATIVES = """
good better best; bad worse worst; far farther|further farthest|furthest; little less|littler
least|littlest; many more most; big bigger biggest; hot hotter hottest; thin thinner thinnest; fat
fatter fattest; sad sadder saddest; wet wetter wettest; happy happier happiest; easy easier easiest;
heavy heavier heaviest; busy busier busiest; early earlier earliest; dirty dirtier dirtiest; funny
funnier funniest; pretty prettier prettiest; lucky luckier luckiest; noisy noisier noisiest; tall
taller tallest; long longer longest; short shorter shortest; strong stronger strongest; young
younger youngest; old older|elder oldest|eldest; fast faster fastest; slow slower slowest; cheap
cheaper cheapest; deep deeper deepest; wide wider widest; large larger largest; nice nicer nicest;
safe safer safest; brave braver bravest; wise wiser wisest; simple simpler simplest; gentle gentler
gentlest; narrow narrower narrowest; beautiful more_beautiful most_beautiful; expensive
more_expensive most_expensive; important more_important most_important; difficult more_difficult
most_difficult; dangerous more_dangerous most_dangerous; careful more_careful most_careful;
interesting more_interesting most_interesting; comfortable more_comfortable most_comfortable; famous
more_famous most_famous; useful more_useful most_useful; modern more_modern most_modern; patient
more_patient most_patient; foolish more_foolish most_foolish
"""
# Animal, young, female, male; "-" where there is no word of its own.
ANIMALS = """
dog puppy|pup bitch dog|stud; cat kitten queen|molly tom|tomcat; cow calf cow|heifer bull|ox|steer;
horse foal mare stallion; sheep lamb ewe ram; goat kid nanny|doe billy|buck; pig piglet sow boar;
chicken chick|chicks hen rooster|cock; duck duckling duck|hen drake; goose gosling goose gander;
deer fawn doe|hind buck|stag|hart; lion cub lioness lion; tiger cub tigress tiger; bear cub
sow|she-bear boar; fox kit|cub|pup vixen tod|dog|reynard; wolf pup|cub|whelp she-wolf|bitch dog;
rabbit kit|bunny|kitten doe buck; hare leveret doe|jill buck|jack; kangaroo joey jill|flyer|doe
boomer|jack|buck; elephant calf cow bull; whale calf cow bull; dolphin calf cow bull; seal pup cow
bull; swan cygnet pen cob; eagle eaglet - -; owl owlet - -; frog tadpole - -; butterfly
caterpillar|larva - -; fish fry|fingerling - -; eel elver - -; salmon parr|smolt|fry|alevin hen
cock; donkey foal jenny|jennet jack|jackass; camel calf cow bull; giraffe calf cow bull; zebra foal
mare stallion; hippopotamus calf cow bull; rhinoceros calf cow bull; moose calf cow bull; reindeer
calf|fawn cow|doe bull|buck; turkey poult|chick hen tom|gobbler; peafowl peachick peahen peacock;
pigeon squab hen cock; hedgehog hoglet|piglet sow boar; beaver kit|kitten - -; otter pup|whelp - -;
squirrel kit|pup|kitten doe|sow buck|boar; mouse pup|pinky doe buck; bat pup - -; koala joey - -;
platypus puggle - -; mosquito wriggler|larva - -; fly maggot|larva - -; bee larva queen|worker
drone; ant larva queen drone; spider spiderling - -; alligator hatchling cow bull; turtle hatchling
- -; ferret kit jill hob; hawk eyas - tiercel; llama cria - -; oyster spat - -; cockroach nymph - -;
monkey infant - -; ape infant - -; penguin chick hen cock
"""
GROUPS = """
lions pride; wolves pack; cows herd; sheep flock|herd; fish school|shoal; bees swarm|hive|colony;
ants colony|army; crows murder; ravens unkindness|conspiracy; owls parliament; geese
gaggle|flock|skein; elephants herd|parade; whales pod; dolphins pod|school; birds flock; puppies
litter; kittens litter|kindle; horses herd|team; wild_dogs pack; hyenas cackle|clan|pack; kangaroos
mob|troop; monkeys troop|barrel; gorillas troop|band; foxes skulk|leash; bears sloth|sleuth; zebras
dazzle|zeal|herd; giraffes tower; flamingos flamboyance|flock; peacocks ostentation|muster|pride;
penguins colony|waddle|raft|huddle; larks exaltation; starlings murmuration; quails covey|bevy;
swans bevy|wedge|bank; ducks raft|flock|paddling; chickens flock|brood; turkeys rafter|flock|gang;
eagles convocation; hawks kettle|cast; bats colony|cloud|cauldron; rats mischief|pack|colony; mice
mischief|nest; rabbits colony|warren|nest; squirrels scurry|dray; otters romp|raft; seals
pod|colony|harem; sharks shiver|school; jellyfish smack|bloom; frogs army; toads knot; snakes
nest|den|pit; cobras quiver; crocodiles bask|float; turtles bale; rhinoceroses crash; hippopotamuses
bloat|pod; buffaloes herd|obstinacy; camels caravan|train|herd; donkeys pace|drove|herd; mules
pack|barren|span; goats herd|tribe|trip; pigs drove|herd|drift; leopards leap; tigers ambush|streak;
cheetahs coalition; cats clowder|glaring; locusts plague|swarm|cloud; flies swarm|business|cloud;
gnats cloud|swarm|horde; butterflies kaleidoscope|flutter|swarm; stars constellation|galaxy|cluster;
ships fleet|armada; soldiers army|troop|platoon|squad|company; sailors crew; singers choir;
musicians band|orchestra|ensemble; actors cast|troupe|company; dancers troupe; players team; thieves
gang|den|band; judges bench|panel; students class; trees forest|grove|wood; flowers bouquet|bunch;
grapes bunch|cluster; bananas bunch|hand; cards deck|pack; islands archipelago; mountains range
"""
NATIONALITIES = """
France French|Frenchman|Frenchwoman; Germany German; Spain Spanish|Spaniard; Italy Italian; Portugal
Portuguese; Greece Greek; Turkey Turkish|Turk; Poland Polish|Pole; Sweden Swedish|Swede; Denmark
Danish|Dane; Finland Finnish|Finn; Norway Norwegian; Iceland Icelandic|Icelander; Ireland
Irish|Irishman|Irishwoman; Scotland Scottish|Scot|Scots; Wales Welsh|Welshman|Welshwoman; England
English|Englishman|Englishwoman; Switzerland Swiss; Austria Austrian; Belgium Belgian; Hungary
Hungarian; Romania Romanian; Bulgaria Bulgarian; Serbia Serbian|Serb; Croatia Croatian|Croat;
Ukraine Ukrainian; Russia Russian; China Chinese; Japan Japanese; Vietnam Vietnamese; Thailand Thai;
India Indian; Pakistan Pakistani; Nepal Nepali|Nepalese; Bangladesh Bangladeshi; Afghanistan Afghan;
Iraq Iraqi; Israel Israeli; Egypt Egyptian; Morocco Moroccan; Kenya Kenyan; Nigeria Nigerian;
Ethiopia Ethiopian; Ghana Ghanaian; Senegal Senegalese; Sudan Sudanese; Brazil Brazilian; Argentina
Argentine|Argentinian|Argentinean; Peru Peruvian; Chile Chilean; Mexico Mexican; Canada Canadian;
Cuba Cuban; Jamaica Jamaican; Australia Australian; Malta Maltese; Cyprus Cypriot; Lebanon Lebanese;
Monaco Monégasque|Monacan; Madagascar Malagasy|Madagascan; the_Philippines
Filipino|Filipina|Philippine; Slovakia Slovak|Slovakian; Slovenia Slovene|Slovenian; Latvia Latvian;
Lithuania Lithuanian; Estonia Estonian; Luxembourg Luxembourger|Luxembourgish; Burma Burmese; Congo
Congolese; Taiwan Taiwanese; Hawaii Hawaiian; Texas Texan; London Londoner; Paris Parisian; Moscow
Muscovite; Sydney Sydneysider; Liverpool Liverpudlian|Scouser; Manchester Mancunian; Glasgow
Glaswegian; Naples Neapolitan; Venice Venetian; Florence Florentine; Vienna Viennese; Milan
Milanese; Berlin Berliner; Dublin Dubliner
"""
# Things of each kind.
KINDS = """
a drink: coffee tea beer wine lemonade cider whiskey champagne vodka cocoa; a dance: waltz tango
polka foxtrot rumba samba minuet mazurka flamenco salsa; a gemstone: ruby sapphire emerald diamond
topaz amethyst opal garnet; a dog: poodle beagle dachshund bulldog dalmatian spaniel chihuahua
rottweiler collie terrier; a fabric: silk cotton linen velvet denim satin nylon polyester wool
flannel; a spice: cinnamon nutmeg saffron turmeric paprika cumin ginger oregano basil; a grain:
wheat rice barley oats rye millet corn; a disease: measles malaria cholera tuberculosis influenza
diphtheria smallpox polio leprosy pneumonia; a weapon: sword spear rifle cannon dagger pistol
crossbow bayonet; a country: Kenya Peru Norway Thailand Cuba Poland Nepal Portugal Ghana Chile; a
city: Chicago Vienna Mumbai Toronto Naples Osaka Hamburg Lyon Seattle Glasgow; a river: Danube Rhine
Volga Ganges Mekong Thames Seine; a mammal: dog cat horse whale dolphin bat elephant mouse tiger
kangaroo goat hamster gorilla rabbit wolf otter camel beaver hedgehog seal; a bird: eagle sparrow
penguin ostrich owl parrot duck swan pigeon robin crow hawk flamingo turkey seagull peacock stork
goose woodpecker hummingbird; a fish: salmon trout tuna shark cod herring carp goldfish sardine pike
eel mackerel piranha halibut anchovy swordfish perch catfish haddock seahorse; a reptile: snake
lizard crocodile turtle alligator gecko iguana cobra chameleon python rattlesnake tortoise viper; an
insect: ant bee butterfly beetle mosquito wasp moth cricket grasshopper fly dragonfly ladybug
termite flea cockroach; a fruit: apple banana pear cherry plum mango peach lemon grape kiwi papaya
fig apricot lime pineapple; a vegetable: carrot cabbage potato onion broccoli spinach turnip leek
celery cauliflower radish beet; a tree: oak birch pine maple willow cedar beech elm poplar spruce; a
flower: rose tulip daisy lily orchid daffodil carnation violet sunflower marigold; a musical
instrument: violin piano trumpet flute guitar drum cello clarinet harp saxophone trombone banjo tuba
oboe; a tool: hammer screwdriver saw wrench drill chisel shovel axe crowbar rake; a vehicle: car
truck bus bicycle train tram motorcycle tractor van scooter; a piece of furniture: table chair sofa
bed wardrobe desk bookcase armchair stool cupboard; a garment: shirt coat skirt jacket sweater dress
scarf glove sock hat; a metal: iron copper gold silver zinc tin lead nickel aluminum platinum; a gas
at room temperature: oxygen hydrogen nitrogen helium neon argon chlorine fluorine; a sport: tennis
football hockey basketball swimming boxing judo rugby golf volleyball; a color: red blue green
yellow purple orange pink brown gray turquoise; a planet: Venus Mars Jupiter Saturn Uranus Neptune;
a language: Spanish French Italian Swahili Japanese Turkish Polish Hindi Korean Dutch; a profession:
doctor lawyer plumber baker teacher pilot dentist carpenter butcher tailor; a part of the body:
elbow knee shoulder ankle wrist stomach liver chin thumb heel
"""
_WITHOUT_ARTICLE = frozenset(
    (
        *("a metal", "a gas at room temperature", "a sport", "a color", "a planet", "a language"),
        *("a drink", "a fabric", "a spice", "a grain", "a disease", "a country", "a city"),
    )
)


def with_article(thing: str, kind: str) -> str:
    """ "an apple", but "tennis": a thing of the list above as a sentence names it."""
    if kind in _WITHOUT_ARTICLE:
        return thing
    if kind == "a river":
        return f"the {thing}"
    return f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}"
