"""Chemistry: the elements by name, symbol and number, and common compounds by name and formula."""

import re
from collections.abc import Iterator
from itertools import permutations

from clew.hallucination.questions.records import Question
from clew.hallucination.questions.sets.making import (
    BuiltInSet,
    Entry,
    entry,
    listed,
    number_answers,
    spell,
    word_questions,
)

# Names and symbols of IUPAC's periodic table, in the order of their numbers.
_NAMES = """
H hydrogen He helium Li lithium Be beryllium B boron C carbon N nitrogen O oxygen F fluorine Ne neon
Na sodium Mg magnesium Al aluminum Si silicon P phosphorus S sulfur Cl chlorine Ar argon K potassium
Ca calcium Sc scandium Ti titanium V vanadium Cr chromium Mn manganese Fe iron Co cobalt Ni nickel
Cu copper Zn zinc Ga gallium Ge germanium As arsenic Se selenium Br bromine Kr krypton Rb rubidium
Sr strontium Y yttrium Zr zirconium Nb niobium Mo molybdenum Tc technetium Ru ruthenium Rh rhodium
Pd palladium Ag silver Cd cadmium In indium Sn tin Sb antimony Te tellurium I iodine Xe xenon Cs
cesium Ba barium La lanthanum Ce cerium Pr praseodymium Nd neodymium Pm promethium Sm samarium Eu
europium Gd gadolinium Tb terbium Dy dysprosium Ho holmium Er erbium Tm thulium Yb ytterbium Lu
lutetium Hf hafnium Ta tantalum W tungsten Re rhenium Os osmium Ir iridium Pt platinum Au gold Hg
mercury Tl thallium Pb lead Bi bismuth Po polonium At astatine Rn radon Fr francium Ra radium Ac
actinium Th thorium Pa protactinium U uranium Np neptunium Pu plutonium Am americium Cm curium Bk
berkelium Cf californium Es einsteinium Fm fermium Md mendelevium No nobelium Lr lawrencium Rf
rutherfordium Db dubnium Sg seaborgium Bh bohrium Hs hassium Mt meitnerium Ds darmstadtium Rg
roentgenium Cn copernicium Nh nihonium Fl flerovium Mc moscovium Lv livermorium Ts tennessine Og
oganesson
"""
_PER_CATEGORY = 130
_SPELLINGS = {
    "aluminum": ("aluminium",),
    "sulfur": ("sulphur",),
    "cesium": ("caesium",),
    "tungsten": ("wolfram",),
}
# Also words of a sentence: whoever looks for them in an answer finds them in wrong ones too.
_WORDS = frozenset(("He", "Be", "I", "As", "At", "In", "No", "Am", "NO", "HI"))
# Few people know the numbers of the elements beyond krypton.
_WELL_KNOWN = 36
# Common names first; each is the only common compound of its formula.
_COMPOUNDS = """
H2O water; CO2 carbon dioxide; CO carbon monoxide; NaCl sodium chloride, table salt, salt; NH3
ammonia; CH4 methane; O3 ozone; H2O2 hydrogen peroxide; HCl hydrogen chloride, hydrochloric acid;
H2SO4 sulfuric acid, sulphuric acid; HNO3 nitric acid; H3PO4 phosphoric acid; H2CO3 carbonic acid;
NaOH sodium hydroxide, caustic soda, lye; KOH potassium hydroxide; Ca(OH)2 calcium hydroxide, slaked
lime; Mg(OH)2 magnesium hydroxide; CaCO3 calcium carbonate; Na2CO3 sodium carbonate, soda ash,
washing soda; NaHCO3 sodium bicarbonate, baking soda, sodium hydrogen carbonate; K2CO3 potassium
carbonate, potash; CaO calcium oxide, quicklime; MgO magnesium oxide; Al2O3 aluminum oxide,
aluminium oxide, alumina; SiO2 silicon dioxide, silica; TiO2 titanium dioxide, titania; ZnO zinc
oxide; CuO copper(II) oxide, cupric oxide; Fe2O3 iron(III) oxide, ferric oxide; SO2 sulfur dioxide,
sulphur dioxide; SO3 sulfur trioxide, sulphur trioxide; NO nitric oxide, nitrogen monoxide; NO2
nitrogen dioxide; N2O nitrous oxide, laughing gas; H2S hydrogen sulfide, hydrogen sulphide; HF
hydrogen fluoride, hydrofluoric acid; HBr hydrogen bromide, hydrobromic acid; HI hydrogen iodide,
hydroiodic acid; HCN hydrogen cyanide; KCl potassium chloride; CaCl2 calcium chloride; MgCl2
magnesium chloride; AlCl3 aluminum chloride, aluminium chloride; LiCl lithium chloride; ZnCl2 zinc
chloride; BaCl2 barium chloride; AgCl silver chloride; NaF sodium fluoride; CaF2 calcium fluoride,
fluorite; NaBr sodium bromide; KBr potassium bromide; AgBr silver bromide; NaI sodium iodide; KI
potassium iodide; Na2SO4 sodium sulfate, sodium sulphate; CaSO4 calcium sulfate, calcium sulphate;
MgSO4 magnesium sulfate, magnesium sulphate; CuSO4 copper sulfate, copper(II) sulfate, copper
sulphate; BaSO4 barium sulfate, barium sulphate; ZnSO4 zinc sulfate, zinc sulphate; KNO3 potassium
nitrate, saltpeter, saltpetre; NaNO3 sodium nitrate; AgNO3 silver nitrate; NH4NO3 ammonium nitrate;
NH4Cl ammonium chloride; NaClO sodium hypochlorite; KMnO4 potassium permanganate; K2Cr2O7 potassium
dichromate; NaCN sodium cyanide; KCN potassium cyanide; C2H6 ethane; C3H8 propane; C4H10 butane;
C2H4 ethylene, ethene; C2H2 acetylene, ethyne; C6H6 benzene; C7H8 toluene; C8H18 octane; C6H14
hexane; CH3OH methanol, methyl alcohol; C2H5OH ethanol, ethyl alcohol, alcohol; CH3COOH acetic acid,
ethanoic acid; HCOOH formic acid, methanoic acid; C6H12O6 glucose, fructose; C12H22O11 sucrose,
table sugar; C8H10N4O2 caffeine; C9H8O4 aspirin, acetylsalicylic acid; CHCl3 chloroform,
trichloromethane; CCl4 carbon tetrachloride, tetrachloromethane; CS2 carbon disulfide, carbon
disulphide; SF6 sulfur hexafluoride; UF6 uranium hexafluoride; PCl3 phosphorus trichloride; PCl5
phosphorus pentachloride; BF3 boron trifluoride; PH3 phosphine; SiH4 silane; N2H4 hydrazine; NaH
sodium hydride; LiH lithium hydride; CaC2 calcium carbide; SiC silicon carbide; WC tungsten carbide;
GaAs gallium arsenide; FeS2 pyrite, iron disulfide, fool's gold; PbS lead sulfide, galena; ZnS zinc
sulfide; HgS mercury sulfide, cinnabar; FeS iron sulfide, iron(II) sulfide; Na2O sodium oxide; K2O
potassium oxide; Li2O lithium oxide; PbO2 lead dioxide; MnO2 manganese dioxide
"""
# What each element is known for.
_KNOWN_FOR = """
carbon: do diamonds consist of; hydrogen: is the lightest of all; oxygen: do people need to breathe;
nitrogen: makes up most of the air; helium: makes balloons float; neon: glows red in advertising
signs; sodium: is in table salt besides chlorine; chlorine: is used to disinfect swimming pools;
calcium: makes bones and teeth hard; iron: is the main part of steel; gold: is used for wedding
rings and has the symbol Au; silver: has the Latin name argentum; mercury: is a liquid metal; lead:
has the Latin name plumbum; copper: are most electric wires made of; aluminum: are beverage cans
made of; silicon: are computer chips made of; uranium: is the fuel of most nuclear power plants;
plutonium: was in the bomb dropped on Nagasaki; radium: did Marie Curie discover besides polonium;
zinc: protects galvanized steel; tin: makes bronze together with copper; nickel: gives a US
five-cent coin its name; titanium: is a strong light metal used for hip implants; tungsten: were the
filaments of light bulbs made of; lithium: gives its name to the batteries of phones; phosphorus: is
on the striking surface of match boxes; sulfur: smells of rotten eggs in its compound with hydrogen;
iodine: does the thyroid gland need; fluorine: is in toothpaste as a salt; potassium: are bananas
known to be rich in; magnesium: is at the center of chlorophyll; argon: is the most common noble gas
in the air; xenon: is used in bright car headlights besides halogen lamps; radon: is a radioactive
gas found in cellars; platinum: is the precious metal of catalytic converters; chromium: makes steel
stainless; cobalt: gives blue glass its color; bromine: is the only nonmetal that is liquid at room
temperature; arsenic: was a famous poison of murderers; cadmium: was in rechargeable batteries
together with nickel; boron: is in the cleaning salt borax; barium: do patients swallow as a salt
for X-ray images of the stomach; einsteinium: is named after Albert Einstein; curium: is named after
Marie and Pierre Curie; americium: is in many smoke detectors; polonium: is named after Poland;
francium: is named after France; germanium: is named after Germany; gallium: melts in the hand and
is named after Gaul; neptunium: is named after the planet Neptune; technetium: was the first to be
made artificially; hydrogen : fuels the Sun; oxygen : is the most common in the Earth's crust; iron
: rusts; carbon : is in all organic compounds; nobelium: is named after Alfred Nobel; californium:
is named after California; europium: is named after Europe; selenium: is named after the Moon;
helium : is named after the Sun
"""
_ATOM = re.compile(r"([A-Z][a-z]?)(\d*)")
_TEMPLATES = {
    "symbol": (
        "What is the chemical symbol for {name}?",
        "Which symbol does {name} have in the periodic table?",
        "How do chemists abbreviate the element {name}?",
    ),
    "element": (
        "Which chemical element has the symbol {symbol}?",
        "What element is written as {symbol} in the periodic table?",
        "What does the chemical symbol {symbol} stand for?",
    ),
    "atomic-number": (
        "What is the atomic number of {name}?",
        "How many protons does an atom of {name} have?",
        "At which position of the periodic table is {name}? Give the number.",
    ),
    "by-number": (
        "Which element has the atomic number {number}?",
        "Which chemical element has {number} protons?",
        "What is element number {number} of the periodic table?",
    ),
    "other": (
        "Besides {element}, which element does {formula} contain?",
        "{formula} consists of {element} and which other element?",
        "Which element, besides {element}, is in {name}?",
    ),
    "known-for": ("Which chemical element {name}?", "What element {name}?"),
    "formula": (
        "What is the chemical formula of {name}?",
        "How is {name} written as a chemical formula?",
    ),
    "compound": (
        "Which compound has the chemical formula {formula}?",
        "What is the name of the compound {formula}?",
    ),
    "atoms": (
        "How many {element} atoms are in {formula}?",
        "How many atoms of {element} does the formula {formula} contain?",
    ),
}


