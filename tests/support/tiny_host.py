"""A host of a few numbers with the interface of `hosts.base`, and data folders to feed it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from PIL import Image

from trace_jax.data import manifest
from trace_jax.runs import cache
from trace_jax.types import LEVELS, PRISTINE, Example, Features, HostSpec, TapSpec

SIDE, PATCH, DIM = 16, 4, 8
TOKENS = (SIDE // PATCH) ** 2


class TinyHost:
    """Patches times a matrix, then tanh. `lead` adds axes in front of N; `masked` varies N."""

    def __init__(self, lead=(), masked=False, weights="w0", tap="last_hidden_state", delay=0.0):
        self.lead, self.masked, self.delay = lead, masked, delay
        rng = np.random.default_rng(7)
        self.params = {"kernel": jnp.asarray(rng.normal(size=(PATCH * PATCH * 3, DIM)), "float32")}
        self.image_size = SIDE
        self.spec = HostSpec(
            name="tiny",
            family="tiny",
            tap=TapSpec(tap, None if masked else TOKENS, DIM),
            num_params=PATCH * PATCH * 3 * DIM,
            weights_hash=weights,
            preprocessing={"size": (SIDE, SIDE), "mean": 0.5},
            dtype="float32",
        )

    def preprocess(self, images):
        time.sleep(self.delay)
        for image in images:
            if image.height * 20 < image.width:
                raise ValueError("aspect ratio above 20")
        arrays = [np.asarray(image.resize((SIDE, SIDE))) for image in images]
        return {"pixel_values": np.stack(arrays).astype(np.float32) / 127.5 - 1.0}

    def apply_tap(self, params, inputs):
        x = jnp.asarray(inputs["pixel_values"])
        b, g = x.shape[0], SIDE // PATCH
        x = x.reshape(b, g, PATCH, g, PATCH, 3).transpose(0, 1, 3, 2, 4, 5).reshape(b, TOKENS, -1)
        tokens = jnp.tanh(x @ params["kernel"] * 0.3)
        for size in reversed(self.lead):
            tokens = jnp.stack([tokens + i for i in range(size)], axis=1)
        mask = None
        if self.masked:
            # Darker pictures get fewer tokens: any rule of the picture alone will do.
            count = jnp.clip(((x.mean(axis=(1, 2)) + 1) * TOKENS / 2).astype(int), 1, TOKENS)
            mask = jnp.arange(TOKENS) < count[:, None]
            mask = jnp.broadcast_to(
                mask.reshape(b, *(1 for _ in self.lead), TOKENS), tokens.shape[:-1]
            )
        return Features(tokens, mask, None, self.spec.source)

    def tap(self, inputs):
        return self.apply_tap(self.params, inputs)


def make_data(folder, identities=5, levels=LEVELS, draws=1, name="tiny_data", second_view=True):
    """Writes a data folder of small pictures; identities go 60/20/20 to the splits."""
    folder = Path(folder)
    rng = np.random.default_rng(3)
    rows = []

    def add(identity, split, severity, view=0, draw=0):
        path = f"images/{identity}/{severity}_v{view}_d{draw}.png"
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / path)
        rows.append(Example(path, identity, "mug", "plain", severity, split, view=view, draw=draw))

    for number in range(identities):
        share = number / identities
        split = "train" if share < 0.6 else "val" if share < 0.8 else "test"
        identity = f"mug_{number:03d}"
        add(identity, split, PRISTINE)
        if second_view and split != "train":
            add(identity, split, PRISTINE, view=1)
        for level in levels:
            for draw in range(draws):
                add(identity, split, level, draw=draw)
    return manifest.write(folder, manifest.DatasetInfo("objects", name, "1.0.0", ""), rows)


def make_cache(data, out, host=None, **changes):
    """Runs the caching of `data` into `out` with a tiny host."""
    host = host or TinyHost()
    config = cache.CacheConfig(
        host="tiny", data=Path(data), out=Path(out), **{"batch_size": 4, **changes}
    )
    return cache.run(config, load_host=lambda name, weights, **_: host)


def snapshot(folder):
    """Name -> bytes of every file of a folder."""
    folder = Path(folder)
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


if __name__ == "__main__":
    # A caching run to be killed: DATA OUT DELAY, seconds spent in each batch.
    make_cache(
        sys.argv[1], sys.argv[2], TinyHost(delay=float(sys.argv[3])), shard_rows=4, threads=1
    )
