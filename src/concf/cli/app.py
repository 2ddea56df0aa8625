"""The command line."""

import atexit
import gc
import os
import re
import sys
import time
from typing import Annotated, Any, NoReturn

import typer

from concf.cli.data import app as data
from concf.cli.data import prepare
from concf.cli.demo import demo
from concf.cli.doctor import doctor
from concf.cli.evaluate import compare, evaluate
from concf.cli.export import export, report
from concf.cli.recommend import recommend
from concf.cli.serve import serve
from concf.cli.train import combine, train, update
from concf.errors import ConcfError, command_line
from concf.runtime.provenance import VERSION
from concf.runtime.system import follows, write_utf8

NO_MEMORY = r"allocate memory|out of memory|not enough memory"  # CPU (x86_64), GPU, CPU (ARM64)
app = typer.Typer(
    name="concf", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """**concf**: strong top-N recommendations from a log of who used what.

    Start with `concf demo`, or with your own log:

    `concf train log.csv --out runs/mine`, then `concf evaluate runs/mine`

    `concf recommend runs/mine --users all -k 20 --out recs.parquet`

    `concf prepare log.csv --protocol random --out data/mine`, then `concf compare data/mine`
    """
    if version:
        typer.echo(VERSION)
        raise typer.Exit


for command in (prepare, train, update, combine, evaluate, recommend, serve, export, report, compare, demo, doctor):
    app.command()(command)
app.add_typer(data, name="data")


def _fail(message: str) -> NoReturn:
    if follows():  # the first process reports an error of all, and its end ends the others
        time.sleep(2)
    typer.echo(f"concf: {message}", err=True)
    sys.exit(2)


def main(program: typer.Typer | None = None, name: str = "concf") -> None:
    """Run a program; a user's mistake ends with a message and exit code 2, never with a traceback."""
    # PyTorch's threads spin while they wait for each other, on a busy machine 100 times longer than they work.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    atexit.register(gc.freeze)  # nothing is left to collect: a collection at the end takes as long as some commands
    write_utf8()
    if "" not in sys.path:  # a script's path lacks the current folder, where `module:name` of a user's own may be
        sys.path.append("")
    try:
        with command_line():
            sys.exit((program or app)(prog_name=name, standalone_mode=False))
    except ConcfError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}")
    except MemoryError as error:
        _fail(f"not enough memory ({error}). Try shorter lists, or fewer users at a time")
    except RuntimeError as error:  # PyTorch has no type of its own for it on a CPU
        if not re.search(NO_MEMORY, str(error)):
            raise
        size = re.search(r"tried to allocate [\d.]+ \w+", str(error), re.IGNORECASE)
        reason = size[0].lower() if size else str(error).splitlines()[0]
        _fail(f"not enough memory ({reason}). Set fewer dimensions (with --preset reference model.dimensions)")
    except Exception as error:
        problem: Any = error
        if type(error).__name__ == "ValidationError":  # of pydantic
            _fail("; ".join(_message(dict(each)) for each in problem.errors()))
        if not hasattr(error, "format_message"):  # Typer's errors have one, "" where it has printed the help
            raise
        message = problem.format_message().rstrip(".")
        _fail(f"{message}. See {problem.ctx.command_path} --help") if message else sys.exit(2)


def _message(problem: dict[str, Any]) -> str:
    """Format an error of pydantic: the setting, the problem and the value."""
    where = "".join(f"{part}." for part in problem["loc"])[:-1]
    value = "" if isinstance(problem["input"], dict) else f", found {problem['input']!r}"
    return f"{where}{': ' if where else ''}{problem['msg'].removeprefix('Value error, ')}{value}"


if __name__ == "__main__":
    main()
