"""Verbs that ask a running server: decide, calibrate, bench, selftest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console

from decideploy.cli.options import CONCURRENCY, concurrency_option, server_options
from decideploy.cli.output import AddVerb, print_json
from decideploy.cli.values import folds, json_object, kind, positive, seconds, several, utf8
from decideploy.counted import counted
from decideploy.errors import ConfigError, Error
from decideploy.overwriting import check_absent, file_exists
from decideploy.texts import read_text

if TYPE_CHECKING:
    from rich.progress import Progress


def add_verbs(verb: AddVerb) -> None:
    """Add the verbs of this module."""
    _decide_options(verb("decide", _decide, "Ask a running server one question, or a file of them"))

    _calibrate_options(verb("calibrate", _calibrate, "Fit a temperature for each kind to labelled decisions"))

    _bench_options(verb("bench", _bench, "Measure latency and throughput of a running server"))

    sub = verb("selftest", _selftest, "Prove that a running server answers rightly")
    _selftest_options(sub)


def _decide_options(sub: argparse.ArgumentParser) -> None:
    server_options(sub)
    sub.add_argument("--kind", choices=["noul", "score", "choice"], help="kind of question")
    sub.add_argument("--question", type=utf8, help="the question")
    sub.add_argument("--state", type=utf8, help="what the question is about: text, @file or - (stdin)")
    sub.add_argument("--options", type=several(utf8), help="the options of a choice, separated by commas")
    sub.add_argument(
        "--option", type=utf8, action="append", metavar="TEXT", help="one option; can be given repeatedly"
    )
    sub.add_argument(
        "--image",
        action="append",
        metavar="FILE|URL",
        help="an image that follows the state; can be given repeatedly",
    )
    sub.add_argument(
        "--strategy", choices=["tournament", "single", "permute"], help="how more than 16 options are read"
    )
    sub.add_argument("--thinking", choices=["off", "auto", "on"], help="whether System 2 reasons first")
    sub.add_argument("--threshold", type=float, metavar="P", help="auto thinks below this probability")
    sub.add_argument("--think-budget", type=positive, metavar="TOKENS", help="most tokens of a thought")
    sub.add_argument(
        "--chat-template-kwargs", type=json_object, metavar="JSON", help="passed to the chat template"
    )
    sub.add_argument("--calibration", choices=["default", "gold"], help="which of the model's calibrations")
    sub.add_argument("--return-reasoning", action="store_true", help="return the thought's text as well")
    sub.add_argument("--debug", action="store_true", help="return each system's distribution as well")
    sub.add_argument(
        "--batch",
        metavar="FILE|-",
        help="JSONL, one request a line; the other options give the fields that a line leaves out",
    )
    sub.add_argument("--out", type=Path, metavar="FILE", help="where a batch's results go (default: stdout)")
    sub.add_argument("--force", action="store_true", help="overwrite --out")
    concurrency_option(sub)


def _decide(options: argparse.Namespace, console: Console) -> int:
    from decideploy.decide import parse_request
    from decideploy.decide.client import post_decision, print_decision, read_api_key

    _check_used(options)
    if options.batch is not None:
        return _decide_batch(options, console)
    missing = [f"--{name}" for name in ("kind", "question") if getattr(options, name) is None]
    if options.state is None and not options.image:
        missing.append("--state")
    if missing:
        raise ConfigError(
            f"a decision needs {', '.join(missing)}", next_step="see `decideploy decide --help`"
        )
    request = parse_request(_decide_fields(options))
    api_key = read_api_key(options.api_key_file)
    response = post_decision(options.url, request, timeout_s=options.timeout, api_key=api_key)
    if options.json:
        print_json(response.model_dump(mode="json", exclude_none=True))
    else:
        print_decision(response, console)
    return 0


def _check_used(options: argparse.Namespace) -> None:
    """ConfigError for options that would do nothing, though whoever gave them expects something."""
    idle = [
        f"--{name} has no effect without --batch"
        for name in ("out", "concurrency")
        if getattr(options, name) is not None and options.batch is None
    ]
    if idle:
        raise ConfigError("; ".join(idle), next_step="give --batch FILE, or leave it out")
    _check_force(options)


def _check_force(options: argparse.Namespace, target: str = "out") -> None:
    if options.force and getattr(options, target) is None:
        raise ConfigError(
            f"--force has no effect without --{target}", next_step=f"give --{target} FILE, or leave it out"
        )


def _decide_fields(options: argparse.Namespace) -> dict[str, Any]:
    """The request's fields that the command line sets."""
    from decideploy.decide.client import read_state, with_images

    names = ("kind", "question", "thinking", "threshold", "think_budget", "strategy", "calibration")
    fields = {name: getattr(options, name) for name in names}
    fields |= {name: getattr(options, name) or None for name in ("return_reasoning", "debug")}
    fields["chat_template_kwargs"] = options.chat_template_kwargs
    fields["options"] = [*(options.options or ()), *(options.option or ())] or None
    fields["state"] = None if options.state is None else read_state(options.state)
    if options.image:
        fields["state"] = with_images(fields["state"], options.image)
    return {name: value for name, value in fields.items() if value is not None}


