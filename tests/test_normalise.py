"""Free words to the vocabulary: hand-written cases, the paper's among them (C.3 to C.5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_jax import taxonomy
from trace_jax.taxonomy.normalise import Folding, Phrases

KNOWN = taxonomy.load()

MATERIALS = {
    # the paper's
    "wood": "wood", "steel": "metal", "plastic": "plastic", "pine": "wood", "textiles": "fabric",
    "stainless steel": "metal", "cardboard": "paper", "polyester": "fabric", "nylon": "fabric",
    "MDF": "wood", "silicone": "rubber", "polypropylene": "plastic", "limestone": "ceramic",
    # case, punctuation, plural, spelling
    " Stainless-Steel. ": "metal", "PLASTICS": "plastic", "aluminum": "metal",
    "aluminium": "metal", "ceramics": "ceramic", "papier-m\u00e2ch\u00e9": "paper",
    "diamonds": "gemstone", "tiger\u2019s eye": "gemstone", "glasses": "glass",
    # the head decides
    "oak wood": "wood", "oak veneer panels": "wood", "copper tubing": "metal",
    "polyurethane foam": "foam", "polyester resin": "plastic", "acrylic glass": "plastic",
    "steel wool": "metal", "carbon steel": "metal", "plastic housing": "plastic",
    "red silk cloth": "fabric", "glass-ceramic": "ceramic", "cherry wood": "wood",
    "silver plastic": "plastic", "brushed metal finish": "metal", "tempered glass panel": "glass",
    "wooden": "wood", "metallic alloy": "metal", "mostly metal": "metal",
    # imitations and composites, as materials.toml decides
    "leatherette": "leather", "faux leather": "leather", "PU leather": "leather",
    "fiberglass": "plastic", "glass fibre": "plastic", "carbon fiber": "plastic",
    "papier mache": "paper", "enamelled steel": "metal", "styrofoam": "foam", "wax": "plastic",
    "lead crystal": "glass", "bone china": "ceramic", "rattan": "wood", "rope": "fabric",
    # one class twice is that class, two are none
    "gold-plated brass": "metal", "metal/steel": "metal", "powder-coated steel": "metal",
    "steel and iron": "metal", "sheet of paper": "paper",
    "rubber-coated steel": None, "glass and metal": None, "plastic-coated paper": None,
    "wood, metal": None, "plastic or rubber": None, "metal with leather grips": None,
    # no class
    "": None, "the": None, "unknown": None, "ash": None, "charcoal": None, "non-metal": None,
    "not wood": None, "composite": None, "bone": None, "fire": None, "organic matter": None,
}  # fmt: skip

TYPES = {
    "couch": "sofa", "A red leather couch with wooden legs.": "sofa", "The Couches": "sofa",
    "mug": "mug", "cup": "mug", "white ceramic cup": "mug", "gas_cylinder": "gas_cylinder",
    "Gas-Cylinder": "gas_cylinder", "gas cylinders": "gas_cylinder", "tv": "television",
    "an old wooden dining chair": "chair", "dining tables": "table", "cell phone": "smartphone",
    "car batteries": "car_battery", "burnt laptop computer on a desk": "laptop",
    "teddy": "teddy_bear", "stack of books": "book_stack", "books": "book_stack",
    "bookcase": "bookshelf", "shelves": "bookshelf", "pair of shoes": "shoe",
    "remains of a fire extinguisher": "fire_extinguisher", "probably a kettle": "kettle",
    "spray-paint can": "aerosol_can", "iron": "iron", "cast iron table": "table",
    "bottle": "bottle", "wine bottle": "bottle", "pill bottle": "pill_bottle",
    "telephone": "desk_phone", "office phone": "desk_phone", "sports ball": "ball",
    "zimmer frame": "walker", "Jerrican": "jerry_can", "propane tank": "propane_tank",
    "bookshelf filled with books": "bookshelf", "flower pots": "potted_plant", "pot": "cooking_pot",
    "melting pot": None, "gas stove": "oven", "a pair of scissors": "scissors", "skis": "skis",
    "a pair of glasses": "eyeglasses", "wine glasses": "wine_glass", "armchair": "armchair",
    "guitar case": None, "furniture": None, "container": None, "spaceship": None, "": None,
    "a": None, "glass": None, "chair leg": None, "lamp": None,
}  # fmt: skip

FUNCTIONS = {
    # the paper's, and its example of a paraphrase
    **{tag: tag for tag in KNOWN.functions},
    "writing surface": "work_surface",
    "riding": "transport", "typing": "computing_device",
    "seat": "seating", "to sit on": "seating", "used for sitting": "seating",
    "sleeping": "seating", "cooking": "cooking_appliance", "to cook food": "cooking_appliance",
    "storage of food": "food_storage", "storing and preserving food": "food_storage",
    "for serving drinks.": "food_storage", "storage": "general_storage",
    "carrying personal belongings": "general_storage", "container": "general_storage",
    "Light source": "lighting", "to illuminate a room": "lighting",
    "lighting fires": "ignition_source", "making phone calls": "communication_device",
    "putting out fires": "safety_equipment", "protecting the head": "safety_equipment",
    "storing compressed gas": "fuel_storage", "storage of chemicals": "chemical_storage",
    "supplying electrical power": "power_supply", "playing music": "entertainment",
    "washing clothes": "household_care", "to be worn": "personal_wear",
    "mobility aid": "medical_aid", "driving nails": "tool", "home decor": "decoration",
    "": None, "unknown": None, "for the": None, "being green": None,
}  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), MATERIALS.items())
def test_material(text: str, wanted: str | None):
    assert KNOWN.normalise_material(text) == wanted


@pytest.mark.parametrize(("text", "wanted"), TYPES.items())
def test_type(text: str, wanted: str | None):
    assert KNOWN.normalise_type(text) == wanted


@pytest.mark.parametrize(("text", "wanted"), FUNCTIONS.items())
def test_function(text: str, wanted: str | None):
    assert KNOWN.normalise_function(text) == wanted


def test_every_phrase_of_a_type_means_it():
    for row in KNOWN.types.values():
        for phrase in (row.name, row.title, *row.synonyms, *row.aliases):
            assert KNOWN.normalise_type(phrase) == row.name, phrase
        for phrase in (row.title, *row.synonyms):
            assert KNOWN.normalise_type(f"A large old {phrase} with damage.") == row.name, phrase


def test_classes_and_tags_mean_themselves():
    assert all(KNOWN.normalise_material(name) == name for name in KNOWN.materials)
    assert all(KNOWN.normalise_function(text) == tag for tag, text in KNOWN.meanings.items())


@given(st.text(max_size=60))
def test_any_text_is_safe(text: str):
    assert KNOWN.normalise_material(text) in {None, *KNOWN.materials}
    assert KNOWN.normalise_type(text) in {None, *KNOWN.object_types}
    assert KNOWN.normalise_function(text) in {None, *KNOWN.functions}


FOLDING = Folding(
    {"articles": ["a", "the"], "spelling": {"gray": "grey"}, "singular": {"mice": "mouse"}}
)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("The Gray  Boxes", "grey box"),
        ("batteries", "battery"),
        ("matches, dishes & potatoes", "match dish potato"),
        ("brass gas bus tennis", "brass gas bus tennis"),
        ("mice", "mouse"),
        ("Caf\u00e9-chairs", "cafe chair"),
        ("child's toys", "child toy"),
    ],
)
def test_folding(text: str, key: str):
    assert FOLDING.key(FOLDING.words(text)) == key


def test_a_phrase_claimed_twice_is_a_fault():
    phrases = Phrases(FOLDING).add([("tin box", "box"), ("Tin-boxes", "tin"), ("the", "box")])
    assert phrases.faults == [
        "'Tin-boxes' is claimed by box and tin",
        "'the' of box has no word left to look up",
    ]
    assert phrases.find(["tin", "box"]) == "box"


def test_plural_only_words_keep_their_singular_free():
    phrases = Phrases(FOLDING).add(
        [("glasses", "eyeglasses"), ("wine glass", "glass")], ["glasses"]
    )
    assert phrases.find(["glasses"]) == "eyeglasses"
    assert phrases.find(["glass"]) is None
    assert phrases.find(["wine", "glasses"]) == "glass"
