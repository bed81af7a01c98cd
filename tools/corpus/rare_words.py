"""The long tail: rare nouns with their French cognates, rare adjectives and adverbs, and invented names.

The nouns are real words of both languages, listed by hand by their ending. An entry "word" is spelled alike in both; in
"revelation/révélation" the French follows; an ending given once for a list is added to each stem. Names are made of
syllables, are the same in both languages, and never show their gender: a title or a first name stands before them.
"""

from collections.abc import Iterator
from random import Random

from corpus.french_forms import Gender
from corpus.vocabulary import Noun

TION = """
aboli abstrac accumula adapta administra admira adop affirma agita ambi amputa anima appari applica argumenta articula
aspira assimila atten attrac avia capitula circula coali collabora collec colonisa commo communica compensa composi
concep concentra condi confirma confronta conserva consola constitu construc consulta contamina contempla contradic
contribu conven conversa convic correc corrup descrip destina destruc diges direc discrimina disposi disserta distinc
distrac distribu domina dona excep exclama explora exporta exposi extermina extinc fabrica fic filtra forma formula
fortifica frac fric germina hiberna humilia illumina illustra imagina imita immigra imperfec improvisa inaugura
incarna inclina infla informa inscrip inspec inspira installa institu instruc interac interrup interven intimida
introduc intui inven investiga invita irriga irrita limita liquida manipula modifica motiva multiplica muta narra
naviga nomina no nutri obliga observa occupa opposi op organisa orienta ova participa parti percep perfec pollu por
posi priva produc prolonga promo propor protec provoca publica purifica qualifica rota sanc satisfac sensa simula
simplifica situa stagna stimula substitu supersti sugges supposi tradi transac transforma transi vaccina valida varia
ventila vibra voca celebra/célébra coopera/coopéra coordina crea/créa declara/déclara decora/décora deduc/déduc
defini/défini degrada/dégrada delega/déléga demoli/démoli demonstra/démonstra deteriora/détériora devo/dévo
educa/éduca elec/élec elimina/élimina emigra/émigra emo/émo equa/équa erup/érup evalua/évalua evapora/évapora
evolu/évolu exaggera/exagéra expedi/expédi execu/exécu genera/généra hesita/hésita interpreta/interpréta libera/libéra
legisla/législa medita/médita modera/modéra negotia/négocia opera/opéra penetra/pénétra persecu/persécu
prepara/prépara presenta/présenta predic/prédic reac/réac realisa/réalisa recita/récita reconcilia/réconcilia
reduc/réduc rela regula/régula renova/rénova repeti/répéti representa/représenta reproduc reputa/réputa resolu/résolu
restric revela/révéla revolu/révolu segrega/ségréga selec/sélec separa/sépara specula/spécula vegeta/végéta
"""
SION = """
aver colli compas compres confes confu conver dimen diffu discus disper divi ero/éro explo/explo expres expul exten
illu immer impres inva inver mis occa/occa omis pas permis persua posses preci/préci proces progres profes provi
reces/réces repres/répres ses subver succes suspen ten transmis ver vi
"""
ITY = """
activ agil animos atroc authentic brutal capac captiv complex complic conform continu curios dens divers divin
familiar fatal fertil fragil fratern grav hostil human humid humil ident immun impartial impossibil intens major
matern mobil mortal municipal national neutral normal nud obes/obés obscur opportun original partial patern
personal/personnal popular possibil prior proxim public pur qual quant rapid rational sensibil similar simplic solid
sonor stabil stupid subjectiv tonal total tranquill trivial unanim un uniform util valid van variabil viabil visibil
vital vivac vulgar celebr/célébr creativ/créativ credul/crédul electric/électric etern/étern fidel/fidél frivol
generos/généros infin inferior/inférior integr/intégr legal/légal prosper/prospér real/réal regular/régular
secur/sécur seren/sérén sever/sévér sincer/sincér solidar special/spécial steril/stéril superior/supérior
"""
ISM = """
absolut anarch capital catholic classic colonial commun conform cub despot dogmat dual dynam fasc fatal human journal
individual international magnet/magnét marx material/matérial militar mystic national natural nihil opportun optim
organ pacif patriot pessim plural popul positiv pragmat puritan rac radical rational sentimental social symbol terror
tour urban vandal determin/détermin federal/fédéral femin/fémin ideal/idéal imperial/impérial impression/impressionn
liberal/libéral mechan/mécan parallel/parallél protection/protectionn real/réal sceptic stoic/stoïc surreal/surréal
"""
MASCULINE_MASSES = """
amusement, argument, document, encouragement, engagement, fragment, instrument, ligament, moment, monument, segment,
sentiment, testament, element/élément, environment/environnement, government/gouvernement, movement/mouvement,
ornament/ornement, sacrament/sacrement, sediment/sédiment, supplement/supplément, temperament/tempérament,
department/département, courage, passage, message, mirage, heritage/héritage, language/langage, marriage/mariage,
massage, pilgrimage/pèlerinage, plumage, sabotage, suffrage, espionage/espionnage, barrage, collage, camouflage,
carnage, dosage, drainage, homage/hommage, outrage, usage, assemblage, reportage
"""
FEMININE_MASSES = """
abundance/abondance, alliance, ambulance, arrogance, assistance, assurance, circumstance/circonstance, clairvoyance,
distance, elegance/élégance, endurance, exuberance/exubérance, finance, ignorance, importance,
intolerance/intolérance, nuance, perseverance/persévérance, provenance, resemblance/ressemblance,
resistance/résistance, substance, surveillance, tolerance/tolérance, vengeance, vigilance, renaissance, dominance,
chance, absence, abstinence, adolescence, cadence, coincidence/coïncidence, competence/compétence,
conference/conférence, conscience, consequence/conséquence, convergence, correspondence/correspondance,
difference/différence, diligence, divergence, eloquence/éloquence, emergence/émergence, essence, excellence,
existence, experience/expérience, impatience, impertinence, imprudence, indulgence, influence, innocence,
insistence/insistance, insolence, intelligence, interference/interférence, negligence/négligence, opulence, patience,
permanence, pertinence, pestilence, preference/préférence, presence/présence, providence, prudence,
reference/référence, reminiscence/réminiscence, residence/résidence, science, sequence/séquence, somnolence,
turbulence, anthropology/anthropologie, archaeology/archéologie, astrology/astrologie, biology/biologie,
chronology/chronologie, climatology/climatologie, cosmology/cosmologie, criminology/criminologie, ecology/écologie,
ethnology/ethnologie, etymology/étymologie, geology/géologie, hydrology/hydrologie, ideology/idéologie,
meteorology/météorologie, methodology/méthodologie, morphology/morphologie, mythology/mythologie,
neurology/neurologie, pathology/pathologie, philology/philologie, phonology/phonologie, physiology/physiologie,
psychology/psychologie, sociology/sociologie, technology/technologie, terminology/terminologie, theology/théologie,
toxicology/toxicologie, typology/typologie, zoology/zoologie, analogy/analogie, trilogy/trilogie,
anthology/anthologie, biography/biographie, calligraphy/calligraphie, cartography/cartographie,
choreography/chorégraphie, demography/démographie, geography/géographie, lithography/lithographie,
oceanography/océanographie, photography/photographie, topography/topographie, typography/typographie,
bibliography/bibliographie, autobiography/autobiographie, astronomy/astronomie, autonomy/autonomie, economy/économie,
gastronomy/gastronomie, agronomy/agronomie, taxonomy/taxonomie, adventure/aventure, agriculture, architecture,
capture, caricature, conjecture, culture, fracture, literature/littérature, miniature, nature, posture,
procedure/procédure, rupture, sculpture, signature, structure, temperature/température, texture, torture, candidature,
nomenclature, altitude, amplitude, aptitude, attitude, certitude, exactitude, gratitude, ingratitude, latitude,
longitude, magnitude, multitude, plenitude/plénitude, servitude, similitude, solitude
"""
RARE_THINGS = """
accordion accordéon m, amulet amulette f, apricot abricot m, artichoke artichaut m, banana banane f, banjo banjo m,
barometer baromètre m, bracelet bracelet m, calendar calendrier m, cannon canon m, canoe canoë m, carafe carafe f,
carrot carotte f, catapult catapulte f, chronometer chronomètre m, clarinet clarinette f, column colonne f,
diamond diamant m, dictionary dictionnaire m, emerald émeraude f, encyclopedia encyclopédie f, flute flûte f,
fountain fontaine f, fresco fresque f, geranium géranium m, gondola gondole f, gramophone gramophone m, harp harpe f,
hammock hamac m, hygrometer hygromètre m, icon icône f, kaleidoscope kaléidoscope m, lance lance f,
lantern lanterne f, locomotive locomotive f, mandolin mandoline f, mango/mangoes mangue f, manuscript manuscrit m,
mask masque m, medal médaille f, megaphone mégaphone m, melon melon m, microphone microphone m,
microscope microscope m, mosaic mosaïque f, obelisk obélisque m, olive olive f, orange orange f, orchid orchidée f,
parasol parasol m, pearl perle f, periscope périscope m, phonograph phonographe m, pistol pistolet m,
portrait portrait m, pyramid pyramide f, relic relique f, rose rose f, sabre sabre m, sapphire saphir m,
saxophone saxophone m, sceptre sceptre m, seismograph sismographe m, stethoscope stéthoscope m, talisman talisman m,
tapestry tapisserie f, telegraph télégraphe m, telescope télescope m, thermometer thermomètre m,
tomato/tomatoes tomate f, torpedo/torpedoes torpille f, tractor tracteur m, trombone trombone m, trophy trophée m,
trumpet trompette f, tulip tulipe f, tunic tunique f, turbine turbine f, vase vase m, xylophone xylophone m
"""
RARE_ANIMALS = """
tiger tigre m, leopard léopard m, panther panthère f, zebra zèbre m, gazelle gazelle f, antelope antilope f,
crocodile crocodile m, dolphin dauphin m, pelican pélican m, vulture vautour m, falcon faucon m,
salamander salamandre f, lizard lézard m, gorilla gorille m, chimpanzee chimpanzé m, kangaroo kangourou m,
camel chameau m, jaguar jaguar m, puma puma m, koala koala m, panda panda m, llama lama m, marmot marmotte f,
otter loutre f, beaver castor m, carp/carps carpe f, sardine sardine f, cobra cobra m, python python m,
viper vipère f, scorpion scorpion m, cicada cigale f, pigeon pigeon m
"""
RARE_PEOPLE = """
pianist pianiste m, violinist violoniste m, artist artiste m, dentist dentiste m, chemist chimiste m,
tourist touriste m, economist économiste m, journalist journaliste m, linguist linguiste m, botanist botaniste m,
cyclist cycliste m, guitarist guitariste m, florist fleuriste m, humorist humoriste m, biologist biologiste m,
specialist spécialiste m, archivist archiviste m, soloist soliste m, musician musicien m, magician magicien m,
politician politicien m, technician technicien m, mathematician mathématicien m, electrician électricien m,
historian historien m, grammarian grammairien m, guardian gardien m, optician opticien m, director directeur m,
senator sénateur m, inventor inventeur m, sculptor sculpteur m, ambassador ambassadeur m, orator orateur m,
emperor empereur m, protector protecteur m, navigator navigateur m, narrator narrateur m, legislator législateur m,
aviator aviateur m, administrator administrateur m, dictator dictateur m, gladiator gladiateur m,
governor gouverneur m, liberator libérateur m, spectator spectateur m, visitor visiteur m, tailor tailleur m,
author auteur m, archaeologist archéologue m, psychologist psychologue m, geologist géologue m,
astronomer astronome m, philosopher philosophe m, photographer photographe m, architect architecte m, poet poète m,
athlete athlète m, diplomat diplomate m, pilot pilote m, pharmacist pharmacien m, surgeon chirurgien m,
carpenter charpentier m, ballerina ballerine f, empress impératrice f, heiress héritière f, baroness baronne f,
abbess abbesse f, nymph nymphe f, priestess prêtresse f, governess gouvernante f
"""
RARE_PLACES = """
cathedral cathédrale f, abbey abbaye f, convent couvent m, fortress forteresse f, laboratory laboratoire m,
observatory observatoire m, conservatory conservatoire m, gymnasium gymnase m, casino casino m, stadium stade m,
bazaar bazar m, pavilion pavillon m, villa villa f, labyrinth labyrinthe m, dormitory dortoir m, pharmacy pharmacie f,
embassy ambassade f, province province f, region région f, canyon canyon m, desert désert m, jungle jungle f,
district district m, gallery galerie f, crypt crypte f, basilica basilique f, synagogue synagogue f, mosque mosquée f,
pagoda pagode f, arena arène f, amphitheatre amphithéâtre m, refinery raffinerie f, distillery distillerie f,
tannery tannerie f, colony colonie f, hangar hangar m
"""
RARE_ADJECTIVES = """
absurd absurde 4 i
abominable abominable 4 pi
adorable adorable 4 pat
admirable admirable 4 pi
ambitious ambitieux 4 p
arrogant arrogant 4 p
atrocious atroce 4 i
bizarre bizarre 4 ptli
comfortable confortable 4 tl
coherent cohérent 4 i
curious curieux 4 pa
delicate délicat 4 t
discreet discret/discrète 4 p
elegant élégant 4 ptl
exotic exotique 4 atl
fantastic fantastique 4 tli -
ferocious féroce 4 a
fragile fragile 4 t
furious furieux 4 pa
generous généreux 4 p
gigantic gigantesque 4 atl -
horrible horrible 4 patli
immense immense 4 atl -
impatient impatient 4 p
incredible incroyable 4 pi
insolent insolent 4 p
magnificent magnifique 4 atl -
melancholic mélancolique 4 p
miserable misérable 4 pl
monotonous monotone 4 i
mysterious mystérieux 4 patli
nervous nerveux 4 pa
obscure obscur 4 li
ordinary ordinaire 4 ptli
picturesque pittoresque 4 l
precious précieux 4 ti
prudent prudent 4 p
ridiculous ridicule 4 pti
robust robuste 4 pat
romantic romantique 4 pli
sceptical sceptique 4 p
sincere sincère 4 p
solid solide 4 t
sumptuous somptueux 4 tl
superb superbe 4 atl -
suspicious suspect 4 pt
terrible terrible 4 pi
ultramodern ultramoderne 4 tl -
vulnerable vulnérable 4 pal
"""
RARE_MANNER = """
brutally brutalement, calmly calmement, correctly correctement, directly directement, discreetly discrètement,
elegantly élégamment, nervously nerveusement, officially officiellement, patiently patiemment, proudly fièrement,
rapidly rapidement, secretly secrètement, seriously sérieusement, stupidly stupidement, brilliantly brillamment,
curiously curieusement, furiously furieusement, gently doucement, happily joyeusement, immediately immédiatement,
mysteriously mystérieusement, politely poliment, sadly tristement, timidly timidement, voluntarily volontairement
"""


