"""Real photographs that ground the scenes: a folder of them, and the few each scene is given.

The photographs are the user's own (the paper's pool: about 700, mainly of Fire360; section 3). A
folder may hold subfolders named after the environment groups; a scene then draws from its own
group's where they suffice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import random
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from trace_jax import images
from trace_jax.errors import FaultsError, UserError
from trace_jax.progress import Progress
from trace_jax.synthesis.engines.base import Picture

_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"}
_LONGEST = 1536  # pixels of the longer side as sent


@dataclasses.dataclass(frozen=True)
class Reference:
    """One photograph of the pool: its file, its hash, its environment group or ""."""

    path: Path
    sha256: str
    environment: str


def scan(folder: str | Path, environments: Sequence[str], least: int) -> tuple[Reference, ...]:
    """The pool, in order of hash, so that names and places of files do not matter.

    Args:
      folder: searched with its subfolders.
      environments: names of subfolders that mean an environment group.
      least: how many different photographs are needed.

    Raises:
      UserError: no such folder, or too few photographs.
      FaultsError: files that are no pictures; all of them.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"--references={folder}: no such folder.")
    faults: list[str] = []
    found: dict[str, Reference] = {}
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in _SUFFIXES and not path.name.startswith(".")
    ]
    # Decoded whole, so that a bad one is known before money is spent.
    with Progress(len(paths), "references", "photographs") as progress:
        for path in paths:
            progress.advance()
            try:
                data = path.read_bytes()
                images.decode_rgb(data)
            except (OSError, images.BadImageError) as error:
                faults.append(f"{path}: {error}")
                continue
            inside = path.relative_to(folder).parts[:-1]
            group = next((part for part in inside if part in environments), "")
            digest = hashlib.sha256(data).hexdigest()
            found.setdefault(digest, Reference(path, digest, group))
    if faults:
        raise FaultsError(f"{folder}: not every reference can be used", faults, "Remove them.")
    if len(found) < least:
        raise UserError(
            f"--references={folder}: holds {len(found)} different photographs; a scene needs "
            f"{least}. Add more, or lower --references_max."
        )
    return tuple(found[digest] for digest in sorted(found))


def sample(
    pool: Sequence[Reference], environment: str, low: int, high: int, seed: int, name: str
) -> tuple[Reference, ...]:
    """The references of one scene: `low` to `high` different ones, the same for the same seed."""
    draw = random.Random(f"references/{seed}/{name}")
    count = draw.randint(low, high)
    own = [reference for reference in pool if reference.environment == environment]
    return tuple(draw.sample(own if len(own) >= count else list(pool), count))


def load(reference: Reference, label: str) -> Picture:
    """A reference as it is sent: at most 1536 pixels wide or high, JPEG, and without metadata.

    Cameras write places and names into files; re-encoding leaves them behind. The hash stays the
    file's own.

    Raises:
      UserError: the file has changed or gone since the scan.
    """
    try:
        data = reference.path.read_bytes()
    except OSError as error:
        raise UserError(f"{reference.path}: cannot be read ({error.strerror}).") from error
    if hashlib.sha256(data).hexdigest() != reference.sha256:
        raise UserError(f"{reference.path}: changed while the run was on. Start it again.")
    image = images.decode_rgb(data)
    image.thumbnail((_LONGEST, _LONGEST), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=90)
    return Picture(label, stream.getvalue(), "image/jpeg", reference.sha256)
