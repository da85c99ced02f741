"""Configuration: what is legal, what is refused and in which words, and what a cell's identity depends on."""

from __future__ import annotations

import copy
import itertools
import json
import math
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import pytest

from distbench.config import (
    Backend,
    CollectName,
    Config,
    ConfigError,
    Device,
    DType,
    EngineName,
    Fill,
    Path,
    Split,
    as_dict,
    cell_id,
    from_dict,
    keys_of,
)
from distbench.rules import check

# DESIGN.md, "Legal pairs" and "path", written out once more so that a slip in the table is seen.
ROWS = {"none", "host", "gather", "all_gather"}
COLLECTS = {
    "none": {"none", "host"},
    "batch": ROWS,
    "m": ROWS | {"topk"},
    "n": ROWS,
    "k": {"none", "reduce", "reduce_scatter", "all_reduce"},
}
PATHS = {
    "none": {"auto", "in_place"},
    "host": {"auto", "in_place", "fresh", "pageable", "pinned", "pipelined", "shared"},
    "topk": {"auto", "collective"},
    "gather": {"auto", "collective", "p2p", "shared"},
    "all_gather": {"auto", "collective", "p2p", "shared"},
    "reduce": {"auto", "collective"},
    "reduce_scatter": {"auto", "collective"},
    "all_reduce": {"auto", "collective"},
}


def put(config: Config, key: str, value: Any) -> Config:
    """`config` with one dotted key set, as the door would set it."""
    *groups, name = key.split(".")
    target: Any = config
    for group in groups:
        target = getattr(target, group)
    setattr(target, name, value)
    return config


def refusal(key: str, value: Any, **others: Any) -> str:
    config = Config()
    for name, other in others.items():
        put(config, name, other)
    with pytest.raises(ConfigError) as caught:
        check(put(config, key, value))
    assert caught.value.key == key
    return str(caught.value)


@pytest.mark.parametrize("split", Split, ids=str)
def test_a_collect_is_legal_exactly_for_the_splits_that_the_design_names(split: Split) -> None:
    for collect in CollectName:
        config = Config(split=split, collect=collect)
        if str(collect) in COLLECTS[str(split)]:
            check(config)
            continue
        with pytest.raises(ConfigError, match=rf"^collect={collect}: split={split} goes with ") as caught:
            check(config)
        assert set(str(caught.value).partition(" goes with ")[2].split(", ")) == COLLECTS[str(split)]


@pytest.mark.parametrize(("split", "collect"), [(s, c) for s in COLLECTS for c in sorted(COLLECTS[s])])
def test_a_path_is_legal_exactly_for_the_collects_that_have_it(split: str, collect: str) -> None:
    for path in Path:
        config = Config(split=Split(split), collect=CollectName(collect), path=path)
        if str(path) in PATHS[collect] and (split, str(path)) != ("none", "shared"):
            check(config)
            continue
        with pytest.raises(ConfigError, match=rf"^path={path}: ") as caught:
            check(config)
        if str(path) not in PATHS[collect]:
            assert set(str(caught.value).partition(f"collect={collect} goes with ")[2].split(", ")) == PATHS[collect]


def test_ranks_that_all_compute_all_of_c_do_not_write_into_one_mapping() -> None:
    message = refusal("path", Path.shared, split=Split.none, collect=CollectName.host)
    assert "split=none" in message


def test_every_collect_and_path_that_is_legal_has_an_implementation() -> None:
    from distbench.collects import TABLE, resolve_path

    for collect, paths in PATHS.items():
        for path, device in itertools.product(paths, (Device.cpu, Device.cuda)):
            assert (
                CollectName(collect),
                resolve_path(Config(collect=CollectName(collect), path=Path(path)), device),
            ) in TABLE


@pytest.mark.parametrize("name", ["batch", "m", "n", "k"])
def test_a_whole_float_becomes_an_integer_so_that_1e3_means_1000(name: str) -> None:
    config = put(Config(), f"workload.{name}", 1e3)
    check(config)
    size = getattr(config.workload, name)
    assert size == 1000
    assert type(size) is int


@pytest.mark.parametrize("name", ["batch", "m", "n", "k"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [(1000.5, "1000.5"), (math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan"), (0, "0"), (-1, "-1"), (0.0, "0.0")],
    ids=str,
)
def test_a_size_that_is_no_positive_whole_number_is_refused(name: str, value: float, shown: str) -> None:
    message = refusal(f"workload.{name}", value)
    assert message.startswith(f"workload.{name}={shown}: a whole number")
    assert "1" in message.partition(": ")[2]
    assert "\n" not in message


def test_true_is_not_taken_for_the_size_1() -> None:
    assert refusal("workload.m", True).startswith("workload.m=True: a whole number")


def test_a_size_past_the_largest_is_refused_and_the_largest_is_not() -> None:
    check(put(Config(), "workload.m", 2**40))
    assert str(2**40) in refusal("workload.m", 2**40 + 1)
    assert refusal("workload.m", 1e300).startswith("workload.m=1e+300: a whole number")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            (key, value)
            for key in ("measure.warmup", "measure.min_samples", "measure.max_samples")
            for value in (0, -1)
        ),
        *(
            (key, value)
            for key in ("measure.max_time_s", "run.timeout_s", "run.step_timeout_s")
            for value in (0.0, -1.0, math.inf, math.nan)
        ),
        *(("measure.target_rel_ci", value) for value in (0.0, 1.0, -0.1, math.nan, math.inf)),
        ("measure.warmup", 10**6 + 1),
        ("threads", 0),
        ("threads", 4097),
        ("workload.seed", -1),
        ("workload.seed", 2**63),
        ("run.world", 0),
    ],
)
def test_a_value_out_of_range_is_refused_naming_key_value_and_range(key: str, value: float) -> None:
    message = refusal(key, value)
    assert message.startswith(f"{key}={value}: ")
    assert any(digit.isdigit() for digit in message.partition(": ")[2])  # the limits are told
    assert "\n" not in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("measure.warmup", 1),
        ("measure.max_time_s", 0.001),
        ("run.timeout_s", 10.0**7),
        ("measure.target_rel_ci", 0.999),
        ("threads", 1),
        ("workload.seed", 2**63 - 1),
    ],
)
def test_the_ends_of_a_range_are_legal(key: str, value: float) -> None:
    check(put(Config(), key, value))


