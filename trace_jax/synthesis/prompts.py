"""The prompts of the generation pipeline: template files with named fields, checked when read.

The shipped templates (templates/) say what the paper's Appendix B says, field for field and
constraint for constraint, in our words. A user's folder may hold any of the same files in place of
ours; a `{field}` is filled in, `{{` and `}}` are braces.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import string
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trace_jax import files
from trace_jax.errors import FaultsError, UserError
from trace_jax.taxonomy import IdentityRow, ObjectType, SceneType, SeverityLevel, Taxonomy

SHIPPED = Path(__file__).parent / "templates"
PREVIOUS, CANDIDATE = "Picture of the previous stage", "Candidate"

# Every field a template must carry. A missing one would drop a constraint without a word.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "pristine": (
        "obj", "variant_style", "variant_manufacturing", "variant_colorway", "part_materials",
    ),
    "variant": ("obj", "variant_style", "variant_manufacturing", "variant_colorway"),
    "consistency": (),
    "realism": ("material_rules", "failure_order"),
    "stage": (
        "obj", "stage_level", "reference", "variant_identity_block", "consistency_constraints",
        "global_realism_rules", "part_materials", "material_behavior",
        "object_specific_failure_notes", "stage_description", "severity_metrics",
    ),
    "scene": (
        "scene_type", "damage_level", "material_profile", "clutter_level", "lighting",
        "wealth_style", "layout_variant", "scene_specific",
    ),
    "judge": ("threshold",),
}  # fmt: skip
CONTROLS = ("material_profile", "clutter_level", "lighting", "wealth_style", "layout_variant")
_RULES, _CONTROLS = "material_rules.toml", "scene_controls.toml"


@dataclasses.dataclass(frozen=True)
class Templates:
    """Checked templates; `read` makes them.

    Attributes:
      texts: template name -> text.
      rules: material class (and "composite") -> {"title", "rule"}.
      controls: scene control -> its values.
      scene_specific: environment -> sentence.
      damage_level: "L0".."L4" -> words for a scene.
    """

    texts: Mapping[str, str]
    rules: Mapping[str, Mapping[str, str]]
    controls: Mapping[str, tuple[str, ...]]
    scene_specific: Mapping[str, str]
    damage_level: Mapping[str, str]

    def fill(self, name: str, **values: str) -> str:
        """One template with its fields filled in."""
        return self.texts[name].format(**values).strip()

    @functools.cached_property
    def hash(self) -> str:
        """Hex SHA-256 of everything in them."""
        return files.sha256_json(dataclasses.asdict(self))


def read(taxonomy: Taxonomy, folder: str | Path | None = None) -> Templates:
    """Reads the templates, a user's in place of ours where the folder has one.

    Args:
      taxonomy: names the materials, environments and levels that must be covered.
      folder: a user's templates, or None.

    Raises:
      UserError: the folder does not exist.
      FaultsError: unknown files, unknown or missing fields, tables that lack an entry; all at once.
    """
    paths = {path.name: path for path in SHIPPED.iterdir() if path.suffix in (".txt", ".toml")}
    faults: list[str] = []
    if folder is not None:
        own = _listing(Path(folder))
        known = ", ".join(sorted(paths))
        faults += [f"{n}: no such template. Known: {known}" for n in own if n not in paths]
        paths |= {name: path for name, path in own.items() if name in paths}
    texts = {name: _text(paths[f"{name}.txt"], faults) for name in FIELDS}
    for name, fields in FIELDS.items():
        faults += [f"{name}.txt: {what}" for what in _field_faults(texts[name], fields)]
    rules = _toml(paths[_RULES], faults)
    controls = _toml(paths[_CONTROLS], faults)
    levels = tuple(level.name for level in taxonomy.severity)
    faults += _rule_faults(rules, (*taxonomy.materials, "composite"))
    faults += _control_faults(controls, taxonomy.environments, levels)
    if faults:
        raise FaultsError(
            f"{folder or SHIPPED}: the templates cannot be used", faults, "Mend the files named."
        )
    return Templates(
        texts,
        rules,
        {name: tuple(controls[name]) for name in CONTROLS},
        controls["scene_specific"],
        controls["damage_level"],
    )


def pristine_prompt(templates: Templates, identity: IdentityRow, kind: ObjectType) -> str:
    """The text-only prompt of an identity's studio picture (paper B.1)."""
    return templates.fill(
        "pristine", **_variant(identity, kind), part_materials=_part_list(identity)
    )


def stage_prompt(
    templates: Templates,
    identity: IdentityRow,
    kind: ObjectType,
    level: SeverityLevel,
    order: tuple[str, ...],
) -> str:
    """The prompt of one stage, to be sent with the previous stage's picture (paper B.1).

    Args:
      templates: from `read`.
      identity: whose stage.
      kind: its type.
      level: the target; its description and its ranges (Table 6) go in.
      order: what fails before what, earliest first.
    """
    parts: dict[str, list[str]] = {}
    for part, material in identity.materials.items():
        parts.setdefault(material, []).append(part.replace("_", " "))
    behaviour = "\n".join(
        f"- {', '.join(names)} ({material}): {templates.rules[material]['rule']}"
        for material, names in parts.items()
    )
    ranges = "; ".join(
        f"{metric.replace('_', ' ')} {low:.0%} to {high:.0%}"
        for metric, (low, high) in level.ranges.items()
    )
    return templates.fill(
        "stage",
        obj=kind.title,
        stage_level=level.name,
        reference=PREVIOUS,
        variant_identity_block=templates.fill("variant", **_variant(identity, kind)),
        consistency_constraints=templates.fill("consistency"),
        global_realism_rules=templates.fill(
            "realism",
            material_rules="\n".join(
                f"- {rule['title']}. {rule['rule']}" for rule in templates.rules.values()
            ),
            failure_order=" -> ".join(order),
        ),
        part_materials=_part_list(identity),
        material_behavior=behaviour,
        object_specific_failure_notes=kind.failure,
        stage_description=f"{level.title}. {level.description}",
        severity_metrics=ranges,
    )


