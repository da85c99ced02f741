"""The command line of `distbench report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from distbench.show.runs import Run, Unusable, load, refusing, results_files


def main(arguments: list[str]) -> int:
    """`distbench report RUN…`; exit status 2 where a RUN holds no records or the page cannot be written."""
    parser = argparse.ArgumentParser(
        prog="distbench report",
        description="Show the records of runs: as one HTML page that needs no network (the default), or otherwise.",
    )
    parser.add_argument("run", nargs="+", type=Path, help="a run's folder, a results file, or a folder of runs")
    parser.add_argument("--format", choices=("html", "md", "csv", "terminal"), default=None, help="default: html")
    parser.add_argument(
        "--follow", action="store_true", help="watch a run that goes on, in the terminal; Ctrl-C ends it"
    )
    parser.add_argument("--title", help="the page's heading")
    parser.add_argument("-o", "--output", type=Path, help="write here; default: report.html in the run's folder")
    options = parser.parse_args(arguments)
    if options.follow and (options.format not in (None, "terminal") or options.output or len(options.run) > 1):
        parser.error("--follow watches one run in the terminal: give it one RUN, and neither -o nor another --format")
    return refusing(lambda: _report(options))


def _report(options: argparse.Namespace) -> int:
    if options.follow:
        from distbench.show.report.terminal import follow

        return follow(options.run[0])
    runs = load(options.run)
    form = options.format or "html"
    if form == "html":
        from distbench.show.report.page import page

        target = options.output or _place(options.run)
        _write(target, page(runs, options.title or _title(runs)))
        print(target)
        return 0
    text = _text(runs, form, options.title)
    if options.output:
        _write(options.output, text)
        print(options.output)
    else:
        print(text, end="")
    return 0


def _text(runs: list[Run], form: str, title: str | None) -> str:
    if form == "md":
        from distbench.show.markdown import markdown

        return markdown(runs, title or "Results")
    if form == "csv":
        from distbench.show.rows import cell_rows, to_csv

        return to_csv(cell_rows(runs))
    from distbench.show.report.terminal import screen

    return screen(runs)


def _place(named: list[Path]) -> Path:
    """Where the page goes: into the one run's folder, else the working folder."""
    files = [file for path in named for file in results_files(path)]
    if len(files) > 1:
        return Path("report.html")
    (file,) = files
    return file.parent / "report.html" if file.name == "results.jsonl" else file.with_suffix(".html")


def _title(runs: list[Run]) -> str:
    names = [run.name for run in runs]
    return f"distbench: {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}; choose another place with -o") from None
