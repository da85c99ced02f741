"""Slurm's notations: each form that it writes, whole lists there and back, and text that is none of them."""

from __future__ import annotations

import pytest

from distbench.nodelist import counts, nodes


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n0", "n0"),
        ("a,b", "a b"),
        ("n[0-1]", "n0 n1"),
        ("a,b[001,003]", "a b001 b003"),
        ("a,b[001,003-005],c", "a b001 b003 b004 b005 c"),
        ("gpu-a-[08-11]", "gpu-a-08 gpu-a-09 gpu-a-10 gpu-a-11"),
        ("gpu-2-node[9-11]", "gpu-2-node9 gpu-2-node10 gpu-2-node11"),
        ("r[1-2]n[08,10]", "r1n08 r1n10 r2n08 r2n10"),
        ("n[1-2]-ib,m[3]-ib", "n1-ib n2-ib m3-ib"),
        ("host.example.org,10.0.0.[1-2]", "host.example.org 10.0.0.1 10.0.0.2"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("7", "7"),
    ],
)
def test_every_form_of_a_node_list(text: str, names: str) -> None:
    assert nodes(text) == names.split()


@pytest.mark.parametrize(
    "text", ["", ",", "a,,b", "n[", "n]", "n[]", "n[3-1]", "n[a-b]", "n[1-]", "n[[1]]", "n[0-999999]"]
)
def test_what_is_no_node_list_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="must be a node list") as caught:
        nodes(text)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("4", [4]), ("4(x2),3", [4, 4, 3]), ("5,3", [5, 3]), ("1,2(x3),1", [1, 2, 2, 2, 1]), ("16(x1)", [16])],
)
def test_every_form_of_tasks_per_node(text: str, tasks: list[int]) -> None:
    assert counts(text) == tasks


@pytest.mark.parametrize("text", ["", "x", "4(x)", "4(2)", "4,,3", "-1", "4(x2", "1(x999999)"])
def test_what_are_no_counts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="tasks per node"):
        counts(text)
