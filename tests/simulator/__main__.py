"""`python -m twostep.tests.simulator`: storms of seeds, the replay of one, and the mutants."""

import argparse
import os
import sys

from twostep.tests.simulator.mutants import MUTANTS, Mutant, mutated
from twostep.tests.simulator.scenario import draw
from twostep.tests.simulator.shrink import shrink, violates
from twostep.tests.simulator.simulation import simulate
from twostep.tests.simulator.storm import Failure, Progress, hunt, show, storm

MUTANT_SEEDS = 2000


def main(argv: list[str] | None = None) -> int:
    """Return 0 when every seed was clean and every mutant was killed."""
    options = _parser().parse_args(argv)
    if options.replay is not None:
        return replay(options.replay, options.mutant, as_drawn=options.as_drawn)
    if options.mutants:
        mutants = [one for one in MUTANTS if options.mutant in ("", one.name) and not (options.common and one.is_rare)]
        return hunt_all(mutants, options.within, options.jobs)
    progress = Progress()
    report = storm(range(options.start, options.start + options.seeds), jobs=options.jobs, tell=progress)
    progress("")
    print(*show(report), sep="\n", flush=True)
    return 1 if report.failures else 0


def replay(seed: int, mutant: str, *, as_drawn: bool) -> int:
    """Print what happens in one seed; a run that fails is shown as short as it can be made."""
    with mutated(mutant):
        scenario = draw(seed)
        violations = simulate(scenario).violations
        if violations and not as_drawn:
            scenario = shrink(scenario, violates(violations[0].invariant))
        result = simulate(scenario, keeps_trace=True)
    print(*scenario.describe(), *result.lines, *result.clients, sep="\n")
    print(f"digest {result.digest:08x}, {result.num_events} events, {result.ended_at_s:.3f} s of virtual time")
    verdict = [f"VIOLATED {violation}" for violation in result.violations] or ["nothing was violated"]
    print(*verdict, sep="\n")
    return 1 if result.violations else 0


def hunt_all(mutants: list[Mutant], num_seeds: int, jobs: int) -> int:
    """Look for a seed that kills each mutant, from 0 on."""
    hunted = {one.name: one.breaks for one in mutants}

    def tell(mutant: str, kill: Failure | None) -> None:
        if kill:
            print(f"killed    {mutant}: at seed {kill.seed}, {kill.message}", flush=True)
        else:
            print(f"SURVIVES  {mutant} through {num_seeds} seeds ({hunted[mutant]})", flush=True)

    survivors = hunt(list(hunted), range(num_seeds), jobs=jobs, tell=tell)
    print(f"{len(hunted) - survivors} of {len(hunted)} mutants killed")
    return 1 if survivors else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m twostep.tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--replay", type=int, metavar="SEED", help="print what happens in one seed, shrunk when it fails")
    parser.add_argument("--as-drawn", action="store_true", help="replay without shrinking")
    parser.add_argument("--mutants", action="store_true", help="see that each mutant is killed")
    parser.add_argument("--common", action="store_true", help="leave out the mutants that do harm in few runs only")
    parser.add_argument("--within", type=int, default=MUTANT_SEEDS, metavar="SEEDS", help="the seeds that a mutant may survive")
    parser.add_argument("--mutant", default="", help="the one mutant to replay a seed with, or to kill")
    return parser


def _fix_hashes() -> None:
    """The order of sets of names depends on the interpreter's hash seed: start anew with a fixed one."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "twostep.tests.simulator", *sys.argv[1:]])


if __name__ == "__main__":
    _fix_hashes()
    sys.exit(main())
