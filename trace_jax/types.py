"""The words the project shares: severity, features, rows of manifests and of results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import jax
from jaxtyping import Array, Bool, Float

LEVELS: tuple[str, ...] = ("L0", "L1", "L2", "L3", "L4")
PRISTINE = "pristine"
SEVERITIES: tuple[str, ...] = (PRISTINE, *LEVELS)
SPLITS: tuple[str, ...] = ("train", "val", "test")

DatasetKind = Literal["objects", "scenes", "crops"]


@dataclasses.dataclass(frozen=True)
class FeatureSource:
    """Where features came from. A recoverer fits exactly one source (paper section 4).

    Attributes:
      host: host name, e.g. "siglip2".
      tap: tap name, e.g. "last_hidden_state".
      weights_hash: hex SHA-256 over the host's source tensors (names, shapes, dtypes, bytes).
    """

    host: str
    tap: str
    weights_hash: str


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Features:
    """What a tap yields and `resume` takes.

    Attributes:
      tokens: [..., N, D], the part recovery may change; leading axes are images.
      mask: [..., N], true where a token is real, or None where N never varies.
      carry: what the host needs to go on and recovery must not touch; any pytree.
      source: static; which host, tap and weights made this.
    """

    tokens: Float[Array, "*b n d"]
    mask: Bool[Array, "*b n"] | None = None
    carry: Any = None
    source: FeatureSource = dataclasses.field(
        default=FeatureSource("", "", ""), metadata={"static": True}
    )

    def replace(self, **changes: Any) -> Features:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True)
class TapSpec:
    """One named place in a host.

    Attributes:
      name: tap name.
      tokens: N, tokens an image gives, or None where it varies.
      dim: D, width of a token.
    """

    name: str
    tokens: int | None
    dim: int


@dataclasses.dataclass(frozen=True)
class HostSpec:
    """What may be known of a bound host without running it.

    Attributes:
      name: registered host name.
      family: the Flax class family, e.g. "siglip2" for "siglip2_nano" too.
      tap: the bound tap.
      num_params: parameters of the whole host, P_host of the paper's budget rule.
      weights_hash: see FeatureSource.
      preprocessing: JSON-able description of every preprocessing constant.
      dtype: parameter dtype the host computes in.
    """

    name: str
    family: str
    tap: TapSpec
    num_params: int
    weights_hash: str
    preprocessing: Mapping[str, Any]
    dtype: str

    @property
    def source(self) -> FeatureSource:
        """The FeatureSource that this host's tap stamps on its features."""
        return FeatureSource(self.name, self.tap.name, self.weights_hash)


@dataclasses.dataclass(frozen=True)
class PartMaterial:
    """One part of an object and the normalised material class it is made of."""

    part: str
    material: str


@dataclasses.dataclass(frozen=True)
class Example:
    """One row of `manifest.jsonl`: one image of a data set of kind "objects" or "crops".

    Attributes:
      path: path from the data folder, with forward slashes; the row's key.
      identity: the physical object instance; all its rows lie in one split.
      object_type: taxonomy name of the type.
      variant: which variant of the type (style, manufacturing, colourway), free text.
      severity: "pristine" or "L0".."L4".
      split: "train", "val" or "test".
      materials: parts and their materials.
      functions: one or two canonical function tags.
      view: 0 is the reference view; 1 a second pristine view, used only as the honest ceiling.
      draw: which damage draw of the identity, from 0.
      metrics: measured severity metadata, fractions (Table 6): soot_coverage, surface_failure,
        deformation, structural_integrity. Empty where unknown.
      caption: one sentence on the state shown, or "".
      sha256: hash of the image file, or "" where the manifest does not pin it.
      description: what the fire has done at this level (paper B.1's stage, for this object), or "".
      failure_notes: how the object's weakest parts fail, or "".
    """

    path: str
    identity: str
    object_type: str
    variant: str
    severity: str
    split: str
    materials: tuple[PartMaterial, ...] = ()
    functions: tuple[str, ...] = ()
    view: int = 0
    draw: int = 0
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    caption: str = ""
    sha256: str = ""
    description: str = ""
    failure_notes: str = ""


@dataclasses.dataclass(frozen=True)
class SceneBox:
    """One object that can be seen in a scene.

    Attributes:
      box: x, y, width, height of its visible pixels, in pixels of the image as opened (EXIF
        orientation applied); x to the right and y down from the top left corner.
      object_type: taxonomy name of the type.
      coco: COCO category name of the type, or "" where none is unambiguous (paper C.1).
      materials: normalised material classes, without repeats.
      state: what the fire has done to it, a few words; "intact" in a pristine scene.
      visible: share of the object's own pixels that nothing hides, 0-1.
      identity: the physical object instance, or "" where unknown.
      crowd: true for a region of many objects of the type (COCO's `iscrowd`).
    """

    box: tuple[float, float, float, float]
    object_type: str
    coco: str = ""
    materials: tuple[str, ...] = ()
    state: str = ""
    visible: float = 1.0
    identity: str = ""
    crowd: bool = False


@dataclasses.dataclass(frozen=True)
class SceneExample:
    """One row of `manifest.jsonl`: one image of a data set of kind "scenes".

    Attributes:
      path: path from the data folder, with forward slashes; the row's key.
      layout: the arrangement; its renders at several severities are pairs, all in one split.
      environment: one of the taxonomy's environment groups.
      scene_type: one of the taxonomy's scene types.
      severity: "pristine" or "L0".."L4".
      split: "train", "val" or "test".
      width, height: of the image as opened, in pixels.
      boxes: what can be seen.
      caption: one or two sentences on the scene and its damage, or "".
      generation: how it was made (engine, prompt fields, grounding score, intended inventory ...).
        Metadata only: never read as truth (paper A.3).
      sha256: hash of the image file, or "" where the manifest does not pin it.
    """

    path: str
    layout: str
    environment: str
    scene_type: str
    severity: str
    split: str
    width: int
    height: int
    boxes: tuple[SceneBox, ...] = ()
    caption: str = ""
    generation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sha256: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
    """One number of `results.json`; fractions are 0-1.

    Attributes:
      task: "feature_recovery", "retrieval", ...
      dataset, split, gallery: what was evaluated; gallery is "" where there is none.
      host, tap: whose features.
      condition: "base", "frm", "frm_plus", "mean_shift", "mean_shift_oracle", "ridge", "pristine".
      severity: "L0".."L4", "all" (pooled over L0-L4) or "pristine".
      metric: "mse", "cosine", "r_at_1", ...
      value, low, high: the number and its bootstrap 95% interval (None where not computed).
      n: how many examples it rests on.
      group: "all", or a named subset such as "hazard" or "everyday".
    """

    task: str
    dataset: str
    split: str
    gallery: str
    host: str
    tap: str
    condition: str
    severity: str
    metric: str
    value: float
    low: float | None
    high: float | None
    n: int
    group: str = "all"
