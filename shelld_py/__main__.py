"""`python -m shelld_py`."""

import sys

from shelld_py.cli import main

sys.exit(main())
