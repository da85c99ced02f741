"""C stays where the product wrote it: collect=none, and host on the CPU."""

from __future__ import annotations

from distbench.collects.base import Collect, Means, Site
from distbench.config import Config


class InPlace(Collect):
    """Nothing moves: C is where it should be once the product is done."""

    @staticmethod
    def elements(site: Site, config: Config) -> tuple[int, int]:
        return site.shard.c_numel, 0

    def __init__(self, site: Site, means: Means) -> None:
        self.shard = means.empty(*site.shard.c_shape)
        self.held = self.shard

    def run(self) -> None:
        pass
