"""A training run of a few numbers, callable here and as a script in other processes."""

from __future__ import annotations

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from trace_jax.train import distributed, loop, sharding
from trace_jax.train.optimizer import OptimizerConfig

STEPS = 16
CONFIG = loop.LoopConfig(
    steps=STEPS,
    optim=OptimizerConfig(lr=1e-2, warmup_steps=2),
    log_every=3,
    eval_every=5,
    eval_first=True,
    save_every=4,
    min_shard_size=1,
    best_metric="score",
)


def params():
    rng = np.random.default_rng(0)
    return {
        "first": {"kernel": rng.normal(size=(16, 32)).astype("f") * 0.1, "bias": np.zeros(32, "f")},
        "second": {"kernel": rng.normal(size=(32, 4)).astype("f") * 0.1},
    }


def loss(params, batch, rng):
    hidden = jnp.tanh(batch["x"] @ params["first"]["kernel"] + params["first"]["bias"])
    error = jnp.mean(jnp.square(hidden @ params["second"]["kernel"] - batch["y"]))
    noise = 0.01 * jax.random.normal(rng) * jnp.mean(hidden)
    return error + noise, {"error": error}


def batches(step):
    x = np.random.default_rng(step).normal(size=(8, 16)).astype("f")
    return {"x": x, "y": 2 * x[:, :4]}


def score(params, step):
    # The kernel may be sharded over processes; only a jitted sum is whole everywhere.
    value = jax.jit(lambda p: jnp.sum(jnp.abs(p["second"]["kernel"])))(params)
    return {"score": float(value)}


def train(workdir, source=batches, **changes):
    options = {"config": CONFIG, "evaluate": score, **changes}
    config = options.pop("config")
    return loop.fit(options.pop("loss", loss), params(), source, config, workdir=workdir, **options)


def main(workdir, delay="0", coordinator="", processes="1", number="0"):
    """Prints the log's rows without their times when done; `delay` seconds are spent a batch."""
    if coordinator:
        distributed.start(coordinator, int(processes), int(number))

    def slow(step):
        time.sleep(float(delay))
        return batches(step)

    fitted = train(workdir, slow, mesh=sharding.make_mesh())
    if int(number) == 0:
        np.savez(f"{workdir}/params.npz", *jax.tree.leaves(fitted.params))
    print(fitted.status, fitted.step)


if __name__ == "__main__":
    main(*sys.argv[1:])
