"""How each Flax leaf is made from source tensors, and they from it: one description, both ways.

A rule names its source keys and says how they fill the leaf. Everything else follows from the
`pieces` it breaks into: what is missing, unused, claimed twice or of a wrong shape, and how to
write the Hugging Face layout back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

import numpy as np

Shape = tuple[int, ...]
Where = tuple[int | slice, ...]


@dataclasses.dataclass(frozen=True)
class Transform:
    """A re-arrangement of one tensor without arithmetic.

    Attributes:
      name: what it does, for reports.
      forward: source values to leaf values.
      inverse: back.
      rows_to: the leaf axis that runs along the source's first axis, or None when the tensor must
        be transformed whole.
    """

    name: str
    forward: Callable[[np.ndarray], np.ndarray]
    inverse: Callable[[np.ndarray], np.ndarray]
    rows_to: int | None


IDENTITY = Transform("identity", lambda x: x, lambda x: x, rows_to=0)
# torch keeps a Linear's weight as [out, in], we as [in, out].
TRANSPOSE = Transform("transpose", lambda x: x.T, lambda x: x.T, rows_to=1)
# A learned query [1, 1, D] to [1, D].
DROP_FIRST = Transform("drop first axis", lambda x: x[0], lambda x: x[None], rows_to=None)

# torch keeps a convolution's kernel as [O, I, h, w], we as [h, w, I, O].
CONVOLUTION = Transform(
    "convolution", lambda x: x.transpose(2, 3, 1, 0), lambda x: x.transpose(3, 2, 0, 1), rows_to=3
)


def patch_kernel(patch: int, channels: int = 3) -> Transform:
    """torch's convolution kernel [O, C, p, p] to [p * p * C, O], for flattened NHWC patches."""

    def forward(x: np.ndarray) -> np.ndarray:
        return x.transpose(2, 3, 1, 0).reshape(patch * patch * channels, -1)

    def inverse(x: np.ndarray) -> np.ndarray:
        return x.reshape(patch, patch, channels, -1).transpose(3, 2, 0, 1)

    return Transform("patch kernel", forward, inverse, rows_to=None)


def conv_rows(channels: int, *kernel: int) -> Transform:
    """torch's convolution kernel [O, C, *kernel] to [C * prod(kernel), O], for patches that lie as
    (C, *kernel) rows already.
    """

    def forward(x: np.ndarray) -> np.ndarray:
        return x.reshape(x.shape[0], -1).T

    def inverse(x: np.ndarray) -> np.ndarray:
        return x.T.reshape(x.shape[1], channels, *kernel)

    return Transform("convolution rows", forward, inverse, rows_to=1)


@dataclasses.dataclass(frozen=True)
class Piece:
    """Part of a source tensor that fills part of a leaf.

    Attributes:
      key: source key.
      part, parts: which of how many equal parts of the source's first axis.
      into: index into the leaf; () is all of it.
      transform: between the two.
    """

    key: str
    part: int
    parts: int
    into: Where
    transform: Transform

    def source_shape(self, leaf: Shape) -> Shape:
        """Shape of the whole source tensor, given the leaf's."""
        probe = np.broadcast_to(np.empty((), np.uint8), leaf)[self.into]
        shape = self.transform.inverse(probe).shape
        return (shape[0] * self.parts, *shape[1:]) if self.parts > 1 else shape

    def rows(self, length: int) -> tuple[int, int]:
        """First row and row past the last of a source of `length` rows."""
        size = length // self.parts
        return self.part * size, (self.part + 1) * size


class Rule(Protocol):
    """Anything that breaks a leaf of a given shape into pieces."""

    def pieces(self, leaf: Shape) -> Sequence[Piece]: ...


@dataclasses.dataclass(frozen=True)
class Take:
    """The leaf is one source tensor."""

    key: str
    transform: Transform = IDENTITY

    def pieces(self, leaf: Shape) -> Sequence[Piece]:
        return [Piece(self.key, 0, 1, (), self.transform)]


@dataclasses.dataclass(frozen=True)
class Split:
    """The leaf is one of `parts` equal parts of a source tensor's first axis, e.g. q of q|k|v."""

    key: str
    part: int
    parts: int
    transform: Transform = IDENTITY

    def pieces(self, leaf: Shape) -> Sequence[Piece]:
        return [Piece(self.key, self.part, self.parts, (), self.transform)]


