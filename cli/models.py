"""`twostep models pull | list`: the models that have a short name, and whether they are on this machine."""

import argparse
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from twostep.cli.model_store.catalogue import CATALOGUE, catalogue_entry, models_folder
from twostep.cli.model_store.hugging_face import hub_model, pull_from_hub
from twostep.cli.model_store.pull import is_current, pull


def add_parser(subparsers: Any) -> None:
    """Add `models` with its own subcommands; `arguments.run` is then the function to call."""
    parser = subparsers.add_parser("models", help="fetch a model, or list the catalogue")
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(dest="action", required=True)
    pull_parser = actions.add_parser("pull", help="download a model and convert it to a Hugging Face folder")
    pull_parser.add_argument("model", help=f"one of: {', '.join(sorted(CATALOGUE))}; or hf:OWNER/NAME[@REVISION]")
    pull_parser.add_argument("--name", help="local name of a hub model (default: its name there)")
    actions.add_parser("list", help="list the models of the catalogue")


def run(arguments: argparse.Namespace) -> int:
    """Run the chosen action and return the exit code. Raises ConfigError with one line that says what to do."""
    if arguments.action == "list":
        return _list()
    if found := hub_model(arguments.model):
        print(pull_from_hub(found, models_folder() / (arguments.name or found.name)))
        return 0
    return pull_by_name(arguments.model)


def pull_by_name(name: str) -> int:
    """Pull a model of the catalogue, showing progress on stderr, and print its folder on stdout."""
    entry = catalogue_entry(name)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(f"{name}: {stage}")
            progress.update(tasks[stage], completed=done, total=total)

        folder = pull(entry, models_folder(), report)
    print(folder)
    return 0


def _list() -> int:
    for entry in CATALOGUE.values():
        folder = models_folder() / entry.name
        state = str(folder) if is_current(entry, folder) else f"not here yet: `twostep models pull {entry.name}`"
        print(f"{entry.name:12} {entry.requirement:24} {state}")
    return 0
