"""`python -m trace_jax.taxonomy [FOLDER]`: what a taxonomy folder holds, or every fault in it."""

from __future__ import annotations

import sys
from pathlib import Path

from trace_jax.errors import UserError
from trace_jax.taxonomy.reading import load, read


def main(arguments: list[str]) -> int:
    """Prints the counts; returns 1 where the folder has faults."""
    try:
        known = read(Path(arguments[0])) if arguments else load()
    except UserError as error:
        print(error)
        return 1
    hazards = sum(row.group == "hazard" for row in known.types.values())
    for count, what in (
        (len(known.object_types), f"object types, {hazards} of them hazards"),
        (len(known.materials), "material classes"),
        (len(known.functions), "function tags"),
        (len(known.coco_categories), "COCO categories mapped"),
        (len(known.types_without_coco), "object types without a COCO category"),
        (len(known.environments), "environment groups"),
        (len(known.scene_types), "scene types"),
        (len(known.identities), "identities"),
    ):
        print(f"{count:5d} {what}")
    print("without a COCO category:", ", ".join(known.types_without_coco))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
