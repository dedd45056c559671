"""Recipes: the geometry of each object type as data, and the interpreter that builds it.

A recipe is one table of `recipes/*.toml`, named as the taxonomy's type:

  params   drawn in order for every instance: `[low, high]` uniform, `{int = [a, b]}`,
           `{pick = [...]}`, `{chance = p}`, a number, or an expression over earlier ones
  derived  more expressions, after all params
  looks    part -> {slot, patterns, bare, coarse}: how a taxonomy part is finished, see palette;
           a slot is a colour of the object or a word of palette.COLOURS
  hues     likely main colours
  yaw, pitch   the range of the reference view in degrees
  parts    primitives, each of a taxonomy `part`: `shape` with its sizes (see `_SHAPES`), `at`
           (bottom centre, or the centre for ball, ring and disc), `rot` (degrees about x, y, z,
           applied at `at`), `mirror` ("x", "y", "xy"), `each` (how many; `i` and `n` are known
           inside), `when` (once) and `only` (for each `i`)

Sizes are expressions (see expressions.py) in object units.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trace_jax import taxonomy
from trace_jax.errors import FaultsError
from trace_jax.synthesis.procedural import shapes
from trace_jax.synthesis.procedural.expressions import ExpressionError, evaluate, names_in
from trace_jax.synthesis.procedural.mesh import Mesh
from trace_jax.synthesis.procedural.palette import COLOURS, Finish, Palette
from trace_jax.synthesis.procedural.patterns import PATTERNS

_FOLDER = Path(__file__).parent / "recipes"
_SLOTS = frozenset(
    ("main", "accent", "second", "trim", "dark", "light", "black", "white", "contrast", *COLOURS)
)
_AXES = {"x": (0.0, 90.0, 0.0), "y": (90.0, 0.0, 0.0), "z": (0.0, 0.0, 0.0)}


def _cylinder(a: Mapping[str, Any]) -> shapes.Surface:
    top = a.get("r2", a["r"])
    bevel = min(a.get("bevel", 0.0), 0.45 * a["h"], 0.9 * a["r"], 0.9 * top)
    h = a["h"]
    if bevel > 0:
        rows = [
            [0, 0],
            [0, a["r"] - bevel],
            [bevel, a["r"]],
            [h - bevel, top],
            [h, top - bevel],
            [h, 0],
        ]
    else:
        rows = [[0, 0], [0, a["r"]], [h, top], [h, 0]]
    return shapes.loft(rows)


def _disc(a: Mapping[str, Any]) -> shapes.Surface:
    h, r = a["h"] / 2, a["r"]
    return shapes.loft([[-h, 0], [-h, r], [h, r], [h, 0]])


def _ring(a: Mapping[str, Any]) -> shapes.Surface:
    big = a["R"]
    path = [[big * math.cos(t), big * math.sin(t), 0.0] for t in np.linspace(0, math.tau, 13)[:-1]]
    return shapes.tube(path, a["r"], closed=True, smooth=True)


def _rod(a: Mapping[str, Any]) -> shapes.Surface:
    rod = shapes.tube([a["from"], a["to"]], [a["r"], a.get("r2", a["r"])])
    if not a.get("round", False):
        return rod
    ball = shapes.ellipsoid([a.get("r2", a["r"])] * 3)
    ball.points = ball.points + np.array(a["to"])
    return shapes.join([rod, ball])


_Builder = Callable[[Mapping[str, Any]], shapes.Surface]
# shape -> (builder, needed fields, optional fields)
_SHAPES: dict[str, tuple[_Builder, tuple[str, ...], tuple[str, ...]]] = {
    "box": (
        lambda a: shapes.box(a["size"], a.get("radius", 0.0), a.get("taper", 1.0)),
        ("size",),
        ("radius", "taper"),
    ),
    "cyl": (_cylinder, ("r", "h"), ("r2", "bevel")),
    "disc": (_disc, ("r", "h"), ("axis",)),
    "ring": (_ring, ("R", "r"), ("axis",)),
    "ball": (lambda a: shapes.ellipsoid(a["size"]), ("size",), ()),
    "dome": (lambda a: shapes.ellipsoid(a["size"], 0.0, 90.0), ("size",), ()),
    "rod": (_rod, ("from", "to", "r"), ("r2", "round")),
    "tube": (
        lambda a: shapes.tube(
            a["path"], a["r"], a.get("closed", False), a.get("smooth", False), a.get("flat", 1.0)
        ),
        ("path", "r"),
        ("closed", "smooth", "flat"),
    ),
    "plate": (
        lambda a: shapes.plate(a["outline"], a["h"], a.get("smooth", False)),
        ("outline", "h"),
        ("smooth",),
    ),
    "loft": (
        lambda a: shapes.loft(
            a["sections"], int(a.get("sides", 0)), a.get("power", 2.0), a.get("smooth", False)
        ),
        ("sections",),
        ("sides", "power", "smooth"),
    ),
}  # fmt: skip
_PLACING = ("part", "shape", "at", "rot", "mirror", "each", "when", "only")
_LITERAL = frozenset(("part", "shape", "mirror", "axis"))


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One type's recipe, as read; see the module's docstring for its fields."""

    name: str
    params: Mapping[str, Any]
    derived: Mapping[str, str]
    looks: Mapping[str, Mapping[str, Any]]
    hues: tuple[str, ...]
    yaw: tuple[float, float]
    pitch: tuple[float, float]
    parts: tuple[Mapping[str, Any], ...]


