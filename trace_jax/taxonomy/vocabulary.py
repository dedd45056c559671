"""The vocabulary of TRACE as frozen rows: what `reading` reads from the data files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from trace_jax.errors import UserError
from trace_jax.taxonomy.normalise import Normaliser

GROUPS: tuple[str, ...] = ("hazard", "everyday")
LEVELS: tuple[str, ...] = ("L0", "L1", "L2", "L3", "L4")
METRICS: tuple[str, ...] = (
    "soot_coverage",
    "surface_failure",
    "deformation",
    "structural_integrity",
)
PLACEMENTS: tuple[str, ...] = ("floor", "surface", "wall", "ceiling")


@dataclasses.dataclass(frozen=True)
class ObjectType:
    """One type of object, a table of object_types/*.toml.

    Attributes:
      name: e.g. "gas_cylinder"; with spaces it is a phrase that means the type, too.
      group: "hazard" or "everyday" (paper section 3).
      functions: one or two function tags (C.5).
      parts: part name -> materials it may be made of, the commonest first (a repeated one is
        likelier). The recipe of the procedural world has the same parts.
      coco: COCO category name, or None where none is unambiguous (C.1).
      synonyms: phrases that mean this type and no other; singular, without articles.
      aliases: its names in other label sets (COCO's, folders'); they count as a whole only.
      failure: how it fails in fire, one or two sentences.
      size_m: range of a real one's longest side, metres.
      placement: where it stands in a scene: floor, surface, wall, ceiling.
      environments: the groups of environments it is found in.
    """

    name: str
    group: str
    functions: tuple[str, ...]
    parts: Mapping[str, tuple[str, ...]]
    coco: str | None
    synonyms: tuple[str, ...]
    aliases: tuple[str, ...]
    failure: str
    size_m: tuple[float, float]
    placement: tuple[str, ...]
    environments: tuple[str, ...]

    @property
    def title(self) -> str:
        """The name for prose, e.g. "gas cylinder"."""
        return self.name.replace("_", " ")

    @property
    def materials(self) -> tuple[str, ...]:
        """Every material a part of it may have, without repeats, in order of appearance."""
        return tuple(dict.fromkeys(m for made_of in self.parts.values() for m in made_of))


@dataclasses.dataclass(frozen=True)
class SeverityLevel:
    """One rung of the ladder.

    Attributes:
      name: "L0".."L4".
      title: e.g. "mild surface damage".
      description: what an object looks like at this level, after B.1.
      ranges: metric -> (low, high), fractions, Table 6.
    """

    name: str
    title: str
    description: str
    ranges: Mapping[str, tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class SceneType:
    """One type of scene.

    Attributes:
      name: e.g. "living_room".
      environment: its group.
      title: for captions, e.g. "living room".
      phrase: for prompts, a noun phrase without an article.
      objects: types usually found there; a hint for layouts, no claim.
    """

    name: str
    environment: str
    title: str
    phrase: str
    objects: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class IdentityRow:
    """One of the identities of the object-level subset (paper section 3: 499), before any fire.

    Attributes:
      name: type and number, e.g. "mug-001".
      object_type: its type.
      style: what sets it apart from its siblings, B.1's variant style.
      manufacturing: how it is made, B.1's design language; agrees with the materials.
      colourway: one to three colour words of the procedural palette, the main one first.
      materials: part -> material, every part of the type.
    """

    name: str
    object_type: str
    style: str
    manufacturing: str
    colourway: tuple[str, ...]
    materials: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Taxonomy:
    """The whole vocabulary, frozen.

    Attributes:
      name: version of the vocabulary, stored in data sets and checkpoints.
      object_types: names, files in order of their names, types as they stand in them.
      materials: in order of failure. functions: names.
      coco_categories: names of the mapped COCO categories, in order of their ids.
      coco_excluded: COCO category -> why it is not mapped.
      environments: groups -> meaning. scene_types: names.
      severity: the ladder, L0 to L4.
      metrics: metric -> its definition with its denominator.
      types: name -> ObjectType. scene_type_of: name -> SceneType.
      identities: rows in file order.
      failure_order: material -> rank, 1 fails first (paper B.1).
      failure_steps: what fails before what in B.1's words, earliest first.
      meanings: function tag -> what it means.
      coco_ids: every COCO category, mapped or not -> official id, 1 to 90.
      normaliser: the look-ups behind `normalise_*`.
    """

    name: str
    object_types: tuple[str, ...]
    materials: tuple[str, ...]
    functions: tuple[str, ...]
    coco_categories: tuple[str, ...]
    coco_excluded: Mapping[str, str]
    environments: tuple[str, ...]
    scene_types: tuple[str, ...]
    severity: tuple[SeverityLevel, ...]
    metrics: Mapping[str, str]
    types: Mapping[str, ObjectType]
    scene_type_of: Mapping[str, SceneType]
    identities: tuple[IdentityRow, ...]
    failure_order: Mapping[str, int]
    failure_steps: tuple[str, ...]
    meanings: Mapping[str, str]
    coco_ids: Mapping[str, int]
    normaliser: Normaliser = dataclasses.field(repr=False, compare=False)

    def type(self, name: str) -> ObjectType:
        """The type called `name`.

        Raises:
          UserError: there is none.
        """
        if name not in self.types:
            raise UserError(
                f"object type {name!r} is not in the taxonomy. "
                f"Known: {', '.join(self.object_types)}."
            )
        return self.types[name]

    def group_of(self, name: str) -> str:
        """ "hazard" or "everyday".

        Raises:
          UserError: the type is unknown.
        """
        return self.type(name).group

    def coco_of(self, name: str) -> str | None:
        """The COCO category of the type, None where none is unambiguous (C.1).

        Raises:
          UserError: the type is unknown.
        """
        return self.type(name).coco

    def coco_id(self, category: str) -> int:
        """The official id (1 to 90) of one of COCO's 80 categories.

        Raises:
          UserError: COCO has no such category.
        """
        if category not in self.coco_ids:
            raise UserError(
                f"{category!r} is not a COCO category. Known: {', '.join(self.coco_ids)}."
            )
        return self.coco_ids[category]

    @property
    def types_without_coco(self) -> tuple[str, ...]:
        """The types whose boxes take no part in COCO-mapped mAP."""
        return tuple(name for name, row in self.types.items() if row.coco is None)

    def normalise_material(self, text: str) -> str | None:
        """The material class that a free word or phrase names, else None (C.3)."""
        return self.normaliser.material(text)

    def normalise_type(self, text: str) -> str | None:
        """The object type that a free noun phrase names, else None (C.4)."""
        return self.normaliser.type(text)

    def normalise_function(self, text: str) -> str | None:
        """The function tag that a free statement of purpose names, else None (C.4, C.5)."""
        return self.normaliser.function(text)
