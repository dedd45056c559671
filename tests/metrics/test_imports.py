"""The metrics package is numpy only."""

import subprocess
import sys


def test_importing_metrics_does_not_import_jax():
    program = (
        "import sys\n"
        "from trace_jax.metrics import features, intervals, retrieval\n"
        "heavy = {'jax', 'flax', 'torch', 'tensorflow', 'scipy', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