@functools.cache
def load() -> Mapping[str, Recipe]:
    """The shipped recipes by type name."""
    return read(_FOLDER, taxonomy.load())


def read(folder: Path, vocabulary: taxonomy.Taxonomy) -> dict[str, Recipe]:
    """Reads and checks every `*.toml` of a folder against the vocabulary.

    Raises:
      FaultsError: every fault of every recipe.
    """
    found: dict[str, Recipe] = {}
    faults: list[str] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            faults.append(f"{path.name}: is not TOML ({error})")
            continue
        for name, table in tables.items():
            recipe = Recipe(
                name,
                table.get("params", {}),
                table.get("derived", {}),
                table.get("looks", {}),
                tuple(table.get("hues", ())),
                tuple(table.get("yaw", (-38, 38))),
                tuple(table.get("pitch", (12, 28))),
                tuple(table.get("parts", ())),
            )
            if name in found:
                faults.append(f"{path.name}: {name} is defined twice")
            faults += [f"{path.name}: {name}: {fault}" for fault in _check(recipe, vocabulary)]
            found[name] = recipe
    if faults:
        raise FaultsError(f"{folder}: recipes are not usable", faults, "Mend the files named.")
    # A type of the vocabulary may lack a recipe (a user's own list): the world leaves it out.
    return {name: found[name] for name in vocabulary.object_types if name in found}


def _check(recipe: Recipe, vocabulary: taxonomy.Taxonomy) -> list[str]:
    if recipe.name not in vocabulary.types:
        return ["is not a type of the taxonomy"]
    faults = []
    known_parts = vocabulary.types[recipe.name].parts
    used = {str(piece.get("part")) for piece in recipe.parts}
    faults += [f"part {part!r} is not in the taxonomy" for part in sorted(used - set(known_parts))]
    faults += [f"taxonomy part {part!r} is never built" for part in known_parts if part not in used]
    faults += [
        f"looks of unknown part {part!r}" for part in recipe.looks if part not in known_parts
    ]
    for part, look in recipe.looks.items():
        if look.get("slot", "main") not in _SLOTS:
            faults.append(f"{part}: unknown colour slot {look['slot']!r}")
        faults += [
            f"{part}: unknown pattern {p!r}" for p in look.get("patterns", ()) if p not in PATTERNS
        ]
    names = {*recipe.params, *recipe.derived, "i", "n"}
    for number, piece in enumerate(recipe.parts):
        where = f"piece {number} ({piece.get('part')})"
        shape = piece.get("shape")
        if shape not in _SHAPES:
            faults.append(f"{where}: unknown shape {shape!r}")
            continue
        _, needed, optional = _SHAPES[shape]
        faults += [f"{where}: {shape} needs {field!r}" for field in needed if field not in piece]
        allowed = {*needed, *optional, *_PLACING}
        faults += [f"{where}: unknown field {field!r}" for field in piece if field not in allowed]
        faults += [
            f"{where}: {fault}"
            for field, value in piece.items()
            if field not in _LITERAL
            for fault in _check_expression(value, names)
        ]
    return faults


def _check_expression(value: Any, names: set[str]) -> list[str]:
    if isinstance(value, list):
        return [fault for item in value for fault in _check_expression(item, names)]
    if not isinstance(value, str):
        return []
    try:
        return [f"{value!r} uses unknown {name!r}" for name in sorted(names_in(value) - names)]
    except ExpressionError as error:
        return [str(error)]


def draw_params(recipe: Recipe, rng: np.random.Generator) -> dict[str, Any]:
    """One instance's parameters by name."""
    values: dict[str, Any] = {}
    for name, rule in recipe.params.items():
        if isinstance(rule, list):
            values[name] = float(rng.uniform(*rule))
        elif isinstance(rule, dict) and "int" in rule:
            low, high = rule["int"]
            values[name] = int(rng.integers(low, high + 1))
        elif isinstance(rule, dict) and "pick" in rule:
            values[name] = rule["pick"][int(rng.integers(len(rule["pick"])))]
        elif isinstance(rule, dict) and "chance" in rule:
            values[name] = bool(rng.random() < rule["chance"])
        else:
            values[name] = evaluate(rule, values)
    for name, rule in recipe.derived.items():
        values[name] = evaluate(rule, values)
    return values


