"""The door, with the real Hydra: every file composes, and every refusal is one line that helps."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from distbench import compose
from distbench.compose import Refused, compose_single, conf_dir, is_multirun
from distbench.config import Config, Device, DType, Measure, Split, Upload, as_dict, keys_of
from distbench.config import Path as CollectPath

CONF = conf_dir()


def files(group: str) -> list[str]:
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


def composed(*arguments: str) -> Config:
    config = compose_single(list(arguments))
    assert config is not None
    return config


def refusal(*arguments: str) -> str:
    with pytest.raises(Refused) as caught:
        compose_single(list(arguments))
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert "$" not in message.replace(" ".join(arguments), "")  # OmegaConf's unfilled templates
    return message


@pytest.fixture(autouse=True)
def nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Composing alone must leave no folder behind, whatever becomes of it."""
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


def test_the_groups_hold_the_files_that_the_tests_below_go_through() -> None:
    assert {"gallery", "gallery_small", "batched", "square", "mlp_column", "mlp_row"} <= set(files("workload"))
    assert {"torch_loop", "cupy_threads", "pipelined", "topk"} <= set(files("method"))
    assert {"gpu", "sizes", "gallery_methods", "streams", "stream_kinds", "drives", "cpu_vs_gpu"} <= set(
        files("experiment")
    )
    assert {"default", "quick", "thorough"} <= set(files("measure"))


@pytest.mark.parametrize("name", files("workload"))
def test_a_workload_file_composes_checks_and_bears_its_own_name(name: str) -> None:
    assert composed(f"workload={name}").workload.name == name


@pytest.mark.parametrize("name", [name for name in files("experiment") if not is_multirun([f"+experiment={name}"])])
def test_an_experiment_file_composes_and_checks(name: str) -> None:
    assert composed(f"+experiment={name}") != composed()


@pytest.mark.parametrize("name", files("method"))
def test_a_method_file_composes_and_checks_in_its_experiment(name: str) -> None:
    plain = composed("+experiment=gallery_methods")
    assert composed(f"+method={name}", "+experiment=gallery_methods") != plain


@pytest.mark.parametrize("name", files("runner"))
def test_a_runner_file_composes_and_checks_in_its_experiment(name: str) -> None:
    plain = composed("+experiment=cpu_vs_gpu")
    assert composed(f"+runner={name}", "+experiment=cpu_vs_gpu") != plain


def test_the_gallery_methods_sweep_every_method_file() -> None:
    told = (CONF / "experiment/gallery_methods.yaml").read_text()
    assert set(told.partition("+method: ")[2].strip().split(",")) == set(files("method"))


@pytest.mark.parametrize("name", files("measure"))
def test_a_measure_file_composes_and_checks(name: str) -> None:
    assert as_dict(composed(f"measure={name}").measure).keys() == as_dict(Measure()).keys()


def test_the_default_is_the_small_gallery_gathered_by_the_collective() -> None:
    config = composed()
    w = config.workload
    assert (w.name, w.m, w.k, w.n, w.dtype) == ("gallery_small", 300_000, 512, 256, DType.float64)
    assert (str(config.split), str(config.collect), str(config.path)) == ("m", "gather", "auto")


def test_the_measure_default_in_yaml_is_the_one_that_the_code_states() -> None:
    assert composed("measure=default").measure == Measure()


def test_a_workload_brings_its_split_collect_and_upload() -> None:
    gallery = composed("workload=gallery")
    assert (str(gallery.split), str(gallery.collect), gallery.workload.upload) == ("m", "host", Upload.b)
    row = composed("workload=mlp_row")
    assert (str(row.split), str(row.collect)) == ("k", "all_reduce")


def test_the_command_line_wins_over_what_a_workload_sets() -> None:
    assert composed("split=n", "workload=gallery").split is Split.n
    assert composed("workload=gallery", "split=n").split is Split.n
    assert composed("+experiment=gpu", "device=cpu").device is Device.cpu
    assert composed("path=p2p").path is CollectPath.p2p


def test_an_experiment_wins_over_the_workload_that_it_is_built_on() -> None:
    config = composed("+experiment=gpu")
    assert (config.workload.name, config.workload.n, config.workload.m) == ("square", 8192, 8192)
    assert (config.workload.dtype, config.device) == (DType.bfloat16, Device.cuda)


def test_m_and_k_of_square_follow_n_unless_they_are_set() -> None:
    w = composed("workload=square", "workload.n=96", "workload.k=5").workload
    assert (w.m, w.n, w.k) == (96, 96, 5)


