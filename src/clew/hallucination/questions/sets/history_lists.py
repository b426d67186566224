"""Discoveries, people, places and events, as every encyclopedia has them: written for this file
from common knowledge. One fact per entry: what is asked about = the accepted answers."""

DISCOVERIES = """
the telephone = Alexander Graham Bell|Bell|Antonio Meucci|Meucci; the phonograph = Thomas
Edison|Edison; dynamite = Alfred Nobel|Nobel; penicillin = Alexander Fleming|Fleming; the theory of
general relativity = Albert Einstein|Einstein; X-rays = Wilhelm Röntgen|Wilhelm
Roentgen|Röntgen|Roentgen; radium = Marie Curie|Curie; the electron = J. J. Thomson|Thomson; the
neutron = James Chadwick|Chadwick; the atomic nucleus = Ernest Rutherford|Rutherford; the laws of
planetary motion = Johannes Kepler|Kepler; the law of universal gravitation = Isaac Newton|Newton;
the periodic table = Dmitri Mendeleev|Mendeleev; the theory of evolution by natural selection =
Charles Darwin|Darwin|Alfred Russel Wallace; the laws of inheritance in peas = Gregor Mendel|Mendel;
the smallpox vaccine = Edward Jenner|Jenner; the rabies vaccine = Louis Pasteur|Pasteur; the polio
vaccine = Jonas Salk|Salk|Sabin; the tuberculosis bacterium = Robert Koch|Koch; the circulation of
the blood = William Harvey; the structure of DNA = James Watson|Watson|Francis Crick|Crick|Rosalind
Franklin; oxygen = Joseph Priestley|Priestley|Carl Wilhelm Scheele|Scheele; hydrogen = Henry
Cavendish|Cavendish; the planet Uranus = William Herschel|Herschel; the dwarf planet Pluto = Clyde
Tombaugh|Tombaugh; the four large moons of Jupiter = Galileo Galilei|Galileo; the electric battery =
Alessandro Volta|Volta; the lightning rod = Benjamin Franklin|Ben Franklin; the printing press with
movable type in Europe = Johannes Gutenberg|Gutenberg; the World Wide Web = Tim
Berners-Lee|Berners-Lee; the cotton gin = Eli Whitney|Whitney; the modern steam engine = James
Watt|Watt; the diesel engine = Rudolf Diesel; the first practical airplane = Wright brothers|Wilbur
Wright|Orville Wright|Wright; the mercury thermometer = Daniel Gabriel Fahrenheit|Daniel
Fahrenheit|Gabriel Fahrenheit; the Celsius temperature scale = Anders Celsius; the reading system
for the blind = Louis Braille; the code of dots and dashes for the telegraph = Samuel Morse|Samuel
F. B. Morse|Samuel F.B. Morse|Alfred Vail; the saxophone = Adolphe Sax; the modern light bulb =
Thomas Edison|Edison|Joseph Swan; the radio = Guglielmo Marconi|Marconi|Nikola Tesla|Tesla;
alternating current motors = Nikola Tesla|Tesla; television = John Logie Baird|Baird|Philo
Farnsworth|Farnsworth; the assembly line for cars = Henry Ford|Ford|Ransom Olds; the uncertainty
principle = Werner Heisenberg|Heisenberg; quantum theory = Max Planck|Planck; the wave equation of
quantum mechanics = Erwin Schrödinger|Schrödinger|Schrodinger; the exclusion principle in physics =
Wolfgang Pauli|Pauli; electromagnetic induction = Michael Faraday|Faraday; the equations of
electromagnetism = James Clerk Maxwell|Maxwell; radioactivity = Henri Becquerel|Becquerel;
psychoanalysis = Sigmund Freud|Freud; conditioned reflexes in dogs = Ivan Pavlov|Pavlov; the
expansion of the universe = Edwin Hubble|Georges Lemaître|Lemaître; the heliocentric model of the
solar system = Nicolaus Copernicus|Copernicus|Aristarchus; the principle of buoyancy = Archimedes;
continental drift = Alfred Wegener|Wegener; insulin = Frederick Banting|Banting; blood groups = Karl
Landsteiner|Landsteiner; the Turing machine = Alan Turing; the Analytical Engine = Charles
Babbage|Babbage; vulcanized rubber = Charles Goodyear; the safety elevator = Elisha Otis|Elisha
Graves Otis; the revolver of the American West = Samuel Colt; the hot-air balloon = Montgolfier
brothers|Montgolfier
"""
FILMS = """
Psycho = Alfred Hitchcock|Hitchcock; Vertigo = Alfred Hitchcock|Hitchcock; The Birds = Alfred
Hitchcock|Hitchcock; Citizen Kane = Orson Welles|Welles; Jaws = Steven Spielberg|Spielberg;
Schindler's List = Steven Spielberg|Spielberg; Jurassic Park = Steven Spielberg|Spielberg; E.T. the
Extra-Terrestrial = Steven Spielberg|Spielberg; Star Wars (1977) = George Lucas|Lucas; Titanic
(1997) = James Cameron|Cameron; Avatar = James Cameron|Cameron; The Terminator = James
Cameron|Cameron; The Godfather = Francis Ford Coppola|Coppola; Apocalypse Now = Francis Ford
Coppola|Coppola; Taxi Driver = Martin Scorsese|Scorsese; Goodfellas = Martin Scorsese|Scorsese;
Raging Bull = Martin Scorsese|Scorsese; Pulp Fiction = Quentin Tarantino|Tarantino; Kill Bill =
Quentin Tarantino|Tarantino; Reservoir Dogs = Quentin Tarantino|Tarantino; 2001: A Space Odyssey =
Stanley Kubrick|Kubrick; The Shining = Stanley Kubrick|Kubrick; A Clockwork Orange = Stanley
Kubrick|Kubrick; Inception = Christopher Nolan|Nolan; The Dark Knight = Christopher Nolan|Nolan;
Interstellar = Christopher Nolan|Nolan; Seven Samurai = Akira Kurosawa|Kurosawa; Rashomon = Akira
Kurosawa|Kurosawa; Spirited Away = Hayao Miyazaki|Miyazaki; Metropolis = Fritz Lang; Nosferatu
(1922) = F. W. Murnau|Murnau; Battleship Potemkin = Sergei Eisenstein|Eisenstein; The Seventh Seal =
Ingmar Bergman|Bergman; La Dolce Vita = Federico Fellini|Fellini; 8½ = Federico Fellini|Fellini;
Bicycle Thieves = Vittorio De Sica|De Sica; Breathless = Jean-Luc Godard|Godard; The 400 Blows =
François Truffaut|Truffaut; Modern Times = Charlie Chaplin|Chaplin; The Great Dictator = Charlie
Chaplin|Chaplin; City Lights = Charlie Chaplin|Chaplin; Casablanca = Michael Curtiz|Curtiz; Some
Like It Hot = Billy Wilder|Wilder; Lawrence of Arabia = David Lean; Blade Runner = Ridley Scott;
Alien = Ridley Scott; Gladiator = Ridley Scott; Annie Hall = Woody Allen; Fight Club = David
Fincher|Fincher; Fargo = Coen brothers|Joel Coen|Ethan Coen|Coen; Forrest Gump = Robert
Zemeckis|Zemeckis; Back to the Future = Robert Zemeckis|Zemeckis; Parasite = Bong Joon-ho|Bong Joon
Ho; Amélie = Jean-Pierre Jeunet|Jeunet; Solaris (1972) = Andrei Tarkovsky|Tarkovsky; The Silence of
the Lambs = Jonathan Demme|Demme; Braveheart = Mel Gibson|Gibson; Million Dollar Baby = Clint
Eastwood|Eastwood
"""
GODS = """
Greek god of the sea = Poseidon; Greek god of the underworld = Hades; king of the Greek gods = Zeus;
Greek goddess of love = Aphrodite; Greek goddess of wisdom = Athena|Athene; Greek god of war = Ares;
Greek god of wine = Dionysus|Dionysos; Greek messenger of the gods = Hermes; Greek goddess of the
hunt = Artemis; Greek goddess of the harvest = Demeter; Greek god of fire and smiths =
Hephaestus|Hephaistos; wife of Zeus = Hera; Greek goddess of victory = Nike; Greek goddess of the
rainbow = Iris; Roman god of the sea = Neptune; Roman god of war = Mars; king of the Roman gods =
Jupiter|Jove; Roman goddess of love = Venus; Roman goddess of wisdom = Minerva; Roman messenger of
the gods = Mercury; Roman goddess of the hunt = Diana; Roman god of the underworld = Pluto; Roman
god of wine = Bacchus; Roman god of fire = Vulcan; Roman god with two faces = Janus; Roman goddess
of the harvest = Ceres; Roman goddess of the hearth = Vesta; Norse god of thunder = Thor; chief of
the Norse gods = Odin; Norse trickster god = Loki; Norse goddess of love = Freyja|Freya; Egyptian
god of the dead with a jackal's head = Anubis; Egyptian god of the sun = Ra; Egyptian goddess who
was the wife of Osiris = Isis; Egyptian god with a falcon's head = Horus|Ra; Hindu god with an
elephant's head = Ganesha|Ganesh; Hindu god called the destroyer = Shiva; Hindu god called the
preserver = Vishnu; Hindu goddess of wealth = Lakshmi; Greek hero who killed the Minotaur = Theseus;
Greek hero who killed Medusa = Perseus; Greek hero who performed twelve labors = Heracles|Hercules;
Greek hero with a weak heel = Achilles; Greek king who turned everything to gold = Midas; first
woman in Greek myth who opened a box of evils = Pandora; titan who carries the sky = Atlas; titan
who stole fire for humans = Prometheus; winged horse of Greek myth = Pegasus; three-headed dog of
the underworld = Cerberus; king who pulled the sword from the stone = Arthur; wizard of King
Arthur's court = Merlin; founders of Rome raised by a wolf = Romulus and Remus|Romulus
"""
YEARS = """
Columbus first reach America = 1492; World War I begin = 1914; World War I end = 1918; World War II
begin = 1939; World War II end = 1945; the French Revolution begin = 1789; the United States declare
independence = 1776; the Berlin Wall fall = 1989; the Berlin Wall go up = 1961; humans first land on
the Moon = 1969; the Titanic sink = 1912; the American Civil War begin = 1861; the American Civil
War end = 1865; the Russian Revolution take place = 1917; the Battle of Hastings take place = 1066;
King John agree to the Magna Carta = 1215; Constantinople fall to the Ottomans = 1453; the Great
Fire of London happen = 1666; Martin Luther publish his Ninety-five Theses = 1517; the Spanish
Armada sail against England = 1588; the Mayflower reach America = 1620; the Battle of Waterloo take
place = 1815; Queen Victoria become queen = 1837; Queen Victoria die = 1901; Queen Elizabeth II
become queen = 1952; the Soviet Union dissolve = 1991; the Chernobyl disaster happen = 1986; John F.
Kennedy die = 1963; Abraham Lincoln die = 1865; Martin Luther King Jr. die = 1968; Nelson Mandela
become president of South Africa = 1994; India become independent = 1947; the state of Israel come
into being = 1948; the People's Republic of China begin = 1949; the Great Depression begin with the
stock market crash = 1929; Hitler become chancellor of Germany = 1933; Japan attack Pearl Harbor =
1941; D-Day take place = 1944; the first atomic bomb fall on Hiroshima = 1945; Sputnik 1 fly into
space = 1957; Yuri Gagarin fly into space = 1961; the Suez Canal open = 1869; the Panama Canal open
= 1914; the Eiffel Tower open = 1889; the Statue of Liberty open in New York = 1886; the first
modern Olympic Games take place = 1896; the first soccer World Cup take place = 1930; the Wright
brothers make their first flight = 1903; Charles Darwin publish On the Origin of Species = 1859;
Isaac Newton publish the Principia = 1687; Mozart die = 1791; Shakespeare die = 1616; Napoleon
become emperor = 1804; Napoleon die = 1821; Julius Caesar die, in BC = 44; the Western Roman Empire
fall = 476; Charlemagne become emperor = 800; the Black Death reach Europe = 1347|1348; Joan of Arc
die = 1431; Vasco da Gama reach India = 1498; the euro coins and notes come into use = 2002; Barack
Obama become president = 2009; the attacks of September 11 happen = 2001; the iPhone come out =
2007; the United Kingdom leave the European Union = 2020; Hong Kong return to China = 1997; Germany
reunite = 1990; the Vietnam War end = 1975; the Korean War begin = 1950; the Korean War end = 1953;
the Cuban Missile Crisis happen = 1962; Richard Nixon resign = 1974; Margaret Thatcher become prime
minister = 1979; Princess Diana die = 1997; Elvis Presley die = 1977; John Lennon die = 1980; the
Beatles break up = 1970; Mount St. Helens erupt = 1980; the San Francisco earthquake destroy the
city = 1906; Alaska become a US state = 1959; Louisiana come to the United States by purchase =
1803; slavery end in the British Empire = 1833|1834; women get the vote across the United States =
1920; Prohibition end in the United States = 1933; the United Nations come into being = 1945; NATO
come into being = 1949; Pluto lose its status as a planet = 2006; the Hubble Space Telescope fly
into space = 1990; the Challenger space shuttle explode = 1986; the Ming dynasty end = 1644
"""
PEOPLE = """
Vincent van Gogh = Netherlands|Dutch|Holland; Pablo Picasso = Spain|Spanish; Leonardo da Vinci =
Italy|Italian; Wolfgang Amadeus Mozart = Austria|Austrian; Ludwig van Beethoven = Germany|German;
Frédéric Chopin = Poland|Polish; Claude Monet = France|French; Edvard Munch = Norway|Norwegian;
Antonio Vivaldi = Italy|Italian; Pyotr Tchaikovsky = Russia|Russian; Jean Sibelius =
Finland|Finnish; Antonín Dvořák = Czech|Czechia|Bohemia; Franz Liszt = Hungary|Hungarian; Rembrandt
= Netherlands|Dutch|Holland; Frida Kahlo = Mexico|Mexican; Salvador Dalí = Spain|Spanish; Hans
Christian Andersen = Denmark|Danish; Henrik Ibsen = Norway|Norwegian; August Strindberg =
Sweden|Swedish; Astrid Lindgren = Sweden|Swedish; Leo Tolstoy = Russia|Russian; Miguel de Cervantes
= Spain|Spanish; Dante Alighieri = Italy|Italian; Victor Hugo = France|French; Johann Wolfgang von
Goethe = Germany|German; James Joyce = Ireland|Irish; Oscar Wilde = Ireland|Irish; Gabriel García
Márquez = Colombia|Colombian; Pablo Neruda = Chile|Chilean; Jorge Luis Borges =
Argentina|Argentine|Argentinian; Mahatma Gandhi = India|Indian; Nelson Mandela = South Africa; Kofi
Annan = Ghana|Ghanaian; Simón Bolívar = Venezuela|Venezuelan; Che Guevara =
Argentina|Argentine|Argentinian; Fidel Castro = Cuba|Cuban; Mao Zedong = China|Chinese; Ho Chi Minh
= Vietnam|Vietnamese; Confucius = China|Chinese; Winston Churchill = United
Kingdom|Britain|British|England|English|UK; Margaret Thatcher = United
Kingdom|Britain|British|England|English|UK; Charles de Gaulle = France|French; Otto von Bismarck =
Germany|German|Prussia; Mustafa Kemal Atatürk = Turkey|Turkish|Ottoman; Golda Meir =
Ukraine|Russia|Russian Empire; Lech Wałęsa = Poland|Polish; Marie Curie = Poland|Polish; Nicolaus
Copernicus = Poland|Polish; Galileo Galilei = Italy|Italian; Isaac Newton =
England|English|British|United Kingdom|Britain; Albert Einstein = Germany|German; Nikola Tesla =
Croatia|Austrian Empire|Austria; Alfred Nobel = Sweden|Swedish; Carl Linnaeus = Sweden|Swedish;
Anders Celsius = Sweden|Swedish; Niels Bohr = Denmark|Danish; Tycho Brahe = Denmark|Danish; Louis
Pasteur = France|French; René Descartes = France|French; Jean-Jacques Rousseau =
Switzerland|Swiss|Geneva; Immanuel Kant = Germany|German|Prussia; Friedrich Nietzsche =
Germany|German|Prussia; Søren Kierkegaard = Denmark|Danish; Baruch Spinoza =
Netherlands|Dutch|Holland; Erasmus = Netherlands|Dutch|Holland; Sigmund Freud = Austria|Austrian;
Alexander Fleming = Scotland|Scottish|British|United Kingdom; James Watt =
Scotland|Scottish|British|United Kingdom; Adam Smith = Scotland|Scottish|British|United Kingdom;
David Hume = Scotland|Scottish|British|United Kingdom; Robert Burns =
Scotland|Scottish|British|United Kingdom; Marco Polo = Italy|Italian|Venice; Christopher Columbus =
Italy|Italian|Genoa; Vasco da Gama = Portugal|Portuguese; Ferdinand Magellan = Portugal|Portuguese;
Roald Amundsen = Norway|Norwegian; James Cook = England|English|British|United Kingdom|Britain;
Edmund Hillary = New Zealand; Abel Tasman = Netherlands|Dutch|Holland; Henry the Navigator =
Portugal|Portuguese; Yuri Gagarin = Russia|Russian|Soviet; Pelé = Brazil|Brazilian; Diego Maradona =
Argentina|Argentine|Argentinian; Lionel Messi = Argentina|Argentine|Argentinian; Cristiano Ronaldo =
Portugal|Portuguese; Roger Federer = Switzerland|Swiss; Rafael Nadal = Spain|Spanish; Novak Djokovic
= Serbia|Serbian; Björn Borg = Sweden|Swedish; Usain Bolt = Jamaica|Jamaican; Bob Marley =
Jamaica|Jamaican; Eddy Merckx = Belgium|Belgian; Ayrton Senna = Brazil|Brazilian; Michael Schumacher
= Germany|German; Akira Kurosawa = Japan|Japanese; Bruce Lee = United States|USA|America; Ingmar
Bergman = Sweden|Swedish; Federico Fellini = Italy|Italian; Luciano Pavarotti = Italy|Italian; Maria
Callas = Greece|Greek|United States|American; Björk = Iceland|Icelandic; Celine Dion =
Canada|Canadian; Shakira = Colombia|Colombian; Rihanna = Barbados|Barbadian; Freddie Mercury =
United Kingdom|Britain|British|England|Zanzibar|Tanzania; Edith Piaf = France|French; Georges
Simenon = Belgium|Belgian; René Magritte = Belgium|Belgian; Le Corbusier = Switzerland|Swiss; Antoni
Gaudí = Spain|Spanish|Catalonia|Catalan; Alvar Aalto = Finland|Finnish
"""
LANDMARKS = """
the Eiffel Tower = Paris; the Colosseum = Rome; Big Ben = London; the Brandenburg Gate = Berlin; the
Sagrada Família = Barcelona; the Acropolis = Athens; the Kremlin = Moscow; the Hermitage Museum =
Saint Petersburg|St. Petersburg; the Little Mermaid statue = Copenhagen; the Anne Frank House =
Amsterdam; the Manneken Pis = Brussels; the Charles Bridge = Prague; the Fisherman's Bastion =
Budapest; Schönbrunn Palace = Vienna; the Hagia Sophia = Istanbul; the Blue Mosque = Istanbul; the
Taj Mahal = Agra; the Gateway of India = Mumbai|Bombay; the Forbidden City = Beijing; the Bund =
Shanghai; Victoria Peak = Hong Kong; the Petronas Towers = Kuala Lumpur; Marina Bay Sands =
Singapore; the Burj Khalifa = Dubai; the Golden Gate Bridge = San Francisco; Alcatraz = San
Francisco; the Statue of Liberty = New York; the Empire State Building = New York; Central Park =
New York; the White House = Washington; the Lincoln Memorial = Washington; the Liberty Bell =
Philadelphia; the Space Needle = Seattle; the Gateway Arch = St. Louis|Saint Louis; the Willis Tower
= Chicago; Beale Street = Memphis; the French Quarter = New Orleans; the Alamo = San Antonio; the
Hollywood Sign = Los Angeles; the CN Tower = Toronto; Christ the Redeemer = Rio de Janeiro;
Copacabana beach = Rio de Janeiro; the Sydney Opera House = Sydney; Table Mountain = Cape Town; the
Louvre = Paris; the Prado Museum = Madrid; the Uffizi Gallery = Florence; the Ponte Vecchio =
Florence; the Rialto Bridge = Venice; St Mark's Square = Venice; La Scala opera house = Milan; the
Trevi Fountain = Rome; the Spanish Steps = Rome; Buckingham Palace = London; Tower Bridge = London;
the Guinness Storehouse = Dublin; the Royal Mile = Edinburgh; the Atomium = Brussels; the
Rijksmuseum = Amsterdam; the Vasa Museum = Stockholm; the Belém Tower = Lisbon; the Alhambra =
Granada; Checkpoint Charlie = Berlin; the Elbphilharmonie = Hamburg; Oktoberfest = Munich; the
Zwinger = Dresden; Mozart's birthplace = Salzburg; the Wawel Castle = Kraków|Krakow|Cracow; the
Western Wall = Jerusalem; the Kaaba = Mecca|Makkah; Tiananmen Square = Beijing; the Sensō-ji temple
= Tokyo; the Golden Pavilion Kinkaku-ji = Kyoto; the Casa Rosada = Buenos Aires; the Hofburg =
Vienna; the Bolshoi Theatre = Moscow; the Pantheon = Rome|Paris
"""
STATE_CAPITALS = """
Alabama = Montgomery; Alaska = Juneau; Arizona = Phoenix; Arkansas = Little Rock; California =
Sacramento; Colorado = Denver; Connecticut = Hartford; Delaware = Dover; Florida = Tallahassee;
Georgia = Atlanta; Hawaii = Honolulu; Idaho = Boise; Illinois = Springfield; Iowa = Des Moines;
Kansas = Topeka; Kentucky = Frankfort; Louisiana = Baton Rouge; Maine = Augusta; Maryland =
Annapolis; Massachusetts = Boston; Michigan = Lansing; Minnesota = Saint Paul|St. Paul; Mississippi
= Jackson; Missouri = Jefferson City; Montana = Helena; Nebraska = Lincoln; Nevada = Carson City;
New Hampshire = Concord; New Jersey = Trenton; New Mexico = Santa Fe; New York = Albany; North
Carolina = Raleigh; North Dakota = Bismarck; Ohio = Columbus; Oregon = Salem; Pennsylvania =
Harrisburg; Rhode Island = Providence; South Carolina = Columbia; South Dakota = Pierre; Tennessee =
Nashville; Texas = Austin; Utah = Salt Lake City; Vermont = Montpelier; Virginia = Richmond;
Washington = Olympia; West Virginia = Charleston; Wisconsin = Madison; Wyoming = Cheyenne
"""
CHARACTERS = """
Sherlock Holmes = Arthur Conan Doyle|Conan Doyle|Doyle; Hercule Poirot = Agatha Christie|Christie;
Miss Marple = Agatha Christie|Christie; James Bond = Ian Fleming|Fleming; Harry Potter = J. K.
Rowling|Rowling; Frodo Baggins = J. R. R. Tolkien|Tolkien; Ebenezer Scrooge = Charles
Dickens|Dickens; Captain Ahab = Herman Melville|Melville; Mr. Darcy = Jane Austen|Austen; Heathcliff
= Emily Brontë|Emily Bronte; Jean Valjean = Victor Hugo|Hugo; Quasimodo = Victor Hugo|Hugo; Captain
Nemo = Jules Verne|Verne; d'Artagnan = Alexandre Dumas|Dumas; Sancho Panza = Miguel de
Cervantes|Cervantes; Raskolnikov = Fyodor Dostoevsky|Dostoevsky|Dostoyevsky; Gregor Samsa = Franz
Kafka|Kafka; Josef K. = Franz Kafka|Kafka; Winston Smith = George Orwell|Orwell; Atticus Finch =
Harper Lee; Holden Caulfield = J. D. Salinger|Salinger; Jay Gatsby = F. Scott Fitzgerald|Fitzgerald;
Long John Silver = Robert Louis Stevenson|Stevenson; Dr. Jekyll = Robert Louis Stevenson|Stevenson;
Mowgli = Rudyard Kipling|Kipling; Captain Hook = J. M. Barrie|Barrie; the Mad Hatter = Lewis
Carroll|Carroll; Willy Wonka = Roald Dahl|Dahl; Katniss Everdeen = Suzanne Collins|Collins; Lisbeth
Salander = Stieg Larsson|Larsson; Hannibal Lecter = Thomas Harris|Harris; Jack Ryan = Tom
Clancy|Clancy; Philip Marlowe = Raymond Chandler|Chandler; Sam Spade = Dashiell Hammett|Hammett;
Inspector Maigret = Georges Simenon|Simenon; Tintin = Hergé|Herge|Georges Remi; Asterix = René
Goscinny|Goscinny|Uderzo; Paddington Bear = Michael Bond; Peter Rabbit = Beatrix Potter|Potter; the
Gruffalo = Julia Donaldson|Donaldson; Mickey Mouse = Walt Disney|Disney|Ub Iwerks; Charlie Brown =
Charles Schulz|Charles M. Schulz|Schulz; Superman = Jerry Siegel|Siegel|Joe Shuster|Shuster; Batman
= Bob Kane|Kane|Bill Finger; Spider-Man = Stan Lee|Steve Ditko|Ditko; Natty Bumppo = James Fenimore
Cooper|Cooper; Ichabod Crane = Washington Irving|Irving; Dorian Gray = Oscar Wilde|Wilde; Uriah Heep
= Charles Dickens|Dickens; Becky Sharp = William Makepeace Thackeray|Thackeray; Leopold Bloom =
James Joyce|Joyce; Tom Joad = John Steinbeck|Steinbeck; Scout Finch = Harper Lee; Humbert Humbert =
Vladimir Nabokov|Nabokov; Puck = William Shakespeare|Shakespeare; Falstaff = William
Shakespeare|Shakespeare; Shylock = William Shakespeare|Shakespeare; Iago = William
Shakespeare|Shakespeare; Pippi Longstocking = Astrid Lindgren|Lindgren; Moomintroll = Tove
Jansson|Jansson; Pinocchio = Carlo Collodi|Collodi; the Little Mermaid = Hans Christian
Andersen|Andersen; the Ugly Duckling = Hans Christian Andersen|Andersen
"""