def build(
    recipe: Recipe,
    rng: np.random.Generator,
    materials: Mapping[str, str] | None = None,
    colours: Sequence[str] = (),
) -> tuple[Mesh, dict[str, Any]]:
    """Draws an instance.

    Args:
      recipe: its type's.
      rng: draws whatever is not given.
      materials: part -> material, for parts whose material is given.
      colours: a colourway, see Palette.

    Returns:
      The mesh, standing on the floor about the origin, and the drawn parameters.
    """
    parts = taxonomy.load().types[recipe.name].parts
    values = draw_params(recipe, rng)
    palette = Palette(rng, recipe.hues, colours)
    finishes = _finishes(recipe, parts, palette, rng, materials or {})
    order = list(finishes)
    placed: list[tuple[str, shapes.Surface]] = []
    for piece in recipe.parts:
        if "when" in piece and not evaluate(piece["when"], values):
            continue
        count = int(evaluate(piece.get("each", 1), values))
        scope = dict(values)
        if "each" in piece:
            scope["n"] = count
        for i in range(count):
            scope["i"] = i
            if "only" in piece and not evaluate(piece["only"], scope):
                continue
            surface = _surface(piece, scope)
            placed += [(piece["part"], s) for s in _mirrored(surface, piece.get("mirror", ""))]
    used = [name for name in order if any(part == name for part, _ in placed)]
    index = {name: k for k, name in enumerate(used)}
    merged = shapes.join([surface for _, surface in placed])
    sizes = [len(surface.points) for _, surface in placed]
    points = merged.points.astype(np.float32)
    low, high = points.min(0), points.max(0)
    points = points - np.array([(low[0] + high[0]) / 2, (low[1] + high[1]) / 2, low[2]], np.float32)
    mesh = Mesh(
        points,
        merged.uv.astype(np.float32),
        merged.st.astype(np.float32),
        merged.faces,
        merged.weld.astype(np.int64),
        np.repeat(np.arange(len(placed)), sizes).astype(np.int32),
        np.repeat([index[part] for part, _ in placed], sizes).astype(np.int32),
        tuple(finishes[name] for name in used),
        tuple(used),
    )
    return mesh, values


def _finishes(
    recipe: Recipe,
    parts: Mapping[str, tuple[str, ...]],
    palette: Palette,
    rng: np.random.Generator,
    given: Mapping[str, str],
) -> dict[str, Finish]:
    drawn: dict[str, str] = {}
    finishes: dict[str, Finish] = {}
    for name, allowed in parts.items():
        look = recipe.looks.get(name, {})
        material = allowed[int(rng.integers(len(allowed)))]
        # Parts of one colour slot tend to be of one stuff: a mug's handle follows its body.
        slot = look.get("slot", "main")
        if slot in drawn and drawn[slot] in allowed:
            material = drawn[slot]
        material = given.get(name, material)
        drawn.setdefault(slot, material)
        finishes[name] = palette.finish(
            rng,
            material,
            slot,
            look.get("patterns", ()),
            look.get("bare", -1.0),
            look.get("coarse", 1.0),
        )
    return finishes


def _surface(piece: Mapping[str, Any], scope: Mapping[str, Any]) -> shapes.Surface:
    builder, needed, optional = _SHAPES[piece["shape"]]
    fields = {
        name: evaluate(piece[name], scope)
        for name in (*needed, *optional)
        if name in piece and name not in _LITERAL
    }
    surface = builder(fields)
    points = surface.points
    if "axis" in piece:
        points = points @ _rotation(_AXES[piece["axis"]]).T
    if "rot" in piece:
        points = points @ _rotation(evaluate(piece["rot"], scope)).T
    if "at" in piece:
        points = points + np.array(evaluate(piece["at"], scope), float)
    return dataclasses.replace(surface, points=points)


def _rotation(degrees: Any) -> np.ndarray:
    a, b, c = np.radians(np.asarray(degrees, float))
    x = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    y = np.array([[np.cos(b), 0, np.sin(b)], [0, 1, 0], [-np.sin(b), 0, np.cos(b)]])
    z = np.array([[np.cos(c), -np.sin(c), 0], [np.sin(c), np.cos(c), 0], [0, 0, 1]])
    return z @ y @ x


def _mirrored(surface: shapes.Surface, mirror: str) -> list[shapes.Surface]:
    out = [surface]
    for axis, name in enumerate("xy"):
        if name in mirror:
            sign = np.ones(3)
            sign[axis] = -1
            out += [
                dataclasses.replace(
                    s, points=s.points * sign, faces=np.ascontiguousarray(s.faces[:, ::-1])
                )
                for s in out
            ]
    return out
