"""How every command of bin/ starts: inside .venv, with errors a user can read.

`enter` must run on whatever `python3` the shell finds, so it uses nothing newer than Python 3.8.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PYTHON = ROOT / ".venv" / "bin" / "python"


def enter(setup=False):
    """Re-executes the running script with .venv's Python, unless it runs there already.

    Args:
      setup: make or refresh .venv first (bin/setup; a moment when nothing has changed).
    """
    sys.path.insert(0, str(ROOT))
    if Path(sys.prefix).resolve() == (ROOT / ".venv").resolve():
        return
    if setup and subprocess.call([str(ROOT / "bin" / "setup")]):
        sys.exit(2)
    if not _PYTHON.exists():
        sys.exit("%s: not found. Run bin/setup once; it makes the environment." % _PYTHON)
    os.execv(str(_PYTHON), [str(_PYTHON), *sys.argv])


def main(function, arguments=False):
    """Runs an absl main; a UserError is printed plainly and ends with status 2.

    Args:
      function: takes argv, returns an exit status or None.
      arguments: whether it takes more than flags.
    """
    from absl import app, flags, logging

    from trace_jax.errors import UserError

    def guarded(argv):
        if len(argv) > 1 and not arguments:
            print("%s: unexpected argument %r; see --help" % (argv[0], argv[1]), file=sys.stderr)
            return 2
        if not flags.FLAGS["verbosity"].present:
            # Libraries' INFO lines (a backend not found, a file written) are not for users.
            logging.set_verbosity(logging.WARNING)
        try:
            return function(argv)
        except UserError as error:
            print("error: %s" % error, file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("interrupted; run the same command again to go on", file=sys.stderr)
            return 130

    flags.FLAGS.set_default("logtostderr", True)
    try:
        app.run(guarded)
    except UserError as error:  # a config page is read while flags are
        print("error: %s" % error, file=sys.stderr)
        sys.exit(2)