@dataclasses.dataclass(frozen=True)
class SceneBrief:
    """What one scene is asked to be.

    Attributes:
      name: its layout, e.g. "scene-000012".
      scene_type: row of the taxonomy.
      level: "L0".."L4".
      controls: field under TARGET SCENE CONTROL -> value, scene type and damage level among them.
      inventory: object types the prompt asks for; an intention, never truth (paper A.3).
      prompt: the whole text.
    """

    name: str
    scene_type: SceneType
    level: str
    controls: Mapping[str, str]
    inventory: tuple[str, ...]
    prompt: str


def scene_brief(templates: Templates, taxonomy: Taxonomy, index: int, seed: int) -> SceneBrief:
    """The brief of scene number `index`; the same for the same seed, whatever the set's size.

    Scene types and levels go round so that any run of 150 scenes holds every pair once; the other
    controls are drawn.
    """
    types, levels = taxonomy.scene_types, taxonomy.severity
    kind = taxonomy.scene_type_of[types[index % len(types)]]
    level = levels[(index + index // len(types)) % len(levels)].name
    name = f"scene-{index:06d}"
    draw = random.Random(f"brief/{seed}/{name}")
    drawn = {control: draw.choice(values) for control, values in templates.controls.items()}
    count = min(len(kind.objects), draw.randint(4, 8))
    inventory = tuple(draw.sample(kind.objects, count))
    specific = templates.scene_specific[kind.environment]
    if inventory:
        names = ", ".join(taxonomy.types[item].title for item in inventory)
        specific += (
            f"\nThings that may be found there, each in the state its material allows: {names}."
        )
    controls = {"scene_type": kind.phrase, "damage_level": templates.damage_level[level], **drawn}
    prompt = templates.fill("scene", **controls, scene_specific=specific)
    return SceneBrief(name, kind, level, controls, inventory, prompt)


def _variant(identity: IdentityRow, kind: ObjectType) -> dict[str, str]:
    return {
        "obj": kind.title,
        "variant_style": identity.style,
        "variant_manufacturing": identity.manufacturing,
        "variant_colorway": ", ".join(identity.colourway),
    }


def _part_list(identity: IdentityRow) -> str:
    return "\n".join(f"- {p.replace('_', ' ')}: {m}" for p, m in identity.materials.items())


def _listing(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise UserError(f"--templates={folder}: no such folder.")
    return {p.name: p for p in sorted(folder.iterdir()) if not p.name.startswith(".")}


def _text(path: Path, faults: list[str]) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        faults.append(f"{path.name}: cannot be read ({error})")
        return ""


def _toml(path: Path, faults: list[str]) -> dict[str, Any]:
    before = len(faults)
    text = _text(path, faults)
    try:
        return tomllib.loads(text) if len(faults) == before else {}
    except tomllib.TOMLDecodeError as error:
        faults.append(f"{path.name}: is not readable TOML ({error})")
        return {}


def _field_faults(text: str, known: tuple[str, ...]) -> list[str]:
    try:
        parsed = list(string.Formatter().parse(text))
    except ValueError as error:
        return [f"braces do not match ({error}); write {{{{ and }}}} for braces"]
    faults, found = [], set()
    for _, field, form, conversion in parsed:
        if field is None:
            continue
        # Attributes and indices ({obj.x}) would reach into the program: only plain names.
        if field not in known:
            listed = ", ".join(known) or "none"
            faults.append(f"unknown field {{{field}}}; known: {listed}")
        elif form or conversion:
            faults.append(f"field {{{field}}} must stand without a format")
        found.add(field)
    return faults + [f"field {{{field}}} is missing" for field in known if field not in found]


def _rule_faults(rules: Mapping[str, Any], known: tuple[str, ...]) -> list[str]:
    faults = [f"{_RULES}: unknown material {name!r}" for name in rules if name not in known]
    for name in known:
        row = rules.get(name)
        if not isinstance(row, dict) or set(row) != {"title", "rule"} or not _texts(row.values()):
            faults.append(f"{_RULES}: [{name}] must hold the texts title and rule")
    return faults


def _control_faults(
    table: Mapping[str, Any], environments: tuple[str, ...], levels: tuple[str, ...]
) -> list[str]:
    keyed = {"scene_specific": environments, "damage_level": levels}
    faults = [
        f"{_CONTROLS}: unknown entry {name!r}"
        for name in table
        if name not in CONTROLS and name not in keyed
    ]
    for name in CONTROLS:
        values = table.get(name)
        if not isinstance(values, list) or not values or not _texts(values):
            faults.append(f"{_CONTROLS}: {name!r} must be a list of texts")
    for name, keys in keyed.items():
        row = table.get(name)
        if not isinstance(row, dict) or set(row) != set(keys) or not _texts(row.values()):
            faults.append(f"{_CONTROLS}: [{name}] must hold one text each for {', '.join(keys)}")
    return faults


def _texts(values: Any) -> bool:
    return all(isinstance(value, str) and value.strip() for value in values)
