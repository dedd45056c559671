"""The review of annotations by two people: the sample they look at, and how far they agree.

Paper section 3: two authors accepted or rejected a stratified 300-object subset; 93.4%, kappa
0.836. What was accepted and how the subset was stratified the paper does not say: here a label set
is right or not, and the sample is even over severity and the two groups of types.
"""

from __future__ import annotations

import base64
import csv
import html
import io
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trace_jax import files, images, taxonomy
from trace_jax.data import manifest
from trace_jax.errors import FaultsError, UserError
from trace_jax.metrics.agreement import Agreement, agreement
from trace_jax.types import LEVELS, Example

VERDICTS = ("accept", "reject")
_COLUMNS = ("path", "object_type", "severity", "materials", "functions", "verdict")
_THUMBNAIL = 128


def sample(folder: str | Path, count: int = 300, *, seed: int = 0) -> list[Example]:
    """A stratified sample of burnt images: evenly over severity and type group.

    Args:
      folder: a data folder of objects or crops.
      count: how many, of as many different identities as can be.
      seed: of the draw.

    Raises:
      UserError: there is nothing to draw from.
    """
    rows = [e for e in manifest.read(folder).examples if e.severity in LEVELS]
    if not rows:
        raise UserError(f"{folder}: has no burnt images to review.")
    types = taxonomy.load().types
    strata: dict[tuple[str, str], list[Example]] = defaultdict(list)
    for row in rows:
        group = types[row.object_type].group if row.object_type in types else ""
        strata[row.severity, group].append(row)
    rng = np.random.default_rng([seed, 300])
    queues = {
        key: [found[k] for k in rng.permutation(len(found))]
        for key, found in sorted(strata.items())
    }
    chosen: list[Example] = []
    used: set[str] = set()
    while len(chosen) < count and any(queues.values()):
        for queue in queues.values():
            if not queue or len(chosen) == count:
                continue
            fresh = next((k for k, row in enumerate(queue) if row.identity not in used), 0)
            row = queue.pop(fresh)
            used.add(row.identity)
            chosen.append(row)
    return chosen


def write_sheet(folder: str | Path, rows: Sequence[Example], out: str | Path) -> tuple[Path, Path]:
    """Writes review.csv, to fill in, and review.html, to look at, into `out`."""
    out = Path(out)
    stream = io.StringIO()
    table = csv.writer(stream)
    table.writerow(_COLUMNS)
    cards = []
    data = manifest.read(folder)
    for number, row in enumerate(rows, start=1):
        materials = ", ".join(dict.fromkeys(m.material for m in row.materials))
        functions = ", ".join(row.functions)
        table.writerow([row.path, row.object_type, row.severity, materials, functions, ""])
        picture = images.open_rgb(data.path(row))
        picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        source = base64.b64encode(buffer.getvalue()).decode()
        words = " · ".join((row.object_type.replace("_", " "), row.severity, materials, functions))
        cards.append(
            f'<figure><img src="data:image/png;base64,{source}" alt="">'
            f"<figcaption>{number}. {html.escape(words)}<br><code>{html.escape(row.path)}</code>"
            "</figcaption></figure>"
        )
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Review</title><style>'
        "body{font:14px system-ui;margin:2em}main{display:grid;gap:1em;"
        "grid-template-columns:repeat(auto-fill,minmax(11em,1fr))}figure{margin:0}"
        "img{width:8em}code{font-size:10px;word-break:break-all}</style>"
        f"<h1>{html.escape(data.info.name)}: {len(rows)} objects to review</h1><p>For each line of "
        "review.csv write accept where type, severity, materials and functions are right, else "
        f"reject.</p><main>{''.join(cards)}</main></html>"
    )
    files.write_text(out / "review.csv", stream.getvalue())
    files.write_text(out / "review.html", page)
    return out / "review.csv", out / "review.html"


def read_verdicts(path: str | Path) -> dict[str, str]:
    """A filled-in review.csv: path -> "accept" or "reject".

    Raises:
      UserError: there is no such file, or it is no CSV with columns path and verdict.
      FaultsError: verdicts that are neither word, and images that stand twice.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}).") from error
    rows = csv.DictReader(io.StringIO(text))
    if not {"path", "verdict"} <= set(rows.fieldnames or ()):
        raise UserError(f"{path}: needs columns path and verdict (make it with bin/data sample).")
    verdicts: dict[str, str] = {}
    faults = []
    for number, row in enumerate(rows, start=2):
        verdict = (row["verdict"] or "").strip().lower()
        if verdict not in VERDICTS:
            faults.append(f"line {number}: verdict {row['verdict']!r} is not accept or reject")
        name = row["path"] or ""
        if not name:
            faults.append(f"line {number}: has no path")
        if name in verdicts:
            faults.append(f"line {number}: {name} stands twice")
        verdicts[name] = verdict
    if not verdicts:
        faults.append("there is no line but the header")
    if faults:
        raise FaultsError(f"{path}: is not a filled-in review", faults)
    return verdicts


def compare(first: str | Path, second: str | Path, *, seed: int = 0) -> Agreement:
    """How far two reviewers' files agree.

    Raises:
      UserError: the files are not of the same images.
    """
    one, two = read_verdicts(first), read_verdicts(second)
    if set(one) != set(two):
        alone = sorted(set(one) ^ set(two))
        raise UserError(
            f"{first} and {second} review different images, e.g. {alone[0]} ({len(alone)} in all "
            "stand in one file only)."
        )
    return agreement([one[p] for p in one], [two[p] for p in one], seed=seed)


def described(found: Agreement) -> str:
    """The numbers beside the paper's, as lines for a terminal."""

    def span(low: float | None, high: float | None, digits: int, scale: float) -> str:
        if low is None or high is None:
            return ""
        return f" (95% {low * scale:.{digits}f} to {high * scale:.{digits}f})"

    share = span(found.agreement_low, found.agreement_high, 1, 100)
    kappa = span(found.kappa_low, found.kappa_high, 3, 1)
    return (
        f"{found.n} objects\n"
        f"agreement      {found.agreement:.1%}{share}   paper: 93.4%\n"
        f"Cohen's kappa  {found.kappa:.3f}{kappa}   paper: 0.836"
    )