def _decide_batch(options: argparse.Namespace, console: Console) -> int:
    from decideploy.decide.batch import Results, read_lines, run_batch
    from decideploy.decide.client import read_api_key

    if options.batch == options.state == "-":
        raise ConfigError("--batch and --state cannot both be standard input")
    lines = read_lines(_jsonl(options.batch), _decide_fields(options))
    if not lines:
        raise ConfigError(
            "the batch holds no request",
            where="standard input" if options.batch == "-" else options.batch,
            next_step="name a file with one request a line",
        )
    stderr = Console(stderr=True, highlight=False)
    api_key = read_api_key(options.api_key_file)

    def failed(number: int, error: Error) -> None:
        stderr.print(f"line {number}: {error.what}", style="red", markup=False, soft_wrap=True)

    with _results_file(options.out, force=options.force) as out, _progress(stderr) as progress:
        results = Results(out=out, numbers=[line.number for line in lines], failed=failed)
        task = progress.add_task("decisions", total=len(lines))
        run_batch(
            options.url,
            lines,
            results,
            concurrency=options.concurrency or CONCURRENCY,
            timeout_s=options.timeout,
            api_key=api_key,
            advance=lambda: progress.advance(task),
        )
    if results.failures:
        stderr.print(f"{results.failures} of {counted(len(lines), 'line')} failed", style="red")
    return results.exit_code


def _jsonl(name: str) -> list[str]:
    """The lines of the file ``name``, or of standard input when it is ``-``."""
    # Not splitlines(): that ends a line at characters that JSON allows inside a string.
    return read_text(name).split("\n")


@contextmanager
def _results_file(path: Path | None, *, force: bool) -> Iterator[TextIO]:
    """``path`` opened for writing, or standard output; ConfigError when it exists, unless ``force``."""
    if path is None:
        yield sys.stdout
        return
    try:
        out = path.open("w" if force else "x", encoding="utf-8")
    except FileExistsError as error:
        raise file_exists(path) from error
    with out:
        yield out


def _progress(console: Console) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        # Results may go to the same terminal; the bar must not stay between them.
        transient=True,
        redirect_stdout=False,
    )


def _calibrate_options(sub: argparse.ArgumentParser) -> None:
    server_options(sub)
    sub.add_argument("--data", type=Path, required=True, metavar="FILE", help="JSONL of labelled decisions")
    sub.add_argument("--out", type=Path, metavar="FILE", help="write the model's calibration.json")
    sub.add_argument("--force", action="store_true", help="overwrite --out")
    sub.add_argument("--plot", type=Path, metavar="DIR", help="draw reliability diagrams, PNG and SVG")
    sub.add_argument(
        "--folds",
        type=folds,
        default=5,
        metavar="K",
        help="parts of the cross-validation, 0 for none (default: 5)",
    )
    sub.add_argument(
        "--min-examples", type=positive, default=100, metavar="N", help="fewest for a fit (default: 100)"
    )
    sub.add_argument("--seed", type=int, default=0, help="of folds and bootstrap (default: 0)")
    concurrency_option(sub)


def _calibrate(options: argparse.Namespace, console: Console) -> int:
    from decideploy.calibrate import calibrate, print_report, write_calibration
    from decideploy.decide.client import read_api_key
    from decideploy.plotting import check_plotting

    _check_force(options)
    # Before the server is asked thousands of questions.
    if options.out is not None:
        check_absent(options.out, force=options.force)
    if options.plot is not None:
        check_plotting()
    with _progress(Console(stderr=True)) as progress:
        task = progress.add_task("decisions", total=None)
        report = calibrate(
            options.url,
            options.data,
            folds=options.folds,
            min_examples=options.min_examples,
            seed=options.seed,
            concurrency=options.concurrency or CONCURRENCY,
            timeout_s=options.timeout,
            api_key=read_api_key(options.api_key_file),
            started=lambda total: progress.update(task, total=total),
            advance=lambda: progress.advance(task),
        )
    if options.json:
        print_json(report.to_dict())
    else:
        print_report(report, console)
    if options.plot is not None:
        from decideploy.calibrate.diagram import draw_diagrams

        draw_diagrams(report, options.plot)
    if options.out is not None:
        write_calibration(report, options.out, force=options.force)
    return 0