@pytest.mark.parametrize("text", ["1e3", "1000", "1000.0", "1_000", "1E3"])
def test_the_spellings_of_a_thousand_are_one_size(text: str) -> None:
    m = composed(f"workload.m={text}").workload.m
    assert m == 1000
    assert type(m) is int


@pytest.mark.parametrize("argument", ["--multirun", "-m", "--cfg=job", "--info=all", "--hydra-help"])
def test_what_is_hydras_own_to_do_is_left_to_hydra(argument: str) -> None:
    assert compose_single([argument, "workload.m=1,2"]) is None


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        # unknown keys: what there is, and the nearest
        ("workload.sede=1", ["workload.sede", "did you mean seed?", *keys_of("workload")]),
        ("collct=none", ["collct", "did you mean collect?", *keys_of("")]),
        ("measure.warm=1", ["measure.warm", "did you mean warmup?", *keys_of("measure")]),
        ("foo=1", ["foo: no such key", *keys_of("")]),
        ("hydra.foo=1", ["hydra.foo: no such key"]),
        ("+foo=1", ["foo", "no such key", *keys_of("")]),
        ("+workload.foo=1", ["workload.foo", "no such key", *keys_of("workload")]),
        ("++run.foo=1", ["run.foo", "no such key", *keys_of("run")]),
        ("~workload.m", ["workload.m"]),
        # unknown files
        ("workload=sqaure", ["workload=sqaure", "did you mean square?", *files("workload")]),
        ("measure=fast", ["measure=fast", *files("measure")]),
        ("+experiment=gpus", ["experiment=gpus", "did you mean gpu?", *files("experiment")]),
        ("experiment=gpu", ["experiment", "+experiment=gpu"]),
        # wrong types
        ("workload.m=abc", ["workload.m=abc", "a whole number, 1 or more"]),
        ("workload.m=010", ["workload.m=010", "a whole number, 1 or more"]),
        ("workload.m='1e3'", ["workload.m=1e3", "a whole number, 1 or more"]),
        ("workload.m=true", ["workload.m=True", "a whole number, 1 or more"]),
        ("workload.m=[1]", ["workload.m=[1]", "a whole number, 1 or more"]),
        ("workload.m={a:1}", ["workload.m=", "a whole number, 1 or more"]),
        ("workload.m=", ["workload.m=", "a whole number, 1 or more"]),
        # below a key that is no group
        ("workload.m.x=1", ["workload.m.x: no such key", *keys_of("workload")]),
        ("++workload.m.x=1", ["workload.m.x: no such key", *keys_of("workload")]),
        ("devices.a=1", ["devices.a: no such key", *keys_of("")]),
        ("++devices.0=1", ["devices.0: no such key", *keys_of("")]),
        ("~devices.a", ["devices.a: no such key", *keys_of("")]),
        ("\r.=1", [": no such key", *keys_of("")]),
        ("mesure.path=x", ["mesure.path: no such key; did you mean measure?"]),
        ("workloads.split=m", ["workloads.split: no such key; did you mean workload?"]),
        ("measure.iner=2", ["measure.iner: no such key; did you mean inner?"]),
        # lists
        ("devices=3", ["devices: must be a list, as in devices=[0,1]"]),
        ("devices={a:1}", ["devices: must be a list, as in devices=[0,1]"]),
        ("devices=[0,[1]]", ["devices=[0, [1]]: a list of device numbers"]),
        ("devices=[a]", ["devices[0]=a", "a whole number"]),
        ("collect=[a]", ["collect=['a']", "one of none, host, gather"]),
        ("workload=5", ["a group (workload, measure)", "the name of one of its files"]),
        ("workload.m=null", ["workload.m=null"]),
        ("workload.seed=1.5", ["workload.seed=1.5", "a whole number"]),
        ("workload.name=[a]", ["workload.name", "a word"]),
        ("threads=many", ["threads=many", "a whole number"]),
        ("measure.max_time_s=soon", ["measure.max_time_s=soon", "a number"]),
        ("run.dry_run=maybe", ["run.dry_run=maybe", "true or false"]),
        ("run=3", ["run=3", *keys_of("run")]),
        # enums
        ("workload.dtype=float", ["workload.dtype=float", "did you mean float", *map(str, DType)]),
        ("workload.dtype=FLOAT32", ["workload.dtype=FLOAT32", *map(str, DType)]),
        ("split=rows", ["split=rows", *map(str, Split)]),
        ("collect=gathr", ["collect=gathr", "did you mean gather?", "all_reduce"]),
        ("split=null", ["split=null"]),
        # ranges and combinations
        ("workload.m=0", ["workload.m=0", "from 1 to"]),
        ("workload.m=-1", ["workload.m=-1", "from 1 to"]),
        ("workload.m=1000.5", ["workload.m=1000.5", "a whole number"]),
        ("workload.m=inf", ["workload.m=inf", "a whole number"]),
        ("workload.m=nan", ["workload.m=nan", "a whole number"]),
        ("threads=0", ["threads=0", "from 1 to"]),
        ("measure.max_time_s=0", ["measure.max_time_s=0", "more than 0"]),
        ("collect=reduce", ["collect=reduce", "split=m", "none, host, gather, all_gather"]),
        ("path=pinned", ["path=pinned", "collect=gather", "collective, p2p, shared"]),
        # interpolations
        ("workload.m=${workload.nope}", ["workload.m", "workload.nope"]),
        ("workload.m=${nope}", ["workload.m", "nope"]),
        ("workload.m=${workload.m}", ["workload.m"]),
        ("workload.m=${oc.env:NOPE}", ["workload.m", "NOPE"]),
        ("workload.m=${nope:1}", ["workload.m", "nope"]),
        ("run=${oc.env:PATH}", ["run=", "a group of keys"]),
        ("run=${measure}", ["run.", "no such key"]),
        # a group's own name
        ("run=", ["run=: a group", "dry_run"]),
        ("run='a\nb'", ["run=a", "a group"]),
        # what cannot be read
        ("workload.m", ["workload.m", "key=value"]),
        ("a=b=c", ["a=b=c", "key=value"]),
        ("workload.m={", ["workload.m={", "key=value"]),
        ("workload.name='open", ["workload.name='open", "key=value"]),
        ("workload.m=\n", ["workload.m=", "key=value"]),
        ("workload.m=1,2", ["workload.m=1,2", "--multirun"]),
        ("--foo", ["--foo", "distbench --help"]),
        ("--cfg", ["--cfg", "distbench --help"]),
    ],
)
def test_a_refusal_is_one_line_with_the_key_and_what_is_allowed(argument: str, told: list[str]) -> None:
    message = refusal(argument)
    missing = [part for part in told if part not in message]
    assert not missing, f"{message!r} does not tell {missing}"


