"""Send mutated requests to ``elmo serve`` and check that it survives: no 5xx, no hang, no chosen file, bounded memory.

The server has the bundled English model and a small index. All routes are attacked: values and text of the JSON,
headers, targets, methods, and bytes that are not HTTP. The server records every file, folder, socket and process that
it opens. Prints a table of the replies; the exit code is 1 if there is a problem.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.serve.fuzz import CANARY, AuditedServer, fuzz, memory_of


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000, help="Number of requests (default: 100,000).")
    parser.add_argument("--connections", type=int, default=16, help="Number of connections (default: 16).")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the mutations (default: 0).")
    parser.add_argument("--first", type=int, default=0, help="Number of the first request, to repeat a part of a run.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = AuditedServer(Path(folder))
        problems = []
        try:
            server.wait_until_ready()
            expected = server.words().json["results"]
            warm_up = asyncio.run(fuzz(server.port, 1000, seed=options.seed + 1, folder=str(server.bait)))
            before, _ = memory_of(server.process.pid)
            report = asyncio.run(
                fuzz(
                    server.port, options.requests, seed=options.seed, n_connections=options.connections,
                    folder=str(server.bait), first=options.first, progress=lambda n: print(f"{n:,}", end="\r",
                        flush=True),
                )
            )  # fmt: skip
            after, peak = memory_of(server.process.pid)
            if server.words().json["results"] != expected:
                problems.append("the reply to a valid request has changed")
        finally:
            code = server.stop()
            log = server.log.read_text()
        events, chosen = server.read_events()
        problems += warm_up.problems + report.problems
        problems += [f"opened: {event} ({n} times)" for event, n in chosen.items()]
        problems += [f"bait: {event}" for event in events if CANARY in event]
        if "Traceback" in log:
            problems.append("the log has a traceback: " + log[log.index("Traceback") :][:2000])
        if code != 0:
            problems.append(f"the server ended with code {code}")
    print(report.table())
    rate = report.n_requests / report.seconds
    print(f"\n{report.n_requests:,} requests in {report.seconds:.0f} s ({rate:,.0f}/s) over "
          f"{options.connections} connections, {len(report.paths)} routes; "
          f"slowest {report.slowest[0]:.2f} s: {report.slowest[1]}")  # fmt: skip
    print(f"resident memory: {before:.0f} MB before, {after:.0f} MB after, {peak:.0f} MB at the peak")
    print(
        f"files and sockets opened: {sum(events.values()):,}, of which outside of the index and the page: {len(chosen)}"
    )
    for problem in problems[:50]:
        print(problem)
    print(f"{len(problems)} problems")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