def test_fewer_max_samples_than_min_samples_is_allowed_and_means_the_fewer() -> None:
    config = Config()
    config.measure.max_samples = 5
    check(config)


def test_uniform_sums_that_overflow_float16_are_refused() -> None:
    config = Config()
    config.workload.dtype, config.workload.fill, config.workload.k = DType.float16, Fill.uniform, 300_000
    with pytest.raises(ConfigError, match=r"^workload.k=300000: .*overflow float16"):
        check(config)
    config.workload.k = 200_000
    check(config)


def test_a_world_is_only_planned_never_started_by_run_world() -> None:
    assert "run.dry_run=true" in refusal("run.world", 8)
    config = Config()
    config.run.world, config.run.dry_run = 8, True
    check(config)


@pytest.mark.parametrize(
    ("key", "value", "others"),
    [
        ("workload.dtype", DType.bfloat16, {"engine": EngineName.numpy}),
        ("device", Device.cuda, {"engine": EngineName.numpy}),
        ("backend", Backend.nccl, {"engine": EngineName.numpy}),
        ("backend", Backend.nccl, {"device": Device.cpu}),
    ],
    ids=str,
)
def test_what_an_engine_or_device_cannot_do_is_refused(key: str, value: Enum, others: dict[str, Any]) -> None:
    assert refusal(key, value, **others).startswith(f"{key}={value.value}: ")


def leaves(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if not is_dataclass(value):
        return [(prefix, value)]
    return [
        leaf
        for item in fields(value)
        for leaf in leaves(getattr(value, item.name), f"{prefix}.{item.name}".lstrip("."))
    ]


def other_than(value: Any) -> Any:
    """Some other value of the same kind."""
    if isinstance(value, Enum):
        members = list(type(value))
        return members[(members.index(value) + 1) % len(members)]
    if isinstance(value, bool):
        return not value
    if value is None:
        return 3
    return value + "x" if isinstance(value, str) else value + 1


@pytest.mark.parametrize(("key", "value"), leaves(Config()), ids=lambda item: str(item))
def test_a_cell_is_told_apart_by_every_key_but_those_of_run_and_guard(key: str, value: Any) -> None:
    if other_than(value) == value:  # an enum of one member cannot differ yet
        assert len(type(value)) == 1
        return
    changed = cell_id(put(Config(), key, other_than(value)), 3) != cell_id(Config(), 3)
    changes_nothing = ("run.", "guard.", "peak.", "health.", "ceilings.folder")
    assert changed == (not key.startswith(changes_nothing) or key == "health.check")


def test_a_cell_is_told_apart_by_its_world_size() -> None:
    names = {cell_id(Config(), world) for world in range(1, 10)}
    assert len(names) == 9
    assert all(len(name) == 12 and int(name, 16) >= 0 for name in names)


def test_a_cell_reaches_the_other_ranks_as_rank_0_has_it() -> None:
    config = Config()
    for key, value in leaves(config):
        put(config, key, other_than(value))
    sent = json.loads(json.dumps(as_dict(config), allow_nan=False))
    assert from_dict(sent) == config
    assert from_dict(as_dict(Config())) == Config()
    assert from_dict(sent).workload is not config.workload


def test_1e3_and_1000_are_the_same_cell() -> None:
    named = put(Config(), "workload.m", 1e3)
    check(named)
    assert cell_id(named, 3) == cell_id(put(Config(), "workload.m", 1000), 3)


def test_as_dict_leaves_its_config_alone() -> None:
    config = Config()
    before = copy.deepcopy(config)
    as_dict(config)["workload"]["m"] = 1
    assert config == before


@pytest.mark.parametrize(
    ("values", "key"), [({"foo": 1}, "foo"), ({"workload": {"foo": 1}}, "workload.foo"), ({"run": {"m": 1}}, "run.m")]
)
def test_a_key_that_nothing_reads_is_refused_by_name(values: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match="no such key") as caught:
        from_dict(values)
    assert caught.value.key == key


def test_the_keys_of_a_group_are_those_that_can_be_set() -> None:
    assert keys_of("workload") == [
        "name",
        "batch",
        "m",
        "n",
        "k",
        "dtype",
        "fill",
        "seed",
        "upload",
        "layout",
        "padding",
        "scaling",
    ]
    assert {"workload", "measure", "run", "split", "collect", "path", "engine", "drive", "device", "backend"} <= set(
        keys_of("")
    )
    assert keys_of("no_such_group") == []
    assert keys_of("threads") == []