@pytest.mark.parametrize("argument", ["=3", "==", "@=", "workload@a=square", ":=1", "workload/a=b"])
def test_nonsense_is_refused_too_and_never_escapes_as_another_error(argument: str) -> None:
    assert len(refusal(argument)) < 300


def test_an_engine_that_cannot_do_the_dtype_is_refused_before_anything_runs() -> None:
    assert refusal("engine=numpy", "workload.dtype=bfloat16").startswith("workload.dtype=bfloat16: ")


def test_a_refusal_leaves_hydra_able_to_compose_again() -> None:
    refusal("workload.sede=1")
    refusal("a=b=c")
    assert composed() == composed()


def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = SimpleNamespace(strftime=lambda form: "2026-01-02" if "%Y" in form else "03-04-05")
    monkeypatch.setattr(compose, "time", stopped)


def test_two_runs_in_the_same_second_have_different_folders(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed_clock(monkeypatch)
    parent = tmp_path_factory.mktemp("outputs")
    new_folder = compose.new_folder.__wrapped__  # as two processes call it: each has its own cache
    first, second, third = (Path(new_folder(str(parent))) for _ in range(3))
    assert [folder.relative_to(parent).as_posix() for folder in (first, second, third)] == [
        "2026-01-02/03-04-05",
        "2026-01-02/03-04-05-1",
        "2026-01-02/03-04-05-2",
    ]
    assert all(folder.is_dir() for folder in (first, second, third))


def test_runs_that_start_at_once_never_share_a_folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed_clock(monkeypatch)
    parent = str(tmp_path_factory.mktemp("outputs"))
    with ThreadPoolExecutor(16) as pool:
        folders = list(pool.map(lambda _: compose.new_folder.__wrapped__(parent), range(64)))
    assert len(set(folders)) == 64


def test_a_process_keeps_the_folder_that_it_made(tmp_path_factory: pytest.TempPathFactory) -> None:
    parent = str(tmp_path_factory.mktemp("outputs"))
    assert compose.new_folder(parent) == compose.new_folder(parent)
