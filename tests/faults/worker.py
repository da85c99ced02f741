"""distbench's own main, with the fault that DISTBENCH_TEST_FAULT names (kind:stage:rank) in it on that rank."""

import os
import sys
import time

from inject import install

from distbench.__main__ import main
from distbench.launch import detect

kind, stage, rank = os.environ["DISTBENCH_TEST_FAULT"].split(":")
if detect(os.environ).rank == int(rank):
    if kind == "late":
        time.sleep(2)
    else:
        install(kind, stage)
sys.exit(main())