@dataclasses.dataclass(frozen=True)
class Fuse:
    """The leaf is several source tensors side by side along one of its axes.

    Attributes:
      keys: their keys.
      axis: of the leaf.
      transform: of each.
      last: extent of the last one along that axis, as published; None: all are equally large.
        Files that cut the same whole elsewhere are taken too (see `fitted`).
    """

    keys: tuple[str, ...]
    axis: int
    transform: Transform = IDENTITY
    last: int | None = None

    def fitted(self, sources: Mapping[str, Shape]) -> Fuse:
        """The rule for these source tensors: the cut lies where the last one begins."""
        key = self.keys[-1]
        if self.last is None or self.transform is not IDENTITY or key not in sources:
            return self
        return dataclasses.replace(self, last=sources[key][self.axis])

    def pieces(self, leaf: Shape) -> Sequence[Piece]:
        whole, count = leaf[self.axis], len(self.keys)
        last = whole // count if self.last is None else self.last
        size = (whole - last) // max(count - 1, 1)
        before = (slice(None),) * (self.axis % len(leaf))
        return [
            Piece(key, 0, 1, (*before, slice(i * size, i * size + part)), self.transform)
            for i, (key, part) in enumerate(
                zip(self.keys, [size] * (count - 1) + [last], strict=True)
            )
        ]


@dataclasses.dataclass(frozen=True)
class Cut:
    """The leaf is several of `parts` equal parts of a source tensor's first axis, e.g. the queries
    of a fused projection whose keys and values have fewer heads.

    Attributes:
      key: source key.
      first, count: which parts.
      parts: of how many.
      axis: the leaf's axis along which they lie.
      transform: of each part.
    """

    key: str
    first: int
    count: int
    parts: int
    axis: int
    transform: Transform = IDENTITY

    def pieces(self, leaf: Shape) -> Sequence[Piece]:
        size = leaf[self.axis] // self.count
        before = (slice(None),) * (self.axis % len(leaf))
        return [
            Piece(
                self.key,
                self.first + i,
                self.parts,
                (*before, slice(i * size, (i + 1) * size)),
                self.transform,
            )
            for i in range(self.count)
        ]


@dataclasses.dataclass(frozen=True)
class Stack:
    """The leaf's leading axis runs over equal blocks; `rule`'s keys hold "{}" for the number."""

    rule: Take | Split | Fuse | Cut

    def pieces(self, leaf: Shape) -> Sequence[Piece]:
        return [
            dataclasses.replace(piece, key=piece.key.format(i), into=(i, *piece.into))
            for i in range(leaf[0])
            for piece in self.rule.pieces(leaf[1:])
        ]


def plan(
    leaves: Mapping[str, Shape],
    rules: Mapping[str, Rule],
    sources: Mapping[str, Shape],
    ignored: Mapping[str, str],
) -> tuple[dict[str, Sequence[Piece]], dict[str, str], list[str]]:
    """Matches leaves and source tensors, strictly both ways.

    Args:
      leaves: leaf path to shape.
      rules: leaf path to rule.
      sources: source key to shape.
      ignored: patterns of source keys that are left aside, with the reason.

    Returns:
      pieces by leaf path; ignored keys that were present, with their reason; every fault: a leaf
      without a rule or without its source, a source key that nothing uses, one used twice, a
      wrong shape.
    """
    faults = [f"{path}: no rule fills this leaf" for path in leaves if path not in rules]
    faults += [
        f"{path}: a rule for a leaf the model does not have" for path in set(rules) - set(leaves)
    ]
    fitted = {
        path: rule.fitted(sources) if isinstance(rule, Fuse) else rule
        for path, rule in rules.items()
    }
    pieces = {p: fitted[p].pieces(shape) for p, shape in leaves.items() if p in fitted}
    claims: dict[tuple[str, int], str] = {}
    parts: dict[str, int] = {}
    for path, found in pieces.items():
        for piece in found:
            claim = (piece.key, piece.part)
            if claim in claims or parts.setdefault(piece.key, piece.parts) != piece.parts:
                faults.append(f"{piece.key}: claimed twice, by {path} and another leaf")
            claims[claim] = path
            expected = piece.source_shape(leaves[path])
            if piece.key not in sources:
                if piece.part == 0:
                    faults.append(f"{piece.key} {list(expected)}: missing (fills {path})")
            elif sources[piece.key] != expected and piece.part == 0:
                shape = list(sources[piece.key])
                faults.append(f"{piece.key}: shape {shape}, but {path} needs {list(expected)}")
    for key, count in parts.items():
        lost = [part for part in range(count) if (key, part) not in claims]
        if lost:
            faults.append(f"{key}: parts {lost} of {count} are used by no leaf")
    skipped = {}
    for key in sources:
        if key in parts:
            continue
        reasons = [why for pattern, why in ignored.items() if fnmatchcase(key, pattern)]
        if reasons:
            skipped[key] = reasons[0]
        else:
            faults.append(f"{key} {list(sources[key])}: unused, no leaf takes it")
    return pieces, skipped, faults
