"""Works and their makers, people, myths and events, as every encyclopedia has them: written for
this file from common knowledge. One fact per entry: what is asked about = the accepted answers."""

NOVELS = """
Pride and Prejudice = Jane Austen|Austen; Emma = Jane Austen|Austen; Sense and Sensibility = Jane
Austen|Austen; Jane Eyre = Charlotte Brontë|Charlotte Bronte; Wuthering Heights = Emily Brontë|Emily
Bronte; Great Expectations = Charles Dickens|Dickens; Oliver Twist = Charles Dickens|Dickens; A Tale
of Two Cities = Charles Dickens|Dickens; David Copperfield = Charles Dickens|Dickens; Bleak House =
Charles Dickens|Dickens; Moby-Dick = Herman Melville|Melville; The Scarlet Letter = Nathaniel
Hawthorne|Hawthorne; The Adventures of Huckleberry Finn = Mark Twain|Twain|Samuel Clemens; The
Adventures of Tom Sawyer = Mark Twain|Twain|Samuel Clemens; War and Peace = Leo Tolstoy|Tolstoy;
Anna Karenina = Leo Tolstoy|Tolstoy; Crime and Punishment = Fyodor
Dostoevsky|Dostoevsky|Dostoyevsky; The Brothers Karamazov = Fyodor
Dostoevsky|Dostoevsky|Dostoyevsky; The Idiot = Fyodor Dostoevsky|Dostoevsky|Dostoyevsky; Fathers and
Sons = Ivan Turgenev|Turgenev; Dead Souls = Nikolai Gogol|Gogol; Doctor Zhivago = Boris
Pasternak|Pasternak; The Master and Margarita = Mikhail Bulgakov|Bulgakov; Lolita = Vladimir
Nabokov|Nabokov; Don Quixote = Miguel de Cervantes|Cervantes; One Hundred Years of Solitude =
Gabriel García Márquez|García Márquez|Marquez; Love in the Time of Cholera = Gabriel García
Márquez|García Márquez|Marquez; The House of the Spirits = Isabel Allende|Allende; Les Misérables =
Victor Hugo|Hugo; The Hunchback of Notre-Dame = Victor Hugo|Hugo; The Count of Monte Cristo =
Alexandre Dumas|Dumas; The Three Musketeers = Alexandre Dumas|Dumas; Madame Bovary = Gustave
Flaubert|Flaubert; Germinal = Émile Zola|Emile Zola|Zola; Candide = Voltaire; The Stranger = Albert
Camus|Camus; The Plague = Albert Camus|Camus; Nausea = Jean-Paul Sartre|Sartre; Twenty Thousand
Leagues Under the Sea = Jules Verne|Verne; Around the World in Eighty Days = Jules Verne|Verne; The
Little Prince = Antoine de Saint-Exupéry|Saint-Exupéry|Saint-Exupery; In Search of Lost Time =
Marcel Proust|Proust; The Red and the Black = Stendhal|Marie-Henri Beyle; The Magic Mountain =
Thomas Mann; Buddenbrooks = Thomas Mann; Steppenwolf = Hermann Hesse|Hesse; Siddhartha = Hermann
Hesse|Hesse; The Tin Drum = Günter Grass|Guenter Grass; The Trial = Franz Kafka|Kafka; The
Metamorphosis = Franz Kafka|Kafka; All Quiet on the Western Front = Erich Maria Remarque|Remarque;
The Name of the Rose = Umberto Eco|Eco; The Leopard = Giuseppe Tomasi di Lampedusa|Lampedusa; 1984 =
George Orwell|Orwell|Eric Blair; Animal Farm = George Orwell|Orwell|Eric Blair; Brave New World =
Aldous Huxley|Huxley; Lord of the Flies = William Golding|Golding; The Hobbit = J. R. R.
Tolkien|Tolkien; The Lord of the Rings = J. R. R. Tolkien|Tolkien; The Chronicles of Narnia = C. S.
Lewis|C.S. Lewis|Clive Staples Lewis; Alice's Adventures in Wonderland = Lewis
Carroll|Carroll|Charles Dodgson; Peter Pan = J. M. Barrie|Barrie; The Jungle Book = Rudyard
Kipling|Kipling; Treasure Island = Robert Louis Stevenson|Stevenson; Robinson Crusoe = Daniel
Defoe|Defoe; Gulliver's Travels = Jonathan Swift|Swift; Frankenstein = Mary Shelley; Dracula = Bram
Stoker|Stoker; The Picture of Dorian Gray = Oscar Wilde|Wilde; The Time Machine = H. G. Wells|Wells;
The War of the Worlds = H. G. Wells|Wells; The Invisible Man = H. G. Wells|Wells; Heart of Darkness
= Joseph Conrad|Conrad; Ulysses = James Joyce; Dubliners = James Joyce; Mrs Dalloway = Virginia
Woolf|Woolf; To the Lighthouse = Virginia Woolf|Woolf; A Passage to India = E. M. Forster|Forster;
Lady Chatterley's Lover = D. H. Lawrence|D.H. Lawrence; Middlemarch = George Eliot|Mary Ann Evans;
Vanity Fair = William Makepeace Thackeray|Thackeray; Tess of the d'Urbervilles = Thomas Hardy|Hardy;
Ivanhoe = Walter Scott; The Hound of the Baskervilles = Arthur Conan Doyle|Conan Doyle|Doyle; Murder
on the Orient Express = Agatha Christie|Christie; And Then There Were None = Agatha
Christie|Christie; Rebecca = Daphne du Maurier|du Maurier; Brideshead Revisited = Evelyn
Waugh|Waugh; A Clockwork Orange = Anthony Burgess|Burgess; Watership Down = Richard Adams|Adams; The
Hitchhiker's Guide to the Galaxy = Douglas Adams|Adams; The Great Gatsby = F. Scott
Fitzgerald|Fitzgerald; Tender Is the Night = F. Scott Fitzgerald|Fitzgerald; The Old Man and the Sea
= Ernest Hemingway|Hemingway; A Farewell to Arms = Ernest Hemingway|Hemingway; For Whom the Bell
Tolls = Ernest Hemingway|Hemingway; The Grapes of Wrath = John Steinbeck|Steinbeck; Of Mice and Men
= John Steinbeck|Steinbeck; East of Eden = John Steinbeck|Steinbeck; The Sound and the Fury =
William Faulkner|Faulkner; To Kill a Mockingbird = Harper Lee; The Catcher in the Rye = J. D.
Salinger|Salinger; On the Road = Jack Kerouac|Kerouac; Gone with the Wind = Margaret Mitchell; The
Call of the Wild = Jack London; White Fang = Jack London; Little Women = Louisa May Alcott|Alcott;
Uncle Tom's Cabin = Harriet Beecher Stowe|Stowe; Walden = Henry David Thoreau|Thoreau; The Portrait
of a Lady = Henry James; The Age of Innocence = Edith Wharton|Wharton; Slaughterhouse-Five = Kurt
Vonnegut|Vonnegut; Catch-22 = Joseph Heller|Heller; Fahrenheit 451 = Ray Bradbury|Bradbury; Dune =
Frank Herbert; Foundation = Isaac Asimov|Asimov; Beloved = Toni Morrison|Morrison; The Color Purple
= Alice Walker|Walker; The Shining = Stephen King; Carrie = Stephen King; The Handmaid's Tale =
Margaret Atwood|Atwood; Anne of Green Gables = Lucy Maud Montgomery|Montgomery|L. M. Montgomery;
Life of Pi = Yann Martel|Martel; Things Fall Apart = Chinua Achebe|Achebe; Midnight's Children =
Salman Rushdie|Rushdie; The God of Small Things = Arundhati Roy; Norwegian Wood = Haruki
Murakami|Murakami; The Alchemist = Paulo Coelho|Coelho; Pippi Longstocking = Astrid
Lindgren|Lindgren; Heidi = Johanna Spyri|Spyri; Pinocchio = Carlo Collodi|Collodi; The Wonderful
Wizard of Oz = L. Frank Baum|Baum; Charlotte's Web = E. B. White|E.B. White; Charlie and the
Chocolate Factory = Roald Dahl|Dahl; Matilda = Roald Dahl|Dahl; Harry Potter and the Philosopher's
Stone = J. K. Rowling|Rowling; The Hunger Games = Suzanne Collins|Collins; Twilight = Stephenie
Meyer|Meyer; The Da Vinci Code = Dan Brown; Winnie-the-Pooh = A. A. Milne|Milne; Black Beauty = Anna
Sewell|Sewell; The Secret Garden = Frances Hodgson Burnett|Burnett; The Kite Runner = Khaled
Hosseini|Hosseini
"""
PLAYS = """
Hamlet = William Shakespeare|Shakespeare; Macbeth = William Shakespeare|Shakespeare; Othello =
William Shakespeare|Shakespeare; King Lear = William Shakespeare|Shakespeare; The Tempest = William
Shakespeare|Shakespeare; Twelfth Night = William Shakespeare|Shakespeare; Doctor Faustus =
Christopher Marlowe|Marlowe; Faust = Johann Wolfgang von Goethe|Goethe; The Robbers = Friedrich
Schiller|Schiller; Tartuffe = Molière|Moliere; The Misanthrope = Molière|Moliere; Phèdre = Jean
Racine|Racine; Le Cid = Pierre Corneille|Corneille; The Barber of Seville = Pierre
Beaumarchais|Beaumarchais; A Doll's House = Henrik Ibsen|Ibsen; Peer Gynt = Henrik Ibsen|Ibsen; Miss
Julie = August Strindberg|Strindberg; The Cherry Orchard = Anton Chekhov|Chekhov; Uncle Vanya =
Anton Chekhov|Chekhov; The Seagull = Anton Chekhov|Chekhov; The Government Inspector = Nikolai
Gogol|Gogol; The Lower Depths = Maxim Gorky|Gorky; The Importance of Being Earnest = Oscar
Wilde|Wilde; Pygmalion = George Bernard Shaw|Shaw; Saint Joan = George Bernard Shaw|Shaw; Waiting
for Godot = Samuel Beckett|Beckett; Endgame = Samuel Beckett|Beckett; Death of a Salesman = Arthur
Miller|Miller; The Crucible = Arthur Miller|Miller; A Streetcar Named Desire = Tennessee
Williams|Williams; The Glass Menagerie = Tennessee Williams|Williams; Our Town = Thornton
Wilder|Wilder; Long Day's Journey into Night = Eugene O'Neill|O'Neill; Oedipus Rex = Sophocles;
Antigone = Sophocles|Jean Anouilh|Anouilh; Medea = Euripides; The Frogs = Aristophanes; Mother
Courage and Her Children = Bertolt Brecht|Brecht; Blood Wedding = Federico García Lorca|García
Lorca|Lorca; Rhinoceros = Eugène Ionesco|Ionesco; Cyrano de Bergerac = Edmond Rostand|Rostand; The
Mousetrap = Agatha Christie|Christie
"""
POEMS = """
the Iliad = Homer; the Odyssey = Homer; the Aeneid = Virgil|Vergil; the Metamorphoses = Ovid; the
Divine Comedy = Dante Alighieri|Dante; the Canterbury Tales = Geoffrey Chaucer|Chaucer; Paradise
Lost = John Milton|Milton; The Raven = Edgar Allan Poe|Poe; The Waste Land = T. S. Eliot|Eliot;
Leaves of Grass = Walt Whitman|Whitman; The Road Not Taken = Robert Frost|Frost; Howl = Allen
Ginsberg|Ginsberg; The Rime of the Ancient Mariner = Samuel Taylor Coleridge|Coleridge; Ozymandias =
Percy Bysshe Shelley|Shelley; Don Juan = Lord Byron|Byron; Ode to a Nightingale = John Keats|Keats;
The Tyger = William Blake|Blake; Daffodils = William Wordsworth|Wordsworth; Eugene Onegin =
Alexander Pushkin|Pushkin; The Flowers of Evil = Charles Baudelaire|Baudelaire; Jerusalem Delivered
= Torquato Tasso|Tasso; The Charge of the Light Brigade = Alfred Tennyson|Tennyson; The Song of
Hiawatha = Henry Wadsworth Longfellow|Longfellow; If— = Rudyard Kipling|Kipling
"""
PAINTINGS = """
the Mona Lisa = Leonardo da Vinci|da Vinci|Leonardo; The Last Supper = Leonardo da Vinci|da
Vinci|Leonardo; The Starry Night = Vincent van Gogh|van Gogh; Sunflowers = Vincent van Gogh|van
Gogh; The Potato Eaters = Vincent van Gogh|van Gogh; Guernica = Pablo Picasso|Picasso; Les
Demoiselles d'Avignon = Pablo Picasso|Picasso; The Scream = Edvard Munch|Munch; The Night Watch =
Rembrandt|Rembrandt van Rijn; Girl with a Pearl Earring = Johannes Vermeer|Jan Vermeer|Vermeer; The
Milkmaid = Johannes Vermeer|Jan Vermeer|Vermeer; The Birth of Venus = Sandro Botticelli|Botticelli;
Primavera = Sandro Botticelli|Botticelli; The Persistence of Memory = Salvador Dalí|Salvador
Dali|Dalí|Dali; The Kiss = Gustav Klimt|Klimt; The Garden of Earthly Delights = Hieronymus
Bosch|Bosch; Las Meninas = Diego Velázquez|Velázquez|Velazquez; The Third of May 1808 = Francisco
Goya|Goya; Saturn Devouring His Son = Francisco Goya|Goya; The School of Athens = Raphael|Raffaello;
the ceiling of the Sistine Chapel = Michelangelo|Michelangelo Buonarroti; American Gothic = Grant
Wood; Nighthawks = Edward Hopper|Hopper; Campbell's Soup Cans = Andy Warhol|Warhol; Water Lilies =
Claude Monet|Monet; Impression, Sunrise = Claude Monet|Monet; Olympia = Édouard Manet|Edouard
Manet|Manet; A Bar at the Folies-Bergère = Édouard Manet|Edouard Manet|Manet; Liberty Leading the
People = Eugène Delacroix|Delacroix; The Raft of the Medusa = Théodore
Géricault|Géricault|Gericault; The Hay Wain = John Constable; The Fighting Temeraire = J. M. W.
Turner|Turner; Wanderer above the Sea of Fog = Caspar David Friedrich; The Arnolfini Portrait = Jan
van Eyck|van Eyck; The Tower of Babel = Pieter Bruegel|Bruegel|Brueghel; The Ambassadors = Hans
Holbein|Holbein; A Sunday Afternoon on the Island of La Grande Jatte = Georges Seurat|Seurat; The
Card Players = Paul Cézanne|Cézanne|Cezanne; Luncheon of the Boating Party = Pierre-Auguste
Renoir|Renoir; The Son of Man = René Magritte|Magritte; The Treachery of Images = René
Magritte|Magritte; The Dance = Henri Matisse|Matisse; The Two Fridas = Frida Kahlo|Kahlo; The Great
Wave off Kanagawa = Hokusai|Katsushika Hokusai; Whistler's Mother = James McNeill Whistler|Whistler;
The Death of Marat = Jacques-Louis David; The Swing = Jean-Honoré Fragonard|Fragonard; The Blue Boy
= Thomas Gainsborough|Gainsborough; Christina's World = Andrew Wyeth|Wyeth; Composition with Red,
Blue and Yellow = Piet Mondrian|Mondrian; Black Square = Kazimir Malevich|Malevich; I and the
Village = Marc Chagall|Chagall; the statue of David in Florence = Michelangelo|Michelangelo
Buonarroti; The Thinker = Auguste Rodin|Rodin
"""
MUSIC = """
The Magic Flute = Wolfgang Amadeus Mozart|Mozart; Don Giovanni = Wolfgang Amadeus Mozart|Mozart; The
Marriage of Figaro = Wolfgang Amadeus Mozart|Mozart; Eine kleine Nachtmusik = Wolfgang Amadeus
Mozart|Mozart; Fidelio = Ludwig van Beethoven|Beethoven; the Moonlight Sonata = Ludwig van
Beethoven|Beethoven; Für Elise = Ludwig van Beethoven|Beethoven; the Eroica Symphony = Ludwig van
Beethoven|Beethoven; The Four Seasons = Antonio Vivaldi|Vivaldi; the Brandenburg Concertos = Johann
Sebastian Bach|Bach; the Goldberg Variations = Johann Sebastian Bach|Bach; the St Matthew Passion =
Johann Sebastian Bach|Bach; Messiah = George Frideric Handel|Handel; Water Music = George Frideric
Handel|Handel; The Creation = Joseph Haydn|Haydn; the Surprise Symphony = Joseph Haydn|Haydn; Swan
Lake = Pyotr Ilyich Tchaikovsky|Tchaikovsky; The Nutcracker = Pyotr Ilyich Tchaikovsky|Tchaikovsky;
the 1812 Overture = Pyotr Ilyich Tchaikovsky|Tchaikovsky; Pictures at an Exhibition = Modest
Mussorgsky|Mussorgsky; Scheherazade = Nikolai Rimsky-Korsakov|Rimsky-Korsakov; Peter and the Wolf =
Sergei Prokofiev|Prokofiev; The Rite of Spring = Igor Stravinsky|Stravinsky; The Firebird = Igor
Stravinsky|Stravinsky; Aida = Giuseppe Verdi|Verdi; La Traviata = Giuseppe Verdi|Verdi; Rigoletto =
Giuseppe Verdi|Verdi; Nabucco = Giuseppe Verdi|Verdi; La Bohème = Giacomo Puccini|Puccini; Tosca =
Giacomo Puccini|Puccini; Turandot = Giacomo Puccini|Puccini; Madama Butterfly = Giacomo
Puccini|Puccini; William Tell = Gioachino Rossini|Rossini; Norma = Vincenzo Bellini|Bellini; The
Elixir of Love = Gaetano Donizetti|Donizetti; Carmen = Georges Bizet|Bizet; Faust, the opera =
Charles Gounod|Gounod; Boléro = Maurice Ravel|Ravel; Clair de lune = Claude Debussy|Debussy; La mer
= Claude Debussy|Debussy; Symphonie fantastique = Hector Berlioz|Berlioz; The Carnival of the
Animals = Camille Saint-Saëns|Saint-Saëns|Saint-Saens; Orpheus in the Underworld = Jacques
Offenbach|Offenbach; The Ring of the Nibelung = Richard Wagner|Wagner; Tristan and Isolde = Richard
Wagner|Wagner; Lohengrin = Richard Wagner|Wagner; The Flying Dutchman = Richard Wagner|Wagner;
Hansel and Gretel = Engelbert Humperdinck|Humperdinck; The Blue Danube = Johann Strauss|Strauss; Die
Fledermaus = Johann Strauss|Strauss; Salome = Richard Strauss|Strauss; Also sprach Zarathustra =
Richard Strauss|Strauss; the Hungarian Rhapsodies = Franz Liszt|Liszt; the Trout Quintet = Franz
Schubert|Schubert; Winterreise = Franz Schubert|Schubert; A German Requiem = Johannes Brahms|Brahms;
The Planets = Gustav Holst|Holst; Finlandia = Jean Sibelius|Sibelius; Peer Gynt, the suite = Edvard
Grieg|Grieg; the New World Symphony = Antonín Dvořák|Dvořák|Dvorak; The Bartered Bride = Bedřich
Smetana|Smetana; Rhapsody in Blue = George Gershwin|Gershwin; Porgy and Bess = George
Gershwin|Gershwin; West Side Story = Leonard Bernstein|Bernstein; Appalachian Spring = Aaron
Copland|Copland; The Entertainer = Scott Joplin|Joplin; Carmina Burana = Carl Orff|Orff; Pomp and
Circumstance = Edward Elgar|Elgar; The Threepenny Opera = Kurt Weill|Weill; The Phantom of the
Opera, the musical = Andrew Lloyd Webber|Lloyd Webber; Cats, the musical = Andrew Lloyd Webber|Lloyd
Webber
"""
