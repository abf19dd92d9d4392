"""Its import sends the process the signal named in ``signal.txt``, as a user may while libraries load."""

import os
import signal
from pathlib import Path

os.kill(os.getpid(), signal.Signals[Path("signal.txt").read_text()])
