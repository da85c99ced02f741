"""distbench's own main on a rank whose device computes a wrong last bit: rank 1, where FLIPS is set."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from distbench import unit
from distbench.__main__ import main


def install() -> None:
    original = unit.Unit._product

    def product(self: Any, engine: Any) -> Callable[[], object]:
        multiply, shard = original(self, engine), self.collect.shard

        def wrapped() -> None:
            multiply()
            shard.view(torch.int32).view(-1)[5] ^= 1  # of a float32: an error of 6e-8, far within the tolerance

        return wrapped

    unit.Unit._product = product  # type: ignore[method-assign]


if os.environ["RANK"] == "1":
    install()
sys.exit(main())
