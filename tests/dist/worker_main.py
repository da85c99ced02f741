"""distbench's own main with the faults of faults.py in it."""

import os
import sys

from faults import install

from distbench.__main__ import main

install(int(os.environ["RANK"]))
sys.exit(main())
