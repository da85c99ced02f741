"""What gathering C costs on one host: gallery_small on 2 ranks, gather by each path against collect=none.

One cell per path, all of them in one world with the same A and B, each verified; their samples take turns. The span of
gather through the shared mapping may be 5 % longer than that of collect=none; the collective and send/receive are shown
beside it. The script starts its ranks through torchrun itself.
"""

from __future__ import annotations

from typing import Any

from _pairs import as_ranks, exactly, join, parser, ratios, ready_cell, show_machine, take_turns, tell

SIDES = {
    "none": ("none", "in_place"),
    "gather shared": ("gather", "shared"),
    "gather p2p": ("gather", "p2p"),
    "gather collective": ("gather", "collective"),
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=300_000, help="rows of the gallery (default 300000)")
    arguments = options.parse_args()
    as_ranks(2)
    from distbench.config import CollectName, Config, DType, Path, Workload
    from distbench.stats import median

    world = join()
    if world.is_root:
        show_machine()
    cells: dict[str, Any] = {}
    for side, (collect, path) in SIDES.items():
        workload = Workload(name="gallery_small", m=arguments.rows, n=256, k=512, dtype=DType.float64)
        config = Config(workload=workload, collect=CollectName(collect), path=Path(path), measure=exactly(1))
        cells[side] = ready_cell(world, config, like=next(iter(cells.values()), None))
    spans = take_turns(
        {side: lambda cell=cell: cell.measure().span_s[0] for side, cell in cells.items()}, arguments.pairs
    )
    if world.is_root:
        print(", ".join(f"{side} {median(taken) * 1e3:.1f} ms" for side, taken in spans.items()))
        paired = {side: ratios(taken, spans["none"]) for side, taken in spans.items() if side != "none"}
        tell("gather shared ÷ collect none, span", paired.pop("gather shared"), high=1.05)
        for side, values in paired.items():
            tell(f"{side} ÷ collect none, span", values)
    for cell in cells.values():
        cell.close()
    world.leave()


if __name__ == "__main__":
    main()
