"""The ``decideploy`` command: one verb for each stage, and the same value as a table or as JSON.

Exit status: 0, or the ``exit_code`` of the error that ended the verb (see ``decideploy.errors``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console

from decideploy import __version__
from decideploy.errors import ConfigError, Error, VerificationError

if TYPE_CHECKING:
    from rich.progress import Progress

    from decideploy.artifacts import Verification
    from decideploy.gateway import ServerSettings
    from decideploy.hardware import HardwareReport
    from decideploy.plan import Workload

# Written out here: importing decideploy.artifacts takes longer than parsing the arguments.
FORMATS = ("table", "json", "sarif", "github")

Command = Callable[[argparse.Namespace, Console], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns its exit status. Faults go to standard error, results to standard output."""
    options = _parser().parse_args(argv)
    command: Command = options.command
    try:
        with _file_faults():
            return command(options, Console())
    except Error as error:
        _print_error(error, as_json=getattr(options, "json", False))
        return error.exit_code
    except KeyboardInterrupt:
        return 130


@contextmanager
def _file_faults() -> Iterator[None]:
    """Files that the verbs read and write without a check of their own: every fault is the operator's."""
    try:
        yield
    except OSError as error:
        paths = (error.filename, error.filename2)
        raise ConfigError(
            error.strerror or str(error) or type(error).__name__,
            where=" -> ".join(str(path) for path in paths if path is not None),
            next_step="check that the path is right, its permissions, and that the disk has space",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"an input is not {error.encoding.upper()} text: {error.reason} at byte {error.start}",
            where=repr(error.object[max(error.start - 16, 0) : error.start + 16]),
            next_step="save the file as UTF-8, or name the right one",
        ) from error
    except RecursionError as error:
        raise ConfigError(
            "an input nests deeper than can be read",
            where=str(error),
            next_step="name the right file: none that decideploy reads nests so deep",
        ) from error


def _print_error(error: Error, *, as_json: bool) -> None:
    console = Console(stderr=True, highlight=False)
    if as_json:
        faults = [
            {"code": d.code, "what": d.what, "where": d.where, "next_step": d.next_step}
            for d in error.diagnostics()
        ]
        print(json.dumps({"error": type(error).__name__, "diagnostics": faults}, indent=2))
    for diagnostic in error.diagnostics():
        console.print(f"error: {diagnostic}", style="red", markup=False, soft_wrap=True)


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))


def _build(options: argparse.Namespace, console: Console) -> int:
    from decideploy.build import build

    result = build(options.recipe, options.out, wheelhouses=options.wheelhouse)
    if options.json:
        _print_json(result.to_dict())
        return 0
    console.print(f"wheel       {result.wheel}", soft_wrap=True)
    console.print(f"sha256      {result.sha256}")
    console.print(f"provenance  {result.provenance}", soft_wrap=True)
    for patch in result.patches:
        console.print(f"patch       {patch.name}  {patch.sha256[:16]}")
    console.print(f"took        {result.seconds:.1f} s")
    return 0


def _verified(options: argparse.Namespace) -> Verification:
    from decideploy.artifacts import resolve_model, verify

    model = resolve_model(options.model, revision=options.revision)
    return verify(model, adapter=options.adapter)


def _verify(options: argparse.Namespace, console: Console) -> int:
    from decideploy.artifacts import verify_named, write_report

    verification = verify_named(
        options.model,
        revision=options.revision,
        adapter=options.adapter,
        deep=options.deep,
        manifest=options.manifest,
        verify_key=options.verify_key,
    )
    write_report(verification, "json" if options.json else options.format, console)
    return VerificationError.exit_code if verification.errors else 0


def _lock_model(options: argparse.Namespace, console: Console) -> int:
    from decideploy.artifacts import lock_named

    path, manifest = lock_named(
        options.model, revision=options.revision, out=options.out, sign_key=options.sign_key
    )
    if options.json:
        _print_json(manifest.model_dump())
    else:
        size_bytes = sum(file.size_bytes for file in manifest.files.values())
        console.print(f"{len(manifest.files)} files, {size_bytes:,} bytes, in {path}", soft_wrap=True)
    return 0


def _probe(options: argparse.Namespace, console: Console) -> int:
    from decideploy.hardware import print_report, probe

    report = probe()
    if options.json:
        _print_json(report.to_dict())
    else:
        print_report(report, console)
    return 0


def _hardware(name: str) -> HardwareReport:
    from decideploy.hardware import load_hardware, probe

    return probe() if name == "auto" else load_hardware(name)


