"""Colours and finishes: how a part made of a material may look, and the words for it."""

from __future__ import annotations

import colorsys
import dataclasses
from collections.abc import Sequence

import numpy as np

from trace_jax.synthesis.procedural import patterns as pt

# Named sRGB colours, the words of captions.
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (205, 38, 42),
    "dark red": (122, 20, 30),
    "orange": (235, 120, 28),
    "yellow": (240, 200, 40),
    "olive": (118, 116, 42),
    "lime": (150, 200, 48),
    "green": (46, 140, 66),
    "dark green": (22, 76, 48),
    "teal": (22, 126, 124),
    "turquoise": (70, 196, 190),
    "light blue": (134, 184, 228),
    "blue": (38, 92, 190),
    "navy": (26, 38, 92),
    "purple": (104, 50, 150),
    "lavender": (178, 156, 218),
    "pink": (238, 150, 178),
    "magenta": (196, 42, 122),
    "brown": (108, 68, 40),
    "tan": (196, 154, 104),
    "cream": (238, 226, 196),
    "white": (236, 236, 234),
    "light grey": (180, 182, 184),
    "grey": (118, 120, 124),
    "dark grey": (62, 64, 68),
    "black": (26, 26, 28),
}
_NEUTRAL = ("black", "dark grey", "grey", "light grey", "white", "cream")
_DARK = ("black", "dark grey", "brown", "navy", "dark red", "dark green")
_LIGHT = ("white", "cream", "light grey", "light blue", "pink", "lavender")

# Bare materials: name -> (sRGB, second sRGB); names are words of captions too.
WOODS: dict[str, tuple[tuple[int, int, int], tuple[int, int, int]]] = {
    "pine": ((222, 180, 122), (178, 126, 70)),
    "oak": ((186, 138, 86), (132, 90, 50)),
    "walnut": ((112, 74, 48), (66, 42, 28)),
    "mahogany": ((136, 62, 40), (84, 34, 24)),
    "birch": ((232, 208, 168), (200, 168, 120)),
    "ebony": ((62, 50, 44), (30, 24, 22)),
}
METALS: dict[str, tuple[int, int, int]] = {
    "steel": (196, 200, 206),
    "aluminium": (216, 218, 222),
    "brass": (214, 172, 84),
    "copper": (206, 124, 84),
    "iron": (92, 94, 100),
    "chrome": (228, 232, 238),
    "bronze": (150, 110, 62),
}
GLASSES: dict[str, tuple[int, int, int]] = {
    "clear": (214, 230, 232),
    "green": (60, 134, 78),
    "amber": (172, 98, 32),
    "blue": (62, 108, 190),
    "smoky": (96, 98, 104),
    "rose": (220, 140, 150),
}

# Materials in their order of failure (paper B.1); the number is the finish's MATERIAL column.
MATERIALS: tuple[str, ...] = (
    "paper", "fabric", "foam", "leather", "wood", "plastic", "rubber", "glass", "ceramic",
    "metal", "gemstone",
)  # fmt: skip
MATERIAL_NUMBER = {name: number for number, name in enumerate(MATERIALS)}

# Decorative patterns a material can carry, where a recipe names none.
_DECOR: dict[str, tuple[str, ...]] = {
    "paper": ("stripes", "dots", "split", "label", "checks"),
    "fabric": (
        "stripes", "checks", "dots", "plaid", "zigzag", "camo", "flowers", "diamonds", "quilt",
    ),
    "foam": ("speckle", "camo"),
    "leather": ("quilt", "bands"),
    "wood": ("stripes", "split", "bands"),
    "plastic": ("stripes", "bands", "label", "split", "emblem", "dots", "rings", "gradient"),
    "rubber": ("bands", "dots", "rings"),
    "glass": ("bands", "label", "rings"),
    "ceramic": (
        "stripes", "dots", "bands", "speckle", "flowers", "gradient", "split", "zigzag", "marble",
    ),
    "metal": ("bands", "label", "split", "stripes", "emblem"),
    "gemstone": ("plain",),
}  # fmt: skip
# gloss, metallic, shininess
_SURFACE: dict[str, tuple[float, float, float]] = {
    "paper": (0.02, 0.0, 8.0),
    "fabric": (0.03, 0.0, 6.0),
    "foam": (0.02, 0.0, 6.0),
    "leather": (0.18, 0.0, 20.0),
    "wood": (0.10, 0.0, 16.0),
    "plastic": (0.32, 0.0, 40.0),
    "rubber": (0.08, 0.0, 12.0),
    "glass": (0.9, 0.0, 90.0),
    "ceramic": (0.5, 0.0, 60.0),
    "metal": (0.55, 1.0, 30.0),
    "gemstone": (1.0, 0.0, 90.0),
}


