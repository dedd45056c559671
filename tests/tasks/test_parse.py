"""Answers as models write them, and what is read from each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_jax import taxonomy
from trace_jax.tasks import parse


# Handed case 10: first mention wins after a correction, trailing end token, markdown, refusals.
@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("wood", {"wood"}),
        ("Wood.", {"wood"}),
        ("**wood**, Steel", {"wood", "metal"}),
        ("wood; steel", {"wood", "metal"}),
        ("Materials: wood and steel<|im_end|>", {"wood", "metal"}),
        ("not wood but plastic", {"plastic"}),
        ("wood ... actually, it was plastic", {"plastic"}),
        ("wood, steel. Actually, glass and ceramic", {"glass", "ceramic"}),
        ("wood, wood, wood, steel, wood", {"wood", "metal"}),
        ("- wood\n- steel\n- `glass`", {"wood", "metal", "glass"}),
        ("1. Pine\n2. stainless steel", {"wood", "metal"}),
        ("The main materials were oak and brass.", {"wood", "metal"}),
        ("plastic (no metal)", {"plastic"}),
        ("cotton, polyester", {"fabric"}),
        ("<think>maybe wood</think>steel", {"metal"}),
    ],
)
def test_materials(answer, found):
    labels = parse.materials(answer)
    assert labels.found == found
    assert not labels.unparseable


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "   \n",
        "<|im_end|>",
        "I'm sorry, I cannot tell from this image.",
        "I cannot identify the object.",
        "the the the " * 50,
        "no wood",
        "unknown",
    ],
)
def test_what_says_nothing_is_unparseable(answer):
    assert parse.materials(answer).unparseable
    assert parse.description(answer).unparseable
    for strict in (False, True):
        read = parse.function_answer(answer, strict=strict)
        assert read.functions.unparseable and read.materials.unparseable


@pytest.mark.parametrize(
    ("answer", "identity", "materials", "function"),
    [
        (
            "This was a gas cylinder made of metal, used for fuel storage.",
            "gas_cylinder", {"metal"}, "fuel_storage",
        ),
        (
            "This object was most likely a wooden chair, made of oak and steel, used for sitting.",
            "chair", {"wood", "metal"}, "seating",
        ),
        ("A red leather couch intended for seating.", "sofa", {"leather"}, "seating"),
        (
            "It was probably a toaster made mainly of stainless steel and plastic, designed to "
            "toast bread.",
            "toaster", {"metal", "plastic"}, "cooking_appliance",
        ),
        (
            "The object is **a desk lamp** constructed from metal that was used to give light.",
            "desk_lamp", {"metal"}, "lighting",
        ),
        ("It was not a chair but a stool made of wood.", "stool", {"wood"}, None),
        ("It was a chair. Actually, it was a bed made of wood.", "bed", {"wood"}, None),
    ],
)  # fmt: skip
def test_descriptions(answer, identity, materials, function):
    read = parse.description(answer)
    assert read.identity == identity
    assert read.materials.found == materials
    assert read.function == function


def test_an_unknown_noun_is_no_guess():
    read = parse.description("This was a flux capacitor made of steel, used for time travel.")
    assert read.identity is None and read.identity_phrase
    assert read.function is None and read.function_phrase
    assert read.materials.found == {"metal"} and not read.unparseable


GOOD = "Function: seating, lighting\nMaterials: wood, metal"


@pytest.mark.parametrize(
    ("answer", "strict", "functions", "materials"),
    [
        (GOOD, True, {"seating", "lighting"}, {"wood", "metal"}),
        (GOOD, False, {"seating", "lighting"}, {"wood", "metal"}),
        ("Function: food_storage, _general_storage_\nMaterials: **wood**", False,
         {"food_storage", "general_storage"}, {"wood"}),
        (GOOD + "<|im_end|>", True, {"seating", "lighting"}, {"wood", "metal"}),
        ("function: Seating\nmaterials needed: oak and steel", False, {"seating"},
         {"wood", "metal"}),
        ("**Function:** seating **Materials:** wood", False, {"seating"}, {"wood"}),
        ("1. Function: cooking food\n2. Materials: steel", False, {"cooking_appliance"},
         {"metal"}),
        ("seating\nwood, steel", False, {"seating"}, {"wood", "metal"}),
        ("Function: lighting\nFunction: seating\nMaterials: wood", False, {"seating"}, {"wood"}),
    ],
)  # fmt: skip
def test_function_answers(answer, strict, functions, materials):
    read = parse.function_answer(answer, strict=strict)
    assert read.functions.found == functions
    assert read.materials.found == materials


@pytest.mark.parametrize(
    "answer", ["seating\nwood", "function: seating\nMaterials: wood", GOOD + "\nThat is all."]
)
def test_strict_takes_the_asked_form_only(answer):
    read = parse.function_answer(answer, strict=True)
    assert read.functions.unparseable and read.materials.unparseable


@given(st.lists(st.sampled_from(taxonomy.load().materials), min_size=1), st.randoms())
def test_order_and_repetition_do_not_matter(names, random):
    shuffled = names + names[:1]
    random.shuffle(shuffled)
    assert parse.materials(", ".join(shuffled)).found == set(names)


@given(st.lists(st.sampled_from(taxonomy.load().functions), min_size=1, max_size=2))
def test_lenient_reads_whatever_strict_reads(tags):
    answer = f"Function: {', '.join(tags)}\nMaterials: wood, metal"
    strict, lenient = (parse.function_answer(answer, strict=s) for s in (True, False))
    assert strict == lenient


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text):
    parse.materials(text), parse.description(text)
    parse.function_answer(text, strict=False), parse.function_answer(text, strict=True)
