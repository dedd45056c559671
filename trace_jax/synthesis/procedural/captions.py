"""Words for an instance: its caption and its variant line."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_jax import taxonomy
from trace_jax.synthesis.procedural.mesh import Mesh
from trace_jax.synthesis.procedural.palette import GLASSES, METALS, WOODS, Finish


def caption(object_type: str, mesh: Mesh, severity: str) -> str:
    """One sentence on the state shown, e.g. "a photo of a red plastic bucket with white dots"."""
    main = mesh.finishes[0]
    words = f"{_stuff(main)} {object_type.replace('_', ' ')}"
    if main.phrase:
        words += f" {main.phrase}"
    for part, finish in zip(mesh.parts[1:], mesh.finishes[1:], strict=True):
        if _stuff(finish) != _stuff(main):
            words += f" and {_article(finish.colour, part)}{finish.colour} {part.replace('_', ' ')}"
            break
    sentence = re.sub(r"\ba (?=[aeiou])", "an ", f"a photo of {_article(words)}{words}")
    if severity == "pristine":
        return sentence
    titles = {level.name: level.title for level in taxonomy.load().severity}
    return f"{sentence} after a fire, {titles[severity]}"


def describe(object_type: str, materials: Sequence[str], severity: str) -> str:
    """What the fire has done to an object at a level (paper A.3, B.1), from its materials.

    Args:
      object_type: taxonomy name.
      materials: of its parts, repeats allowed.
      severity: "L0".."L4"; "pristine" gives "".
    """
    if severity == "pristine":
        return ""
    known = taxonomy.load()
    number = [level.name for level in known.severity].index(severity)
    order = _by_failure(materials)
    states = "; ".join(f"{m} {_states()[m][number]}" for m in order)
    title = known.severity[number].title
    return f"{object_type.replace('_', ' ')}, {title}: {states}."


def state(materials: Sequence[str], severity: str) -> str:
    """The same of an object in a scene, in a few words: of the material that counts most."""
    number = [level.name for level in taxonomy.load().severity].index(severity)
    return f"{materials[0]} {_states()[materials[0]][number]}"


def failure_notes(object_type: str, materials: Sequence[str]) -> str:
    """How its weakest parts fail: the type's note, and its materials in their order of failure."""
    known = taxonomy.load()
    order = _by_failure(materials)
    note = known.types[object_type].failure
    return f"{note} Order of failure: {', '.join(order)}.".strip()


def _by_failure(materials: Sequence[str]) -> list[str]:
    """Each material once, the earliest to fail first; equals in the taxonomy's order."""
    known = taxonomy.load()
    found = [m for m in known.materials if m in materials]
    return sorted(found, key=lambda m: known.failure_order[m])


@functools.cache
def _states() -> Mapping[str, Sequence[str]]:
    text = (Path(__file__).parent / "states.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def variant(mesh: Mesh, values: Mapping[str, Any]) -> str:
    """Style, make and colourway in a line, e.g. "main red plastic; style=slats"."""
    looks = [
        f"{part} {_stuff(finish)}" for part, finish in zip(mesh.parts, mesh.finishes, strict=True)
    ]
    styles = [f"{name}={value}" for name, value in values.items() if isinstance(value, str)]
    return "; ".join([", ".join(looks), *styles])


def _stuff(finish: Finish) -> str:
    """Colour and material in the order English wants: "oak wood", "brass", "red plastic"."""
    if finish.material == "metal" and finish.colour in METALS:
        return finish.colour
    if finish.material == "wood" and finish.colour in WOODS:
        return f"{finish.colour} wood"
    if finish.material == "glass" and finish.colour in GLASSES:
        return f"{finish.colour} glass"
    return f"{finish.colour} {finish.material}"


def _article(words: str, noun: str = "") -> str:
    if noun.endswith("s") and not noun.endswith("ss"):
        return ""
    return "an " if words[0] in "aeiou" else "a "