@dataclasses.dataclass(frozen=True)
class Finish:
    """How one part looks.

    Attributes:
      material: its class.
      row: the shader's numbers [COLUMNS], see patterns.
      colour: the word for its main colour, e.g. "dark red" or "brass".
      phrase: the caption's words on its pattern, or "".
    """

    material: str
    row: np.ndarray
    colour: str
    phrase: str


def linear(colour: Sequence[float] | np.ndarray) -> np.ndarray:
    """sRGB 0-255 to linear 0-1; [3]."""
    c = np.asarray(colour, float) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def _jitter(rng: np.random.Generator, colour: Sequence[int]) -> np.ndarray:
    h, s, v = colorsys.rgb_to_hsv(*(c / 255 for c in colour))
    h = (h + rng.normal(0, 0.012)) % 1
    s = float(np.clip(s * rng.uniform(0.85, 1.12), 0, 1))
    v = float(np.clip(v * rng.uniform(0.88, 1.1), 0, 1))
    return linear(np.array(colorsys.hsv_to_rgb(h, s, v)) * 255)


class Palette:
    """The colours of one object: slots are drawn once and shared by its parts.

    Args:
      rng: draws what is not given.
      hues: likely main colours.
      words: a colourway: colours take the slots main, accent and second in turn; the name of a
        wood, a metal or a kind of glass says what that material is, bare.
    """

    def __init__(
        self, rng: np.random.Generator, hues: Sequence[str] = (), words: Sequence[str] = ()
    ) -> None:
        names = list(COLOURS)
        main = str(rng.choice(list(hues) if hues and rng.random() < 0.75 else names))
        others = [n for n in names if n != main]
        accent, second = (str(n) for n in rng.choice(others, 2, replace=False))
        trim = str(rng.choice(_NEUTRAL)) if rng.random() < 0.65 else accent
        self._words = {
            "main": main,
            "accent": accent,
            "second": second,
            "trim": trim,
            "dark": str(rng.choice(_DARK)),
            "light": str(rng.choice(_LIGHT)),
            "black": "black",
            "white": "white",
            "contrast": self._contrasting(rng, main),
        }
        given = [word for word in words if word in COLOURS]
        self._given = bool(given)
        self._words.update(zip(("main", "accent", "second"), given, strict=False))
        self._values = {slot: _jitter(rng, COLOURS[word]) for slot, word in self._words.items()}
        self._wood = str(rng.choice(list(WOODS)))
        self._metal = str(rng.choice(list(METALS), p=[0.28, 0.18, 0.14, 0.1, 0.12, 0.12, 0.06]))
        self._glass = str(rng.choice(list(GLASSES), p=[0.35, 0.15, 0.15, 0.15, 0.1, 0.1]))
        self._bare: dict[str, bool] = {}
        for word in words:
            if word in COLOURS:
                continue
            for material, stuff in (("wood", WOODS), ("metal", METALS), ("glass", GLASSES)):
                if word in stuff:
                    setattr(self, f"_{material}", word)
                    self._bare[material] = True

    @staticmethod
    def _contrasting(rng: np.random.Generator, main: str) -> str:
        base = linear(COLOURS[main])
        far = [n for n in COLOURS if np.abs(linear(COLOURS[n]) - base).sum() > 0.75]
        return str(rng.choice(far))

    def word(self, slot: str) -> str:
        """The colour name of a slot."""
        return self._words[slot]

    def finish(
        self,
        rng: np.random.Generator,
        material: str,
        slot: str,
        patterns: Sequence[str] = (),
        bare: float = -1.0,
        coarse: float = 1.0,
    ) -> Finish:
        """Draws a finish of `material` in the colour of `slot`.

        Args:
          slot: one of the object's colours, or a word of COLOURS where the real thing has no
            choice, like a stop sign's red.
          patterns: allowed patterns; empty means the material's own; a single one is certain.
          bare: chance that wood, metal or glass shows itself rather than paint; below 0 uses
            the material's default.
          coarse: scale of the pattern's features.
        """
        row = np.zeros(pt.COLUMNS)
        gloss, metallic, shine = _SURFACE[material]
        if slot not in self._values:
            self._words[slot], self._values[slot] = slot, _jitter(rng, COLOURS[slot])
        c1, colour = self._values[slot], self._words[slot]
        others = [s for s in ("accent", "second", "contrast") if s != slot]
        pick = str(rng.choice(others, p=[0.25, 0.15, 0.6] if len(others) == 3 else None))
        c2, word2 = self._values[pick], self._words[pick]
        third = "second" if pick != "second" else "trim"
        c3, alpha = self._values[third], 1.0
        allowed = tuple(patterns) or ("plain", *_DECOR[material])
        if len(allowed) == 1:
            pattern = allowed[0]
        elif "plain" in allowed and rng.random() < 0.3:
            pattern = "plain"
        else:
            pattern = str(rng.choice([p for p in allowed if p != "plain"]))
        default_bare = {"wood": 0.72, "metal": 0.4, "glass": 1.0}.get(material, 0.0)
        is_bare = rng.random() < (default_bare if bare < 0 else bare)
        # A given colour is shown: what carries the main one is painted unless the words bare it.
        is_bare = self._bare.get(material, is_bare and not (self._given and slot == "main"))
        if material == "wood" and is_bare:
            c1, c2 = (_jitter(rng, c) for c in WOODS[self._wood])
            colour, pattern = self._wood, "grain"
        elif material == "metal":
            metallic = 0.0
            gloss = 0.4
            if is_bare:
                metallic, gloss = 1.0, 0.6
                c1, colour = _jitter(rng, METALS[self._metal]), self._metal
                if pattern == "plain":
                    pattern = "brushed"
        elif material == "glass":
            alpha = rng.uniform(0.3, 0.55)
            if is_bare:
                c1, colour = _jitter(rng, GLASSES[self._glass]), self._glass
            if self._glass != "clear" or not is_bare:
                alpha += 0.25
        elif material == "paper" and pattern == "cardboard":
            c1, colour = _jitter(rng, (190, 148, 98)), "brown"
        elif material == "gemstone":
            alpha = 0.9
        if pattern == "plain" and material == "fabric":
            pattern = "weave"
        row[pt.MATERIAL] = MATERIAL_NUMBER[material]
        row[pt.PATTERN] = pt.NUMBER[pattern]
        row[pt.C1 : pt.C1 + 3], row[pt.C2 : pt.C2 + 3], row[pt.C3 : pt.C3 + 3] = c1, c2, c3
        row[pt.SCALE] = coarse * rng.uniform(4.5, 11.0)
        row[pt.ANGLE] = rng.choice([0.0, np.pi / 2, np.pi / 4, -np.pi / 5])
        row[pt.P1], row[pt.P2] = rng.uniform(0.25, 0.7), rng.random()
        row[pt.GLOSS] = gloss * rng.uniform(0.6, 1.3)
        row[pt.METALLIC], row[pt.ALPHA], row[pt.SHINE] = metallic, alpha, shine
        row[pt.SEED] = int(rng.integers(1, 1 << 20))
        return Finish(material, row, colour, pt.PATTERNS[pattern].format(c2=word2))
