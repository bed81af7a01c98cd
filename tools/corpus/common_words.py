"""The common words of the embedded corpus, most frequent first: the order is the Zipfian rank.

Written by hand for this project. How to read a line: `vocabulary.nouns`, `vocabulary.verb`, `vocabulary.adjective`.
Left out on purpose: English words whose forms hide the tense or the number (read, put, sheep), French words whose
gender the English sentence does not show, and pairs whose translation would depend on more than the sentence says.
"""

PEOPLE = """
girl fille f, man/men homme m, woman/women femme f, boy garçon m, king roi m, queen reine f, child/children enfant m,
doctor médecin m, friend ami m, mother mère f, teacher professeur m, soldier soldat m, sister sœur f, father père m,
actress actrice f, brother frère m, princess princesse f, farmer fermier m, student étudiant m, neighbour voisin m,
aunt tante f, uncle oncle m, prince prince m, waitress serveuse f, actor acteur m, nurse infirmière f,
baker boulanger m, judge juge m, painter peintre m, witch sorcière f, son fils m, writer écrivain m, lawyer avocat m,
singer chanteur m, nun religieuse f, wizard sorcier m, niece nièce f, nephew neveu m, thief/thieves voleur m,
widow veuve f, guard garde m, sailor marin m, cook cuisinier m, countess comtesse f, gardener jardinier m,
hunter chasseur m, duchess duchesse f, waiter serveur m, mayor maire m, priest prêtre m, driver chauffeur m,
goddess déesse f, duke duc m, hero/heroes héros m, fisherman/fishermen pêcheur m, guest invité m, butcher boucher m
"""

ANIMALS = """
dog chien m, cat chat m, cow vache f, bird oiseau m, horse cheval m, mouse/mice souris f, goat chèvre f,
wolf/wolves loup m, bee abeille f, fox renard m, frog grenouille f, snake serpent m, spider araignée f,
rabbit lapin m, turtle tortue f, bear ours m, hen poule f, lion lion m, ant fourmi f, donkey âne m, whale baleine f,
monkey singe m, owl chouette f, duck canard m, swan cygne m, butterfly papillon m, wasp guêpe f, elephant éléphant m,
squirrel écureuil m, eagle aigle m
"""

THINGS = """
table table f, book livre m, letter lettre f, car voiture f, chair chaise f, key clé f, painting tableau m,
flower fleur f, coat manteau m, bag sac m, box boîte f, hat chapeau m, lamp lampe f, ring bague f, boat bateau m,
watch montre f, dress robe f, knife/knives couteau m, bottle bouteille f, bed lit m, umbrella parapluie m,
shirt chemise f, bicycle vélo m, mirror miroir m, apple pomme f, glass verre m, newspaper journal m,
suitcase valise f, cake gâteau m, cup tasse f, phone téléphone m, guitar guitare f, piano piano m, candle bougie f,
clock horloge f, sword épée f, carpet tapis m, plate assiette f, pencil crayon m, crown couronne f, violin violon m,
statue statue f, card carte f, machine machine f, basket panier m, treasure trésor m, photo photo f,
computer ordinateur m, stone pierre f, armchair fauteuil m, curtain rideau m, scarf/scarves écharpe f,
button bouton m, blanket couverture f, glove gant m, necklace collier m, spoon cuillère f, hammer marteau m,
fork fourchette f, drawer tiroir m, ladder échelle f, bucket seau m, arrow flèche f, pillow oreiller m, bell cloche f,
toy jouet m, doll poupée f, shelf/shelves étagère f, needle aiguille f, axe hache f
"""

PLACES = """
house maison f, garden jardin m, school école f, castle château m, church église f, village village m,
kitchen cuisine f, forest forêt f, shop magasin m, station gare f, museum musée m, library bibliothèque f,
hotel hôtel m, room chambre f, market marché m, farm ferme f, park parc m, hospital hôpital m, street rue f,
office bureau m, tower tour f, palace palais m, factory usine f, theatre théâtre m, bakery boulangerie f,
restaurant restaurant m, cellar cave f, barn grange f, attic grenier m, tavern taverne f, university université f,
cabin cabane f, temple temple m, courtyard cour f, monastery monastère m, chapel chapelle f, cemetery cimetière m
"""

IDEAS = """
story histoire f, problem problème m, idea idée f, question question f, project projet m, answer réponse f, law loi f,
war guerre f, secret secret m, song chanson f, dream rêve m, decision décision f, journey voyage m, mistake erreur f,
game jeu m, lesson leçon f, crime crime m, promise promesse f, theory théorie f, trial procès m, meeting réunion f,
method méthode f, change changement m, party fête f, custom coutume f
"""

WOMEN = "Marie Anna Julie Alice Sophie Claire Emma Louise Jeanne Lucie Nadia Olga Rosa Irma Sylvie Eva Ida Martine"
MEN = "Paul Pierre Marc Victor Antoine Luc Martin Robert Albert Oscar Simon Igor David Arthur Bruno Alain Daniel Ernest"

TOWNS = """
Paris Paris, Rome Rome, London Londres, Lyon Lyon, Berlin Berlin, Geneva Genève, Vienna Vienne, Madrid Madrid,
Lisbon Lisbonne, Oslo Oslo, Brussels Bruxelles, Warsaw Varsovie, Athens Athènes, Venice Venise, Prague Prague
"""

TITLES = """
Mr M. m, Mrs Mme f, King le roi m, Queen la reine f, Captain le capitaine m, Doctor le docteur m,
Princess la princesse f, Prince le prince m, Judge le juge m, Inspector le inspecteur m, Duchess la duchesse f
"""

