"""The floors of the house: a file imports only from floors below its own (README, "Layout")."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# From the ground up. Rooms of one floor never import one another; files of one room may.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("trace_jax", "trace_jax.errors"),
    (
        "trace_jax.assets",
        "trace_jax.files",
        "trace_jax.images",
        "trace_jax.progress",
        "trace_jax.types",
    ),
    ("trace_jax.nn", "trace_jax.taxonomy"),
    (
        "trace_jax.baselines",
        "trace_jax.data",
        "trace_jax.frm",
        "trace_jax.hosts",
        "trace_jax.metrics",
        "trace_jax.synthesis",
    ),
    ("trace_jax.tasks", "trace_jax.train"),
    ("converters",),
    ("trace_jax.report", "trace_jax.runs"),
    ("configs",),
    ("bin",),
)
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}

# Narrower than its floor allows, by the house's own words.
_FLOOR_FILES = {room for rooms in FLOORS[:2] for room in rooms}
ONLY = {
    "trace_jax.metrics": {"trace_jax.errors"},
    "trace_jax.report": _FLOOR_FILES | {"trace_jax.taxonomy"},
    "converters": _FLOOR_FILES | {"trace_jax.hosts", "trace_jax.nn"},
}
NEVER_AT_RUN_TIME = ("torch", "torchvision", "tensorflow")
UP_ONLY = {"converters": "bin", "configs": "bin"}  # trace_jax never imports these


def _sources() -> list[Path]:
    files = [
        p for top in ("trace_jax", "converters", "configs") for p in (ROOT / top).rglob("*.py")
    ]
    files += [
        p
        for p in (ROOT / "bin").iterdir()
        if p.is_file()
        and (p.suffix == ".py" or p.read_bytes().startswith(b"#!/usr/bin/env python"))
    ]
    return sorted(files)


def _module(path: Path) -> str:
    relative = path.relative_to(ROOT).with_suffix("")
    parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
    return ".".join(parts)


def _room(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] == "trace_jax":
        name = ".".join(parts[:2])
        if name in FLOOR:
            return name
        # `from trace_jax import __version__` reads the package itself.
        return "trace_jax" if not (ROOT / "trace_jax" / parts[1]).exists() else name
    return parts[0] if parts[0] in FLOOR else None


def _imports(path: Path) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            if module in ("trace_jax",):
                found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
            else:
                found.append((node.lineno, module))
    return found


@pytest.mark.parametrize("path", _sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    own = _room(_module(path))
    assert own in FLOOR, f"{path}: not on any floor"
    faults = []
    for line, name in _imports(path):
        top = name.split(".")[0]
        if top in NEVER_AT_RUN_TIME:
            faults.append(f"{line}: imports {name}; allowed under tests/ only")
        other = _room(name)
        if other is None or other == own:
            continue
        if own == "trace_jax.metrics" and other not in ONLY[own]:
            faults.append(f"{line}: metrics take plain arrays, not {name}")
        elif own in ONLY and other not in ONLY[own]:
            faults.append(f"{line}: {own} may not import {name}")
        elif own.startswith("trace_jax") and other in UP_ONLY:
            faults.append(f"{line}: {own} never imports {other}")
        elif FLOOR[other] >= FLOOR[own]:
            faults.append(f"{line}: {name} is not below {own}")
    assert not faults, "\n".join(faults)


def test_metrics_do_not_import_jax() -> None:
    for path in (ROOT / "trace_jax" / "metrics").rglob("*.py"):
        names = {name.split(".")[0] for _, name in _imports(path)}
        assert not names & {"jax", "flax", "optax", "jaxtyping"}, path


def test_files_stay_short() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for p in _sources()
        if (n := len(p.read_text(encoding="utf-8").splitlines())) > 450 and "hosts" not in p.parts
    }
    assert not long, f"over 450 lines: {long}"