_ONSETS = (
    "b",
    "d",
    "f",
    "g",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "br",
    "dr",
    "kr",
    "tr",
    "st",
)
_ENDS = {
    "surname": (
        "nek",
        "lan",
        "dor",
        "vin",
        "mak",
        "rel",
        "tov",
        "ber",
        "ski",
        "rand",
        "zen",
        "lum",
    ),
    "town": ("mora", "burg", "stad", "lona", "vik", "grad", "dalia", "port"),
}


def rare_ideas() -> list[Noun]:
    """Some six hundred abstract nouns, spelled alike but for their ending and accents, in a fixed mixed order."""
    found = [
        *_cognates(TION, "tion", "tion", "f"),
        *_cognates(SION, "sion", "sion", "f"),
        *_cognates(ITY, "ity", "ité", "f"),
        *_cognates(ISM, "ism", "isme", "m"),
        *_cognates(MASCULINE_MASSES, "", "", "m"),
        *_cognates(FEMININE_MASSES, "", "", "f"),
    ]
    order = Random(0)
    return sorted(found, key=lambda _: order.random())


def _cognates(table: str, english: str, french: str, gender: Gender) -> Iterator[Noun]:
    for entry in table.replace(",", " ").split():
        one, _, un = entry.partition("/")
        yield Noun((one + english,) * 2, ((un or one) + french,) * 2, gender, "i", counted=False)


def invented_names(what: str, count: int) -> list[str]:
    """That many different invented surnames ("surname") or names of towns ("town"), always the same ones."""
    draw = Random(what).random
    names: dict[str, None] = {}
    while len(names) < count:
        syllables = [_syllable(draw() * len(_ONSETS), draw()) for _ in range(1 + (draw() < 0.4))]
        if draw() < 0.2:
            syllables[0] = syllables[0].lstrip("bdfgklmnprstv")
        ends = _ENDS[what]
        names["".join((*syllables, ends[int(draw() * len(ends))])).capitalize()] = None
    return list(names)


def _syllable(onset: float, vowel: float) -> str:
    return _ONSETS[int(onset)] + "aeiou"[int(vowel * 5)]