VERBS = """
see/saw/seen voir pa:patli
buy/bought acheter p:tal
find/found trouver pa:pat
love aimer p:patli s
sell/sold vendre p:tal r
watch regarder pa:pat
know/knew/known connaître p:pli s
look+for chercher pa:pat
help aider p:p
lose/lost perdre p:t
hear/heard entendre pa:pa
follow suivre pa:pa
show/showed/shown montrer p:ti r
meet/met rencontrer p:p
describe décrire p:patli
take/took/taken prendre p:t
understand/understood comprendre p:pi
wait+for attendre pa:p
give/gave/given donner p:t r
admire admirer p:patli
forget/forgot/forgotten oublier p:pti
draw/drew/drawn dessiner p:patl
visit visiter p:lc
invite inviter p:p
break/broke/broken casser p:t
explain expliquer p:i r
choose/chose/chosen choisir p:ti
hide/hid/hidden cacher pa:t
clean nettoyer p:tl
mention mentionner p:pli
talk+about parler+de p:pi
defend défendre p:pli
hate détester p:patli s
send/sent envoyer p:t r
protect protéger pa:pal
study étudier p:ai
think/thought+about penser+à p:pi
criticise critiquer p:pi
carry porter pa:t
answer répondre+à p:pi
steal/stole/stolen voler p:t
surprise surprendre pai:p
receive recevoir p:t
paint peindre p:patl
avoid éviter p:pai
thank remercier p:p
frighten effrayer ai:pa
call appeler p:pa
bring/brought apporter p:t r
keep/kept garder p:t
leave/left quitter p:plc
repair réparer p:t
accept accepter p:i
destroy détruire p:tl
listen+to écouter p:pi
threaten menacer pi:p
fear craindre pa:pai s
push pousser pa:pt
dream+of rêver+de p:ptl
wash laver p:pat
touch toucher pa:pat
refuse refuser p:ti
borrow emprunter p:t
obey obéir+à p:pi
lend/lent prêter p:t r
interest intéresser i:p
convince convaincre pi:p
recognise reconnaître pa:pat
examine examiner p:pati
observe observer pa:pai
save sauver pa:pa
imagine imaginer p:pi
condemn condamner p:pi
prepare préparer p:i
greet saluer p:p
throw/threw/thrown jeter p:t
ignore ignorer p:pi
punish punir p:p
analyse analyser p:i
celebrate célébrer p:i
sleep/slept dormir pa:
arrive arriver pa: e
work travailler p:
fall/fell/fallen tomber pat: e
sing/sang/sung chanter p:
disappear disparaître pati:
laugh rire p:
stay rester pa: e
cry/cried pleurer p:
die/died mourir pa: e
dance danser p:
come/came/come venir pa: e
run/ran/run courir pa:
burn brûler tl:
swim/swam/swum nager pa:
change changer pli:
eat/ate/eaten manger pa:
travel/travelled voyager p:
return revenir pa: e
walk marcher pa:
smile sourire p:
shine/shone briller t:
begin/began/begun commencer i:
"""

ADJECTIVES = """
old/older vieux/vieille/vieil 3 patl
big/bigger grand 2 atli
small/smaller petit 2 patli
beautiful beau/belle/bel 1 patli
red/redder rouge 4 t
tired fatigué 4 pa
young/younger jeune 3 pa
heavy/heavier lourd 4 t
happy/happier heureux 4 p
new nouveau/nouvelle/nouvel 3 tli
strange/stranger étrange 4 patli
expensive cher 4 tl
famous célèbre 4 ptli
good/- bon/bonne 1 pti
tall/taller grand 2 p
black/blacker noir 4 at
dangerous dangereux 4 pati
pretty/prettier joli 1 patli
sad/sadder triste 4 pi
green/greener vert 4 t
sick malade 4 pa
long/longer long/longue 2 ti
rich/richer riche 4 p
useful utile 4 ti
white/whiter blanc/blanche 4 at
clever intelligent 4 pa
bad/- mauvais 1 pi
important important 4 pi
broken cassé 4 t -
French français 5 ptli -
clean/cleaner propre 4 tl
quiet/quieter calme 4 pal
difficult difficile 4 i
blue/bluer bleu 4 t
royal royal 5 tl -
round rond 4 t -
angry/angrier fâché 4 p
light/lighter léger 4 t
brave/braver courageux 4 pa
dirty/dirtier sale 4 tl
simple/simpler simple 4 ti
empty vide 4 tl -
Italian italien 5 ptl -
cold/colder froid 4 l
interesting intéressant 4 pli
proud/prouder fier 4 pa
lazy/lazier paresseux 4 pa
dark/darker sombre 4 l
cheap/cheaper bon_marché 4 t
useless inutile 4 ti
soft/softer doux/douce 4 t
German allemand 5 ptl -
wet/wetter mouillé 4 at
honest honnête 4 p
ugly/uglier laid 4 patl
polite poli 4 p
dry/drier sec/sèche 4 t
jealous jaloux/jalouse 4 p
boring ennuyeux 4 pli
Spanish espagnol 5 ptl -
grey/greyer gris 4 at
cruel cruel 4 pi
square carré 4 t -
modern moderne 4 tli
shy timide 4 pa
Russian russe 5 ptl -
medieval médiéval 5 tl -
complicated compliqué 4 i
yellow/yellower jaune 4 t
foreign étranger 5 pti -
"""

FREQUENCY = "often souvent, always toujours, sometimes parfois, rarely rarement, also aussi, really vraiment"
NEGATED = frozenset({"often", "always", "really"})
MANNER = "slowly lentement, quickly rapidement, quietly silencieusement, easily facilement, carefully prudemment"
CLOSING = "here ici, again de_nouveau, everywhere partout"
OPENING = (
    "suddenly soudain, finally finalement, fortunately heureusement, unfortunately malheureusement"
)
DEGREES = "very très, too trop, so si, rather plutôt, really vraiment"
