"""python tests/planted: plant faults one by one in copies of the tree, and say which test finds each first."""

import argparse
import dataclasses
import json
import multiprocessing
import sys
import time
from pathlib import Path
from queue import Empty

import by_hand
import by_hand_of_devices
import draw
import results
from fault import Fault
from hunt import Hunter, Scope, end_with_parent
from order import ROOT, Order
from tree import Tree

SCOPES: dict[str, tuple[Scope, ...]] = {"quick": ("quick",), "thorough": ("thorough",), "all": ("quick", "thorough")}


def all_faults() -> list[Fault]:
    lists = [*vars(by_hand).items(), *vars(by_hand_of_devices).items()]
    chosen = [fault for name, faults in lists if name.startswith("OF_") for fault in faults]
    placed = []
    for fault in chosen:  # of what is chosen by hand the line is where it stands today
        place = (ROOT / fault.file).read_text().find(fault.old)
        line = (ROOT / fault.file).read_text().count("\n", 0, max(0, place)) + 1
        placed.append(dataclasses.replace(fault, line=line))
    return [*draw.drawn(), *placed]


def show(faults: list[Fault], order: Order) -> int:
    gone = 0
    for fault in faults:
        tests = order.files(fault.file)
        print(f"\n{fault.id}: {fault.what}")
        try:
            print(fault.diff(ROOT))
        except LookupError as error:
            print(f"GONE: {error}")
            gone += 1
        print(f"{len(tests)} files, {sum(map(order.cost, tests)):.0f} s; first {', '.join(tests[:5])}")
    print(f"\n{len(faults)} faults, {gone} of which are gone")
    return 1 if gone else 0


def work(
    number: int, arguments: argparse.Namespace, faults: multiprocessing.Queue, found: multiprocessing.Queue
) -> None:
    """One of the processes that plant, each with a copy of its own."""
    end_with_parent()
    tree = Tree(ROOT, arguments.workdir / str(number), arguments.workdir / "built", arguments.tests_from)
    order = Order(arguments.costs)
    hunter = Hunter(tree, order, arguments.limit_seconds, lambda text: print(f"[{number}] {text}", flush=True))
    known = {fault: row["found_by"] for (fault, _), row in results.last_rows(arguments.results).items()}
    while True:
        try:
            fault = faults.get_nowait()
        except Empty:
            return
        found.put(hunter.hunt(fault, SCOPES[arguments.scope], arguments.tests_from, known.get(fault.id, "")))


def run(faults: list[Fault], arguments: argparse.Namespace) -> int:
    arguments.workdir.mkdir(parents=True, exist_ok=True)
    todo, found = multiprocessing.Queue(), multiprocessing.Queue()
    for fault in faults:
        todo.put(fault)
    time.sleep(1)  # until the queue's thread has written them
    workers = [
        multiprocessing.Process(target=work, args=(number, arguments, todo, found))
        for number in range(arguments.workers)
    ]
    for worker in workers:
        worker.start()
    num_left = len(faults)
    while num_left and any(worker.is_alive() for worker in workers):
        try:
            hunt = found.get(timeout=10)
        except Empty:
            continue
        num_left -= 1
        with arguments.results.open("a") as file:
            file.write(json.dumps(dataclasses.asdict(hunt), ensure_ascii=False) + "\n")
        print(f"{hunt.fault}: {hunt.found_by or 'no test'} {hunt.scope} {hunt.how} {hunt.seconds} s", flush=True)
    for worker in workers:
        worker.join()
    return 1 if num_left else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/planted", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="ID", help="these faults; a beginning of ids is enough: h, w03")
    parser.add_argument("--scope", choices=SCOPES, default="all", help="quick: what make test runs")
    parser.add_argument("--missed", action="store_true", help="those that no test of make test found in the record")
    parser.add_argument(
        "--tests-from", default="", metavar="REV", help="the tests of this commit beside the faulted tree"
    )
    parser.add_argument("--costs", nargs="*", type=Path, default=[], metavar="FILE", help="ledgers of CPU seconds")
    parser.add_argument("--limit-seconds", type=float, default=7200.0, help="for one fault (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--workdir", type=Path, default=Path("/tmp/planted"), help="folder of the copies (default: %(default)s)"
    )
    parser.add_argument(
        "--results", type=Path, default=results.RESULTS, help="rows are appended; what has one is left out"
    )
    parser.add_argument("--again", action="store_true", help="faults that have a row already, too")
    parser.add_argument("--show", action="store_true", help="list faults and the files to try; run nothing")
    parser.add_argument("--draw", action="store_true", help="print the draws of the fixed seed that are not passed by")
    parser.add_argument("--page", nargs="?", const="", metavar="REV", help="write results.md, beside the tests of REV")
    arguments = parser.parse_args()
    if arguments.draw:
        for fault in draw.draw_all(ROOT):
            print(json.dumps(dataclasses.asdict(fault), ensure_ascii=False))
        return 0
    faults = all_faults()
    if arguments.page is not None:
        results.write_page(faults, arguments.page, arguments.results)
        return 0
    if arguments.only:
        faults = [fault for fault in faults if fault.id.startswith(tuple(arguments.only))]
    newest = results.last_rows(arguments.results)
    if arguments.missed:
        faults = [fault for fault in faults if results.is_missed(newest.get((fault.id, "")))]
    if arguments.missed and arguments.tests_from:  # what a thorough test of ours finds, it did there, too
        faults = [fault for fault in faults if not newest[fault.id, ""]["found_by"]]
    if arguments.show:
        return show(faults, Order(arguments.costs))
    if not arguments.again:
        last = SCOPES[arguments.scope][-1]
        rows = {fault.id: newest.get((fault.id, arguments.tests_from)) for fault in faults}
        faults = [fault for fault in faults if not results.is_done(rows[fault.id], last)]
    return run(faults, arguments)


if __name__ == "__main__":
    sys.exit(main())
