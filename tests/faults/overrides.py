"""Overrides of every key with what people and programs type: right, nearly right, and absurd."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from hypothesis import strategies as st

from distbench.config import Config


def keys() -> list[str]:
    """Every key that can be set, with dots."""
    found: list[str] = []
    for item in fields(Config):
        value = getattr(Config(), item.name)
        found += [f"{item.name}.{inner.name}" for inner in fields(value)] if is_dataclass(value) else [item.name]
    return found


NUMBERS = ("0", "1", "-1", "2", "7", "1e3", "1.5", "-0.0", "1e400", "nan", "inf", "-inf", "1e-320", "0x10", "010")
NUMBERS += ("9" * 30, f"-{'9' * 30}", str(2**53 + 1), str(2**63), str(2**63 - 1), "1_000", "1e18", "4096", "100001")
WORDS = (
    "null",
    "true",
    "false",
    "''",
    '""',
    "none",
    "auto",
    "m",
    "k",
    "gather",
    "host",
    "shared",
    "float16",
    "bfloat16",
)
WORDS += (
    "numpy",
    "cuda",
    "nccl",
    "barrier",
    "integer",
    "ab",
    "ünïcode",
    "日本",
    "🙂",
    "\u202e",
    "a b",
    "\n",
    "\t",
    "\\",
)
WORDS += (
    "'quoted'",
    '"quoted"',
    "'open",
    '"open',
    "a=b",
    "'a=b'",
    "=",
    "==",
    ",",
    "1,",
    "[",
    "]",
    "[1,2]",
    "{}",
    "{a:1}",
)
WORDS += (
    "${workload.m}",
    "${nothing}",
    "${",
    "}",
    "${oc.env:HOME}",
    "${oc.env:NOTHING}",
    "$VALUE",
    "???",
    "~",
    "+1",
    "@",
)
WORDS += (
    "range(1,3)",
    "choice(1,2)",
    "glob(*)",
    "int(3)",
    "str(3)",
    "#x",
    "-",
    "--",
    "%s",
    "{0}",
    "a" * 5000,
    "/",
    "..",
    "\x7f",
)


def values() -> st.SearchStrategy[str]:
    return st.one_of(
        st.sampled_from(NUMBERS),
        st.sampled_from(WORDS),
        st.integers().map(str),
        st.floats().map(str),
        st.text(max_size=12),
    )


def words() -> st.SearchStrategy[str]:
    """One word of a command line."""
    groups = st.sampled_from(
        ["workload", "measure", "run", "experiment", "hydra", "hydra.run.dir", "nothing", "workload.x"]
    )
    key = st.one_of(st.sampled_from(keys()), st.sampled_from(keys()), groups)
    sign = st.sampled_from(["", "", "", "", "", "+", "++", "~"])
    usual = st.tuples(sign, key, st.just("="), values()).map("".join)
    return st.one_of(usual, usual, usual, usual, st.text(max_size=12), key)