def _workload(options: argparse.Namespace) -> Workload:
    from decideploy.decide.images import ImagePolicy
    from decideploy.plan import Workload

    return Workload(
        **_asked(options, "max_model_len", "max_num_seqs", shutdown_timeout_s="drain_timeout"),
        images=options.max_images > 0,
        max_images=options.max_images,
        # Checked here, as the engine would be minutes later.
        image_hosts=ImagePolicy(allowed_hosts=tuple(options.allow_image_host)).allowed_hosts,
    )


def _settings(options: argparse.Namespace) -> ServerSettings:
    from decideploy.gateway import ServerSettings

    limits = _asked(options, "api_key_file", "max_concurrency", "max_queue", "max_body_bytes")
    return ServerSettings(**limits, **_asked(options, request_timeout_s="request_timeout"))


def _asked(options: argparse.Namespace, *same: str, **named: str) -> dict[str, Any]:
    """What the command line gives, by the name of the setting; what it leaves out keeps its default."""
    flags = {**{name: name for name in same}, **named}
    found = {name: getattr(options, flag, None) for name, flag in flags.items()}
    return {name: value for name, value in found.items() if value is not None}


def _plan(options: argparse.Namespace, console: Console) -> int:
    from decideploy.plan import plan, print_plan

    verification = _verified(options)
    verification.raise_for_issues()
    launch = plan(verification.known_facts(), _hardware(options.hardware), workload=_workload(options))
    if options.json:
        _print_json(launch.to_dict())
    else:
        print_plan(launch, console)
    return 0


def _serve(options: argparse.Namespace, console: Console) -> int:
    from decideploy.serve import ServeOptions, serve

    serve(
        ServeOptions(
            model=options.model,
            adapter=options.adapter,
            revision=options.revision,
            host=options.host,
            port=options.port,
            dry_run=options.dry_run,
            check=options.check,
            golden=options.golden,
            json=options.json,
            startup_timeout_s=options.startup_timeout,
            workload=_workload(options),
            settings=_settings(options),
            access_log=options.access_log,
            restart=options.restart,
            max_restarts=options.max_restarts,
        ),
        console,
    )
    return 0


def _decide(options: argparse.Namespace, console: Console) -> int:
    from decideploy.decide import parse_request
    from decideploy.decide.client import post_decision, print_decision, read_api_key

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
        _print_json(response.model_dump(mode="json", exclude_none=True))
    else:
        print_decision(response, console)
    return 0


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
            concurrency=options.concurrency,
            timeout_s=options.timeout,
            api_key=api_key,
            advance=lambda: progress.advance(task),
        )
    if results.failures:
        stderr.print(f"{results.failures} of {len(lines)} lines failed", style="red")
    return results.exit_code


def _jsonl(name: str) -> list[str]:
    """The lines of the file ``name``, or of standard input when it is ``-``."""
    text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    # Not splitlines(): that ends a line at characters that JSON allows inside a string.
    return text.split("\n")


@contextmanager
def _results_file(path: Path | None, *, force: bool) -> Iterator[TextIO]:
    """``path`` opened for writing, or standard output; ConfigError when it exists, unless ``force``."""
    if path is None:
        yield sys.stdout
        return
    try:
        out = path.open("w" if force else "x", encoding="utf-8")
    except FileExistsError as error:
        raise ConfigError(
            "the file exists", where=str(path), next_step="name another, or pass --force"
        ) from error
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


def _calibrate(options: argparse.Namespace, console: Console) -> int:
    from decideploy.calibrate import calibrate, check_absent, print_report, write_calibration
    from decideploy.decide.client import read_api_key
    from decideploy.plotting import check_plotting

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
            concurrency=options.concurrency,
            timeout_s=options.timeout,
            api_key=read_api_key(options.api_key_file),
            started=lambda total: progress.update(task, total=total),
            advance=lambda: progress.advance(task),
        )
    if options.json:
        _print_json(report.to_dict())
    else:
        print_report(report, console)
    if options.plot is not None:
        from decideploy.calibrate.diagram import draw_diagrams

        draw_diagrams(report, options.plot)
    if options.out is not None:
        write_calibration(report, options.out, force=options.force)
    return 0


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
        _print_json(report.to_dict())
    else:
        print_report(report, console)
    if options.out is not None:
        write_tables(report, options.out)
        draw_report(report, options.out)
    return 0 if report.complete else 130


