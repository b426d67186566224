"""What abbreviations stand for: organizations, technology, science, business, everyday life, units
and US states. Written for this file from common knowledge."""

from collections.abc import Iterator

from clew.hallucination.questions.records import Question
from clew.hallucination.questions.sets.making import (
    BuiltInSet,
    Entry,
    entry,
    listed,
    word_questions,
)

_ORGANIZATIONS = """
NASA = National Aeronautics and Space Administration; FBI = Federal Bureau of Investigation; CIA =
Central Intelligence Agency; NATO = North Atlantic Treaty Organization; UN = United Nations; EU =
European Union; WHO = World Health Organization; IMF = International Monetary Fund; WTO = World
Trade Organization; UNESCO = United Nations Educational, Scientific and Cultural Organization|United
Nations Educational Scientific and Cultural Organization; UNICEF = United Nations Children's
Fund|United Nations International Children's Emergency Fund; OPEC = Organization of the Petroleum
Exporting Countries|Organization of Petroleum Exporting Countries; NBA = National Basketball
Association; NFL = National Football League; NHL = National Hockey League; MLB = Major League
Baseball; FIFA = Fédération Internationale de Football Association|International Federation of
Association Football; UEFA = Union of European Football Associations; IOC = International Olympic
Committee; NCAA = National Collegiate Athletic Association; BBC = British Broadcasting Corporation;
CNN = Cable News Network; ABC = American Broadcasting Company|Australian Broadcasting Corporation;
CBS = Columbia Broadcasting System; NBC = National Broadcasting Company; PBS = Public Broadcasting
Service; NPR = National Public Radio; MTV = Music Television; HBO = Home Box Office; ESPN =
Entertainment and Sports Programming Network; IBM = International Business Machines; BMW =
Bayerische Motoren Werke|Bavarian Motor Works; HP = Hewlett-Packard; GE = General Electric; GM =
General Motors; AT&T = American Telephone and Telegraph; UPS = United Parcel Service; KFC = Kentucky
Fried Chicken; MIT = Massachusetts Institute of Technology; UCLA = University of California, Los
Angeles|University of California Los Angeles; NYU = New York University; IRS = Internal Revenue
Service; FDA = Food and Drug Administration; EPA = Environmental Protection Agency; CDC = Centers
for Disease Control and Prevention|Centers for Disease Control; DEA = Drug Enforcement
Administration; NSA = National Security Agency; DOJ = Department of Justice; DHS = Department of
Homeland Security; FAA = Federal Aviation Administration; FCC = Federal Communications Commission;
FEMA = Federal Emergency Management Agency; SEC = Securities and Exchange Commission; NIH = National
Institutes of Health; NOAA = National Oceanic and Atmospheric Administration; NYPD = New York Police
Department|New York City Police Department; LAPD = Los Angeles Police Department; YMCA = Young Men's
Christian Association; NAACP = National Association for the Advancement of Colored People; ACLU =
American Civil Liberties Union; NRA = National Rifle Association; PETA = People for the Ethical
Treatment of Animals; WWF = World Wildlife Fund|World Wide Fund for Nature; ESA = European Space
Agency; IAEA = International Atomic Energy Agency; ASEAN = Association of Southeast Asian Nations;
KGB = Committee for State Security|Komitet Gosudarstvennoy Bezopasnosti; USSR = Union of Soviet
Socialist Republics; UAE = United Arab Emirates; UK = United Kingdom; USA = United States of
America; NYSE = New York Stock Exchange; IEEE = Institute of Electrical and Electronics Engineers;
ISO = International Organization for Standardization|International Standards Organization
"""
_TECHNOLOGY = """
CPU = central processing unit; GPU = graphics processing unit; RAM = random access
memory|random-access memory; ROM = read-only memory|read only memory; USB = universal serial bus;
HTML = hypertext markup language|hyper text markup language; CSS = cascading style sheets; HTTP =
hypertext transfer protocol|hyper text transfer protocol; FTP = file transfer protocol; URL =
uniform resource locator; WWW = world wide web; IP in IP address = internet protocol; TCP =
transmission control protocol; DNS = domain name system|domain name server; LAN = local area
network; WAN = wide area network; VPN = virtual private network; ISP = internet service provider;
PDF = portable document format; JPEG = Joint Photographic Experts Group; GIF = graphics interchange
format; PNG = portable network graphics; MP3 = MPEG-1 Audio Layer III|MPEG Audio Layer 3|MPEG-1
Audio Layer 3|MPEG Layer 3; SQL = structured query language; API = application programming
interface; GUI = graphical user interface; IDE = integrated development environment; OS = operating
system; PC = personal computer; AI = artificial intelligence; LED = light-emitting diode|light
emitting diode; LCD = liquid crystal display|liquid-crystal display; OLED = organic light-emitting
diode|organic light emitting diode; DVD = digital versatile disc|digital video disc; CD in music =
compact disc|compact disk; VHS = video home system; GPS = global positioning system; SMS = short
message service; MMS = multimedia messaging service; PIN = personal identification number; ATM =
automated teller machine|automatic teller machine; CAD = computer-aided design|computer aided
design; VR = virtual reality; AR in technology = augmented reality; IoT = Internet of Things; BIOS =
basic input/output system|basic input output system; SSD = solid-state drive|solid state drive; HDD
= hard disk drive; HDMI = high-definition multimedia interface|high definition multimedia interface;
NFC = near-field communication|near field communication; RFID = radio-frequency identification|radio
frequency identification; SIM in SIM card = subscriber identity module|subscriber identification
module; XML = extensible markup language; JSON = JavaScript Object Notation; ASCII = American
Standard Code for Information Interchange; BASIC = Beginner's All-purpose Symbolic Instruction
Code|Beginners All-purpose Symbolic Instruction Code; UPS for computers = uninterruptible power
supply; CCTV = closed-circuit television|closed circuit television; TV = television; HD in HD video
= high definition; UFO = unidentified flying object; RPM for engines = revolutions per minute; SUV =
sport utility vehicle|sports utility vehicle; ABS in cars = anti-lock braking system|antilock
braking system; AC for cooling = air conditioning; DC in electricity = direct current; AC in
electricity = alternating current; OCR = optical character recognition; CAPTCHA = completely
automated public Turing test to tell computers and humans apart; FAQ = frequently asked
questions|frequently asked question; SEO = search engine optimization; CMS for websites = content
management system; QR in QR code = quick response; VoIP = voice over internet protocol|voice over
IP; DSL = digital subscriber line; RGB = red, green, blue|red green blue; CMYK = cyan, magenta,
yellow, key|cyan, magenta, yellow, black|cyan magenta yellow black; AM on the radio = amplitude
modulation; FM on the radio = frequency modulation
"""
_SCIENCE = """
DNA = deoxyribonucleic acid; RNA = ribonucleic acid; AIDS = acquired immunodeficiency
syndrome|acquired immune deficiency syndrome; HIV = human immunodeficiency virus; MRI = magnetic
resonance imaging; CT in CT scan = computed tomography|computerized tomography; ECG =
electrocardiogram; EEG = electroencephalogram; ICU = intensive care unit; ER in a hospital =
emergency room; CPR = cardiopulmonary resuscitation; BMI = body mass index; IV in a hospital =
intravenous; ADHD = attention deficit hyperactivity disorder|attention-deficit/hyperactivity
disorder; OCD = obsessive-compulsive disorder|obsessive compulsive disorder; PTSD = post-traumatic
stress disorder|posttraumatic stress disorder|post traumatic stress disorder; SIDS = sudden infant
death syndrome; SARS = severe acute respiratory syndrome; STD in medicine = sexually transmitted
disease; TB in medicine = tuberculosis; COPD = chronic obstructive pulmonary disease; ALS =
amyotrophic lateral sclerosis; MS as a disease = multiple sclerosis; IVF = in vitro fertilization|in
vitro fertilisation; PMS = premenstrual syndrome; UTI = urinary tract infection; IQ = intelligence
quotient; EQ = emotional quotient|emotional intelligence quotient; REM in REM sleep = rapid eye
movement; LSD = lysergic acid diethylamide; THC = tetrahydrocannabinol; LDL = low-density
lipoprotein|low density lipoprotein; HDL = high-density lipoprotein|high density lipoprotein; ATP =
adenosine triphosphate; PCR = polymerase chain reaction; GMO = genetically modified organism; SPF on
sunscreen = sun protection factor; UV in UV light = ultraviolet; PVC = polyvinyl chloride; TNT =
trinitrotoluene; DDT = dichlorodiphenyltrichloroethane; CFC = chlorofluorocarbon; pH = potential of
hydrogen|power of hydrogen; LASER = light amplification by stimulated emission of radiation; RADAR =
radio detection and ranging; SONAR = sound navigation and ranging; SCUBA = self-contained underwater
breathing apparatus|self contained underwater breathing apparatus; ISS in space = International
Space Station; SETI = search for extraterrestrial intelligence; STEM in education = science,
technology, engineering, and mathematics|science technology engineering and mathematics|science,
technology, engineering, and math; CERN = European Organization for Nuclear Research|Conseil
Européen pour la Recherche Nucléaire; GMT = Greenwich Mean Time; UTC = Coordinated Universal Time;
BC in dates = before Christ; AD in dates = Anno Domini; CE in dates = Common Era; a.m. = ante
meridiem; p.m. = post meridiem; BTU = British thermal unit; GCD = greatest common divisor; LCM =
least common multiple; PhD = Doctor of Philosophy; MBA = Master of Business Administration; BA as a
degree = Bachelor of Arts; BSc = Bachelor of Science; MD as a degree = Doctor of Medicine|Doctor of
Medicine (MD); GPA = grade point average; SAT, originally = Scholastic Aptitude Test|Scholastic
Assessment Test; ESL = English as a second language; RN in a hospital = registered nurse; MPH on the
road = miles per hour; PSI = pounds per square inch
"""
_EVERYDAY = """
CEO = chief executive officer; CFO = chief financial officer; CTO = chief technology officer|chief
technical officer; COO = chief operating officer; HR in a company = human resources; PR in a company
= public relations; R&D = research and development; GDP = gross domestic product; GNP = gross
national product; VAT = value-added tax|value added tax; IPO = initial public offering; ROI = return
on investment; B2B = business to business|business-to-business; LLC = limited liability company;
Inc. = incorporated; Ltd. = limited; CV = curriculum vitae; VIP = very important person; RSVP =
répondez s'il vous plaît|repondez s'il vous plait|please respond; ASAP = as soon as possible; DIY =
do it yourself|do-it-yourself; FYI = for your information; TBA = to be announced; TBD = to be
determined|to be decided; ETA = estimated time of arrival; AKA = also known as; BYOB = bring your
own bottle|bring your own beer|bring your own booze; BBQ = barbecue|barbeque; PS in a letter =
postscript|post scriptum; P.O. in P.O. box = post office; ZIP in ZIP code = Zone Improvement Plan;
ID = identification|identity|identity document; DOB = date of birth; RIP = rest in peace; SOS,
according to popular belief = save our souls|save our ship; LOL = laughing out loud|laugh out loud;
BRB = be right back; BTW = by the way; IMO = in my opinion; OMG = oh my God|oh my gosh; TGIF = thank
God it's Friday|thank goodness it's Friday; DJ = disc jockey|disk jockey; MC at a show = master of
ceremonies; TLC = tender loving care; PB&J = peanut butter and jelly; BLT = bacon, lettuce, and
tomato|bacon lettuce and tomato|bacon, lettuce and tomato; POW = prisoner of war; MIA = missing in
action; AWOL = absent without leave|absent without official leave; WMD = weapons of mass
destruction|weapon of mass destruction; NGO = non-governmental organization|nongovernmental
organization; MP in Britain = Member of Parliament; PM in Britain = Prime Minister; POTUS =
President of the United States; GOP = Grand Old Party; LGBT = lesbian, gay, bisexual, and
transgender|lesbian gay bisexual and transgender|lesbian, gay, bisexual, transgender; DUI = driving
under the influence; SWAT = special weapons and tactics; EMT = emergency medical technician; K-9 =
canine; RV = recreational vehicle; MVP in sports = most valuable player; KO in boxing =
knockout|knock out; MMA = mixed martial arts; e.g. = exempli gratia|for example; i.e. = id est|that
is; etc. = et cetera|et cetra; vs. = versus; et al. = et alii|and others; N.B. = nota bene|note
well; Dr. = doctor; Mr. = mister; Jr. = junior; Sr. after a name = senior; St. in an address =
street; Ave. = avenue; Blvd. = boulevard; Rd. = road; Apt. = apartment; Dept. = department; approx.
= approximately; max. = maximum; min. = minimum|minute; no. before a digit = number; Jan. = January;
Sept. = September; Thurs. = Thursday; Wed. = Wednesday
"""
_UNITS = """
kg = kilogram; mg = milligram; km = kilometer|kilometre; cm = centimeter|centimetre; mm =
millimeter|millimetre; ml = milliliter|millilitre; lb = pound; oz = ounce; ft = foot|feet; yd =
yard; mi on a map = mile; kW = kilowatt; kWh = kilowatt-hour|kilowatt hour; MHz = megahertz; GHz =
gigahertz; Hz = hertz; dB = decibel; KB = kilobyte; MB = megabyte; GB = gigabyte; TB = terabyte;
kbps = kilobits per second; Mbps = megabits per second; kcal = kilocalorie; kPa = kilopascal; hp =
horsepower; mph = miles per hour; km/h = kilometers per hour|kilometres per hour; fps in video =
frames per second; dpi = dots per inch; ppm = parts per million; sec = second; hr = hour; tsp =
teaspoon; tbsp = tablespoon; gal = gallon; pt in cooking = pint; qt = quart; sq ft = square
feet|square foot; mAh = milliampere-hour|milliamp hour|milliampere hour; nm in optics =
nanometer|nanometre; kV = kilovolt; kN = kilonewton; mol = mole; kJ = kilojoule; bpm in music =
beats per minute; rpm = revolutions per minute; USD = United States dollar|US dollar|U.S. dollar;
GBP = Great British pound|British pound|pound sterling; JPY = Japanese yen; CAD in currency =
Canadian dollar; AUD = Australian dollar; CHF = Swiss franc; EUR = euro; INR = Indian rupee; MXN =
Mexican peso
"""
_STATES = """
AL = Alabama; AK = Alaska; AZ = Arizona; AR = Arkansas; CA = California; CO = Colorado; CT =
Connecticut; DE = Delaware; FL = Florida; GA = Georgia; HI = Hawaii; ID = Idaho; IL = Illinois; IN =
Indiana; IA = Iowa; KS = Kansas; KY = Kentucky; LA = Louisiana; ME = Maine; MD = Maryland; MA =
Massachusetts; MI = Michigan; MN = Minnesota; MS = Mississippi; MO = Missouri; MT = Montana; NE =
Nebraska; NV = Nevada; NH = New Hampshire; NJ = New Jersey; NM = New Mexico; NY = New York; NC =
North Carolina; ND = North Dakota; OH = Ohio; OK = Oklahoma; OR = Oregon; PA = Pennsylvania; RI =
Rhode Island; SC = South Carolina; SD = South Dakota; TN = Tennessee; TX = Texas; UT = Utah; VT =
Vermont; VA = Virginia; WA = Washington; WV = West Virginia; WI = Wisconsin; WY = Wyoming
"""
# Also words of a sentence: whoever looks for them in an answer finds them in wrong ones too.
_WORDS = frozenset(
    (
        *("AL", "DE", "HI", "ID", "IN", "LA", "MA", "ME", "OH", "OK", "OR", "PA"),
        *("WHO", "AIDS", "BASIC", "LASER", "RADAR", "SONAR", "SCUBA", "RAM", "PIN", "SEC"),
    )
)
_LISTS = {
    "organization": _ORGANIZATIONS,
    "technology": _TECHNOLOGY,
    "science": _SCIENCE,
    "everyday": _EVERYDAY,
    "unit": _UNITS,
}
_STANDS_FOR = (
    "What does {of} stand for?",
    "What is {of} short for?",
    "What does the abbreviation {of} mean?",
)
_TEMPLATES = {
    **dict.fromkeys(_LISTS, _STANDS_FOR),
    "short-form": (
        "What is the abbreviation for “{of}”?",
        "How is “{of}” abbreviated?",
        "Which letters are short for “{of}”?",
    ),
    "state": (
        "Which US state has the abbreviation {of}?",
        "What US state does {of} stand for in an address?",
    ),
    "state-code": (
        "What is the two-letter abbreviation of the US state of {of}?",
        "How is {of} abbreviated in US postal addresses?",
    ),
}


def _questions() -> list[Question]:
    return word_questions(_TEMPLATES, [*_entries(), *_short_forms(), *_states()])


def _entries() -> Iterator[Entry]:
    for category, lines in _LISTS.items():
        for line in listed(lines):
            of, _, answers = line.partition(" = ")
            yield entry(category, of.lower().replace(" ", "-"), answers.split("|"), of=of)


def _short_forms() -> Iterator[Entry]:
    """Of three or more capital letters, which are found in an answer without mistakes."""
    for category in ("organization", "technology", "science"):
        for line in listed(_LISTS[category]):
            short, _, answers = line.partition(" = ")
            if len(short) > 2 and short.isalpha() and short.isupper() and short not in _WORDS:
                yield entry("short-form", short.lower(), (short,), of=answers.split("|")[0])


def _states() -> Iterator[Entry]:
    for line in listed(_STATES):
        code, _, name = line.partition(" = ")
        yield entry("state", code.lower(), (name,), of=code)
        if code not in _WORDS:
            yield entry("state-code", code.lower(), (code,), of=name)


ABBREVIATIONS = BuiltInSet(
    name="abbreviations",
    about="what abbreviations stand for, from NASA to kg",
    make=_questions,
)
