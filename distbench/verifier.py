"""What a cell asks of its ranks to know that C is right: the checks of verify and verify_topk, voted over all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from distbench import record, verify, verify_topk
from distbench.config import CollectName, Config, Split
from distbench.dtypes import result
from distbench.layout import Block
from distbench.world import World

if TYPE_CHECKING:
    import torch

    from distbench.collects.topk import TopK
    from distbench.unit import Unit


class Wrong(Exception):
    """The product is wrong; carries the verification for the record."""

    def __init__(self, verification: dict[str, Any]) -> None:
        super().__init__(verification["reason"])
        self.verification = verification


class Verifier:
    """Checks what every unit holds. All ranks make and call it together; a wrong product raises Wrong on all of them."""

    def __init__(self, world: World, config: Config, problem: Block, units: list[Unit]) -> None:
        self.world, self.config, self.problem, self.units = world, config, problem, units
        self.x = verify.random_x(config.workload.seed, problem.n.size)
        self.own = self._each(lambda unit: verify.expected_part(unit.a, unit.b, unit.site, self.x, config.workload))
        self.is_local = config.collect in (CollectName.none, CollectName.host)
        self.expected = self.own if self.is_local or config.collect is CollectName.topk else [self._summed()]
        self.first: tuple[torch.Tensor, torch.Tensor] | None = None

    def check(self) -> dict[str, Any]:
        """After the first run. Returns the record's verification.

        Where the collect adds products up, each rank's own product is computed once more and checked alone: in a sum over
        ranks in a narrow dtype one rank's error of a percent would hide in the roundings.
        """
        if self.config.collect is CollectName.topk:
            return self._check_topk()
        verification = self._check_held()
        if self.config.split is Split.k and not self.is_local:
            self.world.attempt("verify", self._multiply)
            self._agree(
                self._each(lambda unit, own: self._verdict(unit, self._shard(unit), unit.site.shard, own), self.own)
            )
        return verification

    def check_again(self) -> None:
        """After the last sample: what it left must be right too."""
        if self.config.collect is not CollectName.topk:
            self._check_held()
            return

        def same() -> str | None:
            if not self.world.is_root or self.first is None:
                return None
            now = self._winners()
            equal = all(bool((a == b).all()) for a, b in zip(now, self.first, strict=True))
            return None if equal else "the last sample's winners differ from the first's"

        told = self.world.gather_json(self.world.attempt("verify", same))
        if told[0] is not None:
            raise Wrong(
                {"ok": False, "method": verify_topk.METHOD, "max_error": None, "tolerance": 0.0, "reason": told[0]}
            )

    # --- C as it is held ---------------------------------------------------------------------------------------------

    def _check_held(self) -> dict[str, Any]:
        return self._agree(
            self._each(lambda unit, rows: self._verdict(unit, self._held(unit), unit.site.held, rows), self.expected)
        )

    def _verdict(
        self, unit: Unit, held: torch.Tensor | None, block: Block | None, rows: torch.Tensor
    ) -> dict[str, Any] | None:
        if held is None or block is None:
            return None
        alone = block is unit.site.shard and not self.is_local
        return asdict(verify.check(held, block, rows, self.x, self.config.workload, unit.site, own=alone))

    def _agree(self, verdicts: list[dict[str, Any] | None]) -> dict[str, Any]:
        told = [verdict for row in self.world.gather_json(record.finite(verdicts)) for verdict in row]
        verification = verify.combined(told)
        if not verification["ok"]:
            raise Wrong(verification)
        return verification

    def _summed(self) -> torch.Tensor:
        """A·(B·x) of all rows that this rank's unit holds, summed over the ranks."""
        (unit,) = self.units
        total = self.world.sum_floats(self._each(lambda unit, own: verify.placed(own, unit.site), self.own)[0])
        held = unit.site.held
        return total if held is None else total[held.batch.slice, held.m.slice]

    def _multiply(self) -> None:
        for unit in self.units:
            assert unit.multiply is not None
            unit.multiply()

    # --- top-k -------------------------------------------------------------------------------------------------------

    def _check_topk(self) -> dict[str, Any]:
        import torch

        world, workload = self.world, self.config.workload
        self.first = self._winners() if world.is_root else None
        told = None if self.first is None else [part.double().tolist() for part in self.first]
        values, rows = (torch.tensor(part, dtype=torch.float64) for part in world.broadcast_json(record.finite(told)))
        (unit,) = self.units
        winners = (values.to(result(workload.dtype)), rows.long())

        def chunks() -> tuple[dict[str, Any], torch.Tensor]:
            return verify_topk.check_chunks(unit, cast("TopK", unit.collect), winners, self.own[0], self.x)

        verdict, counts = world.attempt("verify", chunks)
        counts = world.sum_floats(counts)
        verdicts = world.gather_json(record.finite(verdict))

        def judged() -> dict[str, Any]:
            error, tolerance, detail = verify_topk.check_winners(*winners, counts, workload, unit.site)
            own = {"ok": not detail, "max_error": error, "tolerance": tolerance, "product_error": 0.0}
            return own | {"product_tolerance": 0.0, "detail": detail}

        verdicts.append(world.broadcast_json(record.finite(world.attempt("verify", judged))))
        verification = verify.combined(verdicts) | {"method": verify_topk.METHOD, "ranks_checked": world.size}
        verification["wrong_ranks"] = [rank for rank in verification["wrong_ranks"] if rank < world.size]
        if not verification["ok"]:
            raise Wrong(verification)
        return verification

    def _winners(self) -> tuple[torch.Tensor, torch.Tensor]:
        collect = cast("TopK", self.units[0].collect)
        return collect.values.clone(), collect.indices.clone()

    # --- units -------------------------------------------------------------------------------------------------------

    def _each(self, step: Callable[..., Any], *rows: list[Any]) -> list[Any]:
        """`step` of every unit of this process (with its rows), and the vote on it."""
        return self.world.attempt(
            "verify", lambda: [step(unit, *told) for unit, *told in zip(self.units, *rows, strict=True)]
        )

    @staticmethod
    def _held(unit: Unit) -> torch.Tensor | None:
        return None if unit.collect is None else unit.collect.held

    @staticmethod
    def _shard(unit: Unit) -> torch.Tensor | None:
        return None if unit.collect is None else unit.collect.shard