def _selftest(options: argparse.Namespace, console: Console) -> int:
    from decideploy.decide.client import read_api_key
    from decideploy.serve import print_selftest, selftest

    api_key = read_api_key(options.api_key_file)
    if options.record is not None:
        return _record_golden(options, api_key, console)
    report = selftest(options.url, api_key=api_key, timeout_s=options.timeout, golden=options.golden)
    if options.json:
        _print_json(report.to_dict())
    else:
        print_selftest(report, console)
    report.raise_for_failures()
    return 0


def _record_golden(options: argparse.Namespace, api_key: str | None, console: Console) -> int:
    from decideploy.serve import record_golden

    golden = record_golden(options.url, api_key=api_key, timeout_s=options.timeout)
    golden.write(options.record)
    if options.json:
        _print_json(golden.model_dump(mode="json", exclude_none=True))
    else:
        count = len(golden.decisions)
        console.print(f"{count} decisions of {golden.source} in {options.record}", soft_wrap=True)
    return 0


def _demo_model(options: argparse.Namespace, console: Console) -> int:
    from decideploy.demo import write_demo_model

    write_demo_model(options.dir, nvfp4=options.nvfp4)
    console.print(f"demo model in {options.dir}", soft_wrap=True)
    return 0


def _convert_adapter(options: argparse.Namespace, console: Console) -> int:
    from decideploy.artifacts import convert_adapter

    result = convert_adapter(options.model, options.out or options.model / "adapter_vllm")
    if options.json:
        _print_json(result.to_dict())
    else:
        console.print(f"adapter in {result.path}", soft_wrap=True)
    return 0