def _questions() -> list[Question]:
    entries = [*_about_elements(), *_known_for(), *_about_compounds()]
    return word_questions(_TEMPLATES, entries, _PER_CATEGORY)


def _elements() -> list[tuple[str, str]]:
    words = _NAMES.split()
    return list(zip(words[::2], words[1::2], strict=True))


def _about_elements() -> Iterator[Entry]:
    elements = _elements()
    for number, (symbol, name) in enumerate(elements, 1):
        names, key = (name, *_SPELLINGS.get(name, ())), symbol.lower()
        if symbol not in _WORDS:
            yield entry("symbol", key, (symbol,), name=name)
        yield entry("element", key, names, symbol=symbol)
        if number <= _WELL_KNOWN:
            yield entry("atomic-number", key, number_answers(number), name=name)
            yield entry("by-number", key, names, number=number)


def _known_for() -> Iterator[Entry]:
    for line in listed(_KNOWN_FOR):
        name, _, what = line.partition(": ")
        names = (name.strip(), *_SPELLINGS.get(name.strip(), ()))
        yield entry("known-for", what.replace(" ", "-").lower(), names, name=what)


def _about_compounds() -> Iterator[Entry]:
    names = dict(_elements())
    for line in listed(_COMPOUNDS):
        formula, _, names_text = line.partition(" ")
        accepted, key = names_text.split(", "), formula.lower()
        if formula not in _WORDS:
            yield entry("formula", key, (formula,), name=accepted[0])
        yield entry("compound", key, accepted, formula=formula)
        counts = _count_atoms(formula)
        if len(counts) == len(set(_ATOM.findall(formula))) == 2:
            for symbol, other in permutations(counts):
                values = {"element": names[symbol], "formula": formula, "name": accepted[0]}
                answers = (names[other], *_SPELLINGS.get(names[other], ()))
                yield entry("other", f"{key}-{other}", answers, **values)
        for symbol, count in counts.items():
            answers = (str(count), spell(count))
            yield entry("atoms", f"{key}-{symbol}", answers, element=names[symbol], formula=formula)


def _count_atoms(formula: str) -> dict[str, int]:
    """The atoms that occur once in the formula, with a number that the formula does not hide."""
    if "(" in formula:
        return {}
    found = _ATOM.findall(formula)
    symbols = [symbol for symbol, _ in found]
    return {symbol: int(count or 1) for symbol, count in found if symbols.count(symbol) == 1}


ELEMENTS = BuiltInSet(
    name="elements",
    about="chemical elements and compounds: symbols, numbers, formulas",
    make=_questions,
)
