"""Pictures to stored tokens: decode threads feeding one jitted tap at one fixed shape.

A row's tokens depend on its own picture and on the batch's shape, never on its neighbours: a host
mixes nothing across the batch axis. Unreadable pictures and the padding of the last batch are
replaced by a blank one, so that every call has the same shape and the neighbours the same bytes.
Between batch sizes values agree to rounding, not bitwise: matrix products are tiled differently.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from PIL import Image

from trace_jax import files, images
from trace_jax.errors import UserError
from trace_jax.hosts.vision_language import VisionLanguageHost
from trace_jax.types import Example, Features

# Stands in for a picture that cannot be read; its features are never kept.
_BLANK_SIDE = 224


@dataclasses.dataclass(frozen=True)
class Encoded:
    """One encoded batch, padding cut off.

    Attributes:
      first: position of its first row.
      tokens: [n, ..., N, D] in the stored dtype.
      mask: [n, ..., N] bool, or None.
      failures: reason by position, for rows without features.
    """

    first: int
    tokens: np.ndarray
    mask: np.ndarray | None
    failures: dict[int, str]


class Encoder:
    """`host.tap`, jitted once for one batch shape, over this process's devices.

    Args:
      host: see `hosts.base`; `apply_tap`, `params`, `preprocess` are used.
      batch_size: rows a call.
      dtype: dtype to round tokens to, on the device.

    Attributes:
      compiles: how often the function was traced; 1 after any number of batches.
      wait_seconds: time spent waiting for decoded pictures.

    Raises:
      UserError: the batch does not divide over the devices.
    """

    def __init__(self, host: Any, batch_size: int, dtype: str) -> None:
        self.compiles = 0
        self.wait_seconds = 0.0
        self._host, self._batch_size = host, batch_size
        devices = jax.local_devices()
        if batch_size % len(devices):
            raise UserError(
                f"batch size {batch_size} does not divide over {len(devices)} devices; "
                f"take a multiple of {len(devices)}"
            )
        self._mesh = Mesh(np.asarray(devices), ("data",), axis_types=(AxisType.Auto,))
        self._params = host.params
        if len(devices) > 1:
            self._params = jax.tree.map(self._replicated, host.params)

        def tap(params: Any, inputs: Any) -> tuple[jax.Array, jax.Array | None, jax.Array]:
            self.compiles += 1  # runs at tracing only, once a compilation
            features: Features = host.apply_tap(params, inputs)
            tokens = features.tokens
            real = jnp.isfinite(tokens)
            if features.mask is not None:
                real |= ~features.mask[..., None]
                tokens = jnp.where(features.mask[..., None], tokens, 0)
            finite = real.all(axis=tuple(range(1, tokens.ndim)))
            return tokens.astype(dtype), features.mask, finite

        self._tap = jax.jit(tap)

    def shape(self) -> tuple[tuple[int, ...], bool]:
        """Shape [..., N, D] of a row's tokens for a blank picture, and whether there is a mask."""
        blank = self._host.preprocess([_blank()] * self._batch_size)
        features = jax.eval_shape(self._host.apply_tap, self._host.params, blank)
        return tuple(features.tokens.shape[1:]), features.mask is not None

    def run(
        self, folder: Path, examples: Sequence[Example], batches: Sequence[range], threads: int
    ) -> Iterator[Encoded]:
        """Encodes batches in order.

        Args:
          folder: the data folder.
          examples: all planned rows.
          batches: positions of each batch, at most `batch_size` long.
          threads: decode threads; each makes whole batches, a few ahead of the device.
        """
        in_flight: collections.deque[tuple[range, dict[int, str], Any]] = collections.deque()
        decoding: collections.deque[Future[Any]] = collections.deque()
        todo = iter(batches)
        with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
            try:
                while True:
                    while len(decoding) <= threads and (rows := next(todo, None)) is not None:
                        decoding.append(pool.submit(self._decode, folder, examples, rows))
                    if decoding:
                        began = time.perf_counter()
                        rows, failures, inputs = decoding.popleft().result()
                        self.wait_seconds += time.perf_counter() - began
                        in_flight.append((rows, failures, self._dispatch(inputs)))
                    # One batch stays on the device while the one before it is brought back.
                    if len(in_flight) > 1 or (in_flight and not decoding):
                        yield _collect(*in_flight.popleft())
                    elif not in_flight:
                        return
            finally:
                for future in decoding:
                    future.cancel()

    def _decode(
        self, folder: Path, examples: Sequence[Example], rows: range
    ) -> tuple[range, dict[int, str], Any]:
        failures: dict[int, str] = {}
        pictures = []
        for row in rows:
            try:
                pictures.append(_open(folder, examples[row]))
            except images.BadImageError as error:
                failures[row] = str(error)
                pictures.append(_blank())
        pictures += [_blank()] * (self._batch_size - len(rows))
        try:
            return rows, failures, self._host.preprocess(pictures)
        except UserError:
            raise
        except Exception as error:
            # Some processors refuse some pictures (too narrow, say). Find out which.
            for row, picture in zip(rows, list(pictures), strict=False):
                reason = self._refusal(picture)
                if reason:
                    failures[row] = reason
                    pictures[row - rows.start] = _blank()
            if not failures:
                raise error
            return rows, failures, self._host.preprocess(pictures)

    def _refusal(self, picture: Image.Image) -> str:
        try:
            self._host.preprocess([picture])
        except Exception as error:
            return f"is refused by the host's preprocessing ({error})"
        return ""

    def _dispatch(self, inputs: Any) -> Any:
        if self._mesh.size > 1:
            inputs = jax.tree.map(self._sharded, inputs)
        return self._tap(self._params, inputs)

    def _sharded(self, leaf: Any) -> jax.Array:
        # Inputs that are not one entry an image (flattened patches of a VLM) are replicated.
        spec = PartitionSpec("data" if leaf.shape[:1] == (self._batch_size,) else None)
        return jax.device_put(leaf, NamedSharding(self._mesh, spec))

    def _replicated(self, leaf: Any) -> jax.Array:
        if isinstance(leaf, jax.Array) and len(leaf.devices()) > 1:
            return leaf  # the host was loaded onto a mesh of its own
        return jax.device_put(leaf, NamedSharding(self._mesh, PartitionSpec()))


def sized(host: Any, side: int) -> Any:
    """A host whose pictures all give as many tokens.

    Args:
      host: a vision-language host, whose pictures may have any size; others take one size anyway.
      side: of the squares that pictures are brought to; 0 for the host's default.
    """
    if not isinstance(host, VisionLanguageHost):
        return host
    return host.at_size(side or host.default_size)


def _collect(rows: range, failures: dict[int, str], result: Any) -> Encoded:
    tokens, mask, finite = jax.device_get(result)
    for row, good in zip(rows, finite, strict=False):
        if not good and row not in failures:
            failures[row] = "gives features that are not finite"
    count = len(rows)
    return Encoded(rows.start, tokens[:count], None if mask is None else mask[:count], failures)


def _open(folder: Path, example: Example) -> Image.Image:
    path = folder / example.path
    picture = images.open_rgb(path)
    if example.sha256 and files.sha256_file(path) != example.sha256:
        raise images.BadImageError("is not the file that the manifest's sha256 pins")
    return picture


def _blank() -> Image.Image:
    return Image.new("RGB", (_BLANK_SIDE, _BLANK_SIDE), (255, 255, 255))