def _doctor(options: argparse.Namespace, console: Console) -> int:
    from decideploy.serve import doctor, print_doctor

    report = doctor(port=options.port)
    if options.json:
        _print_json(report.to_dict())
    else:
        print_doctor(report, console)
    return report.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="decideploy", description=__doc__.partition("\n")[0])
    parser.add_argument("--version", action="version", version=f"decideploy {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    def verb(name: str, command: Command, summary: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=summary, description=summary)
        sub.set_defaults(command=command)
        sub.add_argument("--json", action="store_true", help="print a JSON document instead of a table")
        return sub

    sub = verb("build", _build, "Build the patched vLLM wheel that a lock names")
    sub.add_argument("--recipe", choices=["cpu", "cuda"], required=True, help="which recipe to build")
    sub.add_argument("--out", type=Path, default=Path("dist"), help="folder for the wheel (default: dist)")
    sub.add_argument(
        "--wheelhouse",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder that may hold the upstream file; can be given more than once",
    )

    sub = verb("verify", _verify, "Check a model's files before any engine sees them")
    _model_options(sub)
    sub.add_argument("--deep", action="store_true", help="also read the tensors' values")
    sub.add_argument("--format", choices=FORMATS, default="table", help="how to report (default: table)")
    sub.add_argument("--manifest", type=Path, metavar="FILE", help="also compare every file with a manifest")
    sub.add_argument("--verify-key", type=Path, metavar="PEM", help="public key of the manifest's signature")

    sub = verb("lock-model", _lock_model, "Record the size and sha256 of every file of a model")
    sub.add_argument("model", metavar="MODEL", help="a folder, or OWNER/NAME@COMMIT")
    sub.add_argument("--revision", help="the commit of a hub id, 40 hexadecimal digits")
    sub.add_argument("--out", type=Path, metavar="FILE", help="file to write (default: NAME.manifest.json)")
    sub.add_argument("--sign-key", type=Path, metavar="PEM", help="private key to sign the manifest with")

    verb("probe", _probe, "Report the hardware that is here")

    sub = verb("plan", _plan, "Choose the FP4 path, memory settings and engine arguments")
    _model_options(sub)
    sub.add_argument("--hardware", default="auto", help="auto, a card's name or a probe --json file")
    _workload_options(sub)

    sub = verb("serve", _serve, "Verify, plan, launch, self-test and serve; no MODEL serves the demo model")
    _model_options(sub, optional=True)
    sub.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    sub.add_argument("--port", type=_port, default=8000, help="port to listen on (default: 8000)")
    _workload_options(sub)
    sub.add_argument("--dry-run", action="store_true", help="print the plan and the argv, start nothing")
    sub.add_argument("--check", action="store_true", help="ask one decision of each kind, then stop")
    sub.add_argument(
        "--golden",
        type=Path,
        metavar="FILE",
        help="recorded decisions that the server must repeat (default: MODEL/golden.json, if there)",
    )
    sub.add_argument(
        "--startup-timeout",
        type=float,
        default=1200,
        metavar="S",
        help="seconds until the engine must answer",
    )
    _operation_options(sub)

    _decide_options(verb("decide", _decide, "Ask a running server one question, or a file of them"))

    _calibrate_options(verb("calibrate", _calibrate, "Fit a temperature for each kind to labelled decisions"))

    _bench_options(verb("bench", _bench, "Measure latency and throughput of a running server"))

    sub = verb("selftest", _selftest, "Prove that a running server answers rightly")
    _selftest_options(sub)

    sub = verb("demo-model", _demo_model, "Write the small synthetic model")
    sub.add_argument("dir", type=Path, metavar="DIR", help="folder to write")
    sub.add_argument("--nvfp4", action="store_true", help="write the experts in ModelOpt's NVFP4 layout")

    sub = verb("convert-adapter", _convert_adapter, "Make adapter_vllm/ from adapter/ and head.safetensors")
    sub.add_argument("model", type=Path, metavar="MODEL", help="the model's folder")
    sub.add_argument("--out", type=Path, help="folder to write (default: MODEL/adapter_vllm)")

    sub = verb("doctor", _doctor, "List everything that would stop serve, with remedies")
    sub.add_argument(
        "--port", type=_port, default=8000, help="port that serve would listen on (default: 8000)"
    )
    return parser


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no integer above 0")
    return int(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is no integer from 0 up")
    return int(text)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give an integer from 1 to 65535")
    return int(text)


def _model_options(sub: argparse.ArgumentParser, *, optional: bool = False) -> None:
    sub.add_argument("model", nargs="?" if optional else None, metavar="MODEL", help="a folder or a hub id")
    sub.add_argument("--adapter", type=Path, help="the adapter's folder (default: MODEL/adapter_vllm)")
    sub.add_argument("--revision", help="the commit of a hub id, 40 hexadecimal digits")


def _workload_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--max-model-len",
        type=_positive,
        metavar="TOKENS",
        help="longest prompt and answer (default: the longest that fits)",
    )
    sub.add_argument(
        "--max-num-seqs", type=_positive, metavar="N", help="most requests in one step (default: 64)"
    )
    sub.add_argument(
        "--max-images",
        type=_image_count,
        default=4,
        metavar="N",
        help="most images of one request, 0 for text only (default: 4; on CPU always text only)",
    )
    sub.add_argument(
        "--allow-image-host",
        action="append",
        default=[],
        metavar="HOST",
        help="fetch https images from HOST too; can be given repeatedly (default: data: URLs only)",
    )


def _decide_options(sub: argparse.ArgumentParser) -> None:
    _server_options(sub)
    sub.add_argument("--kind", choices=["noul", "score", "choice"], help="kind of question")
    sub.add_argument("--question", help="the question")
    sub.add_argument("--state", help="what the question is about: text, @file or - (stdin)")
    sub.add_argument(
        "--options", type=lambda text: text.split(","), help="the options of a choice, separated by commas"
    )
    sub.add_argument("--option", action="append", metavar="TEXT", help="one option; can be given repeatedly")
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
    sub.add_argument("--think-budget", type=_positive, metavar="TOKENS", help="most tokens of a thought")
    sub.add_argument(
        "--chat-template-kwargs", type=_json_object, metavar="JSON", help="passed to the chat template"
    )
    sub.add_argument("--calibration", choices=["default", "gold"], help="which of the model's calibrations")
    sub.add_argument("--return-reasoning", action="store_true", help="return the thought's text as well")
    sub.add_argument("--debug", action="store_true", help="return each system's distribution as well")
    sub.add_argument(
        "--batch",
        metavar="FILE|-",
        help="JSONL, one request a line; the other options give the fields that a line leaves out",
    )
    sub.add_argument(
        "--out", type=Path, metavar="FILE", help="where the batch's results go (default: stdout)"
    )
    sub.add_argument("--force", action="store_true", help="overwrite --out")
    _concurrency_option(sub)


def _calibrate_options(sub: argparse.ArgumentParser) -> None:
    _server_options(sub)
    sub.add_argument("--data", type=Path, required=True, metavar="FILE", help="JSONL of labelled decisions")
    sub.add_argument("--out", type=Path, metavar="FILE", help="write the model's calibration.json")
    sub.add_argument("--force", action="store_true", help="overwrite --out")
    sub.add_argument("--plot", type=Path, metavar="DIR", help="draw reliability diagrams, PNG and SVG")
    sub.add_argument(
        "--folds",
        type=_folds,
        default=5,
        metavar="K",
        help="parts of the cross-validation, 0 for none (default: 5)",
    )
    sub.add_argument(
        "--min-examples", type=_positive, default=100, metavar="N", help="fewest for a fit (default: 100)"
    )
    sub.add_argument("--seed", type=int, default=0, help="of folds and bootstrap (default: 0)")
    _concurrency_option(sub)


def _bench_options(sub: argparse.ArgumentParser) -> None:
    _server_options(sub)
    sub.add_argument(
        "--clients",
        type=_several(_positive),
        metavar="N,…",
        help="closed loops: each client asks again when it is answered (default: 1,8,64; none with --rate)",
    )
    sub.add_argument(
        "--rate",
        type=_several(_seconds),
        default=(),
        metavar="R,…",
        help="open loops: random arrivals a second",
    )
    sub.add_argument(
        "--kind", type=_several(_kind), default=("noul",), metavar="KIND,…", help="default: noul"
    )
    sub.add_argument(
        "--prompt-tokens",
        type=_several(_positive),
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
        "--duration", type=_seconds, default=10.0, metavar="S", help="of each measurement (default: 10)"
    )
    sub.add_argument("--warmup", type=_seconds, default=2.0, metavar="S", help="before each (default: 2)")
    sub.add_argument(
        "--rounds", type=_positive, default=20, metavar="N", help="alternations of a comparison (default: 20)"
    )
    sub.add_argument("--seed", type=int, default=0, help="of prompts, arrivals and bootstrap (default: 0)")
    sub.add_argument("--out", type=Path, metavar="DIR", help="write CSV, JSON and a drawing, PNG and SVG")


def _several(one: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Values separated by commas."""
    return lambda text: tuple(one(part) for part in text.split(","))


def _kind(text: str) -> str:
    if text not in ("noul", "score", "choice"):
        raise argparse.ArgumentTypeError(f"{text!r} is no kind: give noul, score or choice")
    return text


def _folds(text: str) -> int:
    if text != "0" and _positive(text) < 2:
        raise argparse.ArgumentTypeError("one fold has nothing to fit on: give 0, or 2 and more")
    return int(text)


def _image_count(text: str) -> int:
    return 0 if text == "0" else _positive(text)


def _json_object(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return document


def _concurrency_option(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--concurrency", type=_positive, default=8, metavar="N", help="most questions at once (default: 8)"
    )


def _server_options(sub: argparse.ArgumentParser) -> None:
    _url_option(sub)
    sub.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="file with the API key (default: the environment's DECIDEPLOY_API_KEY)",
    )
    sub.add_argument(
        "--timeout", type=_seconds, default=60.0, metavar="S", help="seconds to wait for an answer"
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


def _selftest_options(sub: argparse.ArgumentParser) -> None:
    _server_options(sub)
    either = sub.add_mutually_exclusive_group()
    either.add_argument(
        "--golden", type=Path, metavar="FILE", help="also compare with these recorded decisions"
    )
    either.add_argument(
        "--record", type=Path, metavar="FILE", help="write this server's decisions, once it passes"
    )


def _operation_options(sub: argparse.ArgumentParser) -> None:
    group = sub.add_argument_group("operation", "see docs/operate.md; DECIDEPLOY_API_KEYS gives keys as well")
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="one API key a line")
    group.add_argument(
        "--max-concurrency", type=_positive, metavar="N", help="most requests at once (default: 256)"
    )
    group.add_argument(
        "--max-queue", type=_count, metavar="N", help="most that wait; more are answered 429 (default: 256)"
    )
    group.add_argument(
        "--request-timeout", type=_seconds, metavar="S", help="most seconds of a request (default: 300)"
    )
    group.add_argument(
        "--max-body-bytes", type=_positive, metavar="N", help="largest body of a request (default: 33554432)"
    )
    group.add_argument(
        "--drain-timeout",
        type=_count,
        metavar="S",
        help="seconds that requests in flight may take after SIGTERM (default: 30)",
    )
    group.add_argument(
        "--access-log", type=Path, metavar="FILE", help="where to log requests (default: standard error)"
    )
    group.add_argument(
        "--restart",
        choices=["never", "on-failure"],
        default="never",
        help="whether an engine that dies is started again (default: never)",
    )
    group.add_argument(
        "--max-restarts", type=_count, default=3, metavar="N", help="how often in a row (default: 3)"
    )


def _url_option(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")


if __name__ == "__main__":
    sys.exit(main())