def _bench_options(sub: argparse.ArgumentParser) -> None:
    server_options(sub)
    sub.add_argument(
        "--clients",
        type=several(positive),
        metavar="N,…",
        help="closed loops: each client asks again when it is answered (default: 1,8,64; none with --rate)",
    )
    sub.add_argument(
        "--rate",
        type=several(seconds),
        default=(),
        metavar="R,…",
        help="open loops: random arrivals a second",
    )
    sub.add_argument("--kind", type=several(kind), default=("noul",), metavar="KIND,…", help="default: noul")
    sub.add_argument(
        "--prompt-tokens",
        type=several(positive),
        default=(128,),
        metavar="N,…",
        help="lengths of the prompts (default: 128)",
    )
    sub.add_argument(
        "--against", choices=["completions"], help="compare with the same read sent to the engine's own route"
    )
    sub.add_argument(
        "--shared-state", action="store_true", help="ten questions over one 1,000-token state against one"
    )
    sub.add_argument("--tournament", action="store_true", help="a choice of 256 against its two rounds apart")
    sub.add_argument(
        "--duration", type=seconds, default=10.0, metavar="S", help="of each measurement (default: 10)"
    )
    sub.add_argument("--warmup", type=seconds, default=2.0, metavar="S", help="before each (default: 2)")
    sub.add_argument(
        "--rounds", type=positive, default=20, metavar="N", help="alternations of a comparison (default: 20)"
    )
    sub.add_argument("--seed", type=int, default=0, help="of prompts, arrivals and bootstrap (default: 0)")
    sub.add_argument("--out", type=Path, metavar="DIR", help="write CSV, JSON and a drawing, PNG and SVG")


def _bench(options: argparse.Namespace, console: Console) -> int:
    from decideploy.bench import BenchOptions, Pace, bench, draw_report, print_report, write_tables
    from decideploy.decide.client import read_api_key
    from decideploy.plotting import check_plotting

    if options.out is not None:
        check_plotting()
    asked = BenchOptions(
        clients=options.clients or (() if options.rate else (1, 8, 64)),
        rates=options.rate,
        kinds=options.kind,
        prompt_tokens=options.prompt_tokens,
        against=options.against is not None,
        shared_state=options.shared_state,
        tournament=options.tournament,
        pace=Pace(
            warmup_s=options.warmup, duration_s=options.duration, rounds=options.rounds, seed=options.seed
        ),
    )
    with Console(stderr=True).status("measuring") as status:
        report = bench(
            options.url,
            asked,
            api_key=read_api_key(options.api_key_file),
            timeout_s=options.timeout,
            told=lambda row: status.update(f"measured {row.scenario}, {row.arm}, {row.load}"),
        )
    if options.json:
        print_json(report.to_dict())
    else:
        print_report(report, console)
    if options.out is not None:
        write_tables(report, options.out)
        draw_report(report, options.out)
    return 0 if report.complete else 130


def _selftest_options(sub: argparse.ArgumentParser) -> None:
    server_options(sub)
    either = sub.add_mutually_exclusive_group()
    either.add_argument(
        "--golden", type=Path, metavar="FILE", help="also compare with these recorded decisions"
    )
    either.add_argument(
        "--record", type=Path, metavar="FILE", help="write this server's decisions, once it passes"
    )
    sub.add_argument("--force", action="store_true", help="overwrite --record")


def _selftest(options: argparse.Namespace, console: Console) -> int:
    from decideploy.decide.client import read_api_key
    from decideploy.serve import print_selftest, selftest

    _check_force(options, "record")
    api_key = read_api_key(options.api_key_file)
    if options.record is not None:
        return _record_golden(options, api_key, console)
    report = selftest(options.url, api_key=api_key, timeout_s=options.timeout, golden=options.golden)
    if options.json:
        print_json(report.to_dict())
    else:
        print_selftest(report, console)
    report.raise_for_failures()
    return 0


def _record_golden(options: argparse.Namespace, api_key: str | None, console: Console) -> int:
    from decideploy.serve import record_golden

    # Before the server is asked, so that the answer is not lost.
    check_absent(options.record, force=options.force)
    golden = record_golden(options.url, api_key=api_key, timeout_s=options.timeout)
    golden.write(options.record)
    if options.json:
        print_json(golden.model_dump(mode="json", exclude_none=True))
    else:
        decisions = counted(len(golden.decisions), "decision")
        console.print(f"{decisions} of {golden.source} in {options.record}", soft_wrap=True)
    return 0
