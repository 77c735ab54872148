"""A service level: how long a request may let its reader wait, and the share of requests that kept to it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from quire.deploy.bench.load.request_record import OK, RequestRecord, first_token_ms, time_per_token_ms
from quire.deploy.bench.report.errors import BenchError

KEPT_SHARE = 0.99
"""A load keeps the level when so many of its requests do."""
NAMES = ("ttft", "itl", "tpot", "e2e")
MILLISECONDS = {"ms": 1.0, "s": 1000.0}


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """The most milliseconds of each; None: any."""

    ttft: float | None = None
    """From sending the request to its first token."""
    itl: float | None = None
    """Between two messages, any two of the request."""
    tpot: float | None = None
    """For a token after the first message, on average over the request."""
    e2e: float | None = None
    """From sending the request to its end."""

    def holds(self, record: RequestRecord) -> bool:
        """True for a request that succeeded, with tokens, and within the level."""
        if record.status != OK or not record.num_tokens:
            return False
        waits = {
            "ttft": first_token_ms([record]),
            "itl": [gap * 1e3 for gap in record.gaps],
            "tpot": time_per_token_ms([record]),
            "e2e": [(record.ended - record.sent) * 1e3],
        }
        limits = ((waits[name], getattr(self, name)) for name in NAMES)
        return all(limit is None or max(found, default=0.0) <= limit for found, limit in limits)

    def share(self, records: Sequence[RequestRecord]) -> float:
        return sum(self.holds(record) for record in records) / len(records)


def read_service_level(text: str) -> ServiceLevel:
    """`ttft=200ms,itl=30ms` as it is written for `--slo`. Raises `BenchError`."""
    limits: dict[str, float] = {}
    for piece in text.split(","):
        found = re.fullmatch(r"\s*([a-z0-9]+)=([0-9]+(?:\.[0-9]+)?)(ms|s)\s*", piece)
        if found is None or found[1] not in NAMES or found[1] in limits or not float(found[2]):
            raise BenchError(
                f"--slo: expected each of {', '.join(NAMES)} at most once and with a time above 0, "
                f"like ttft=200ms,itl=30ms or e2e=1.5s; got {piece.strip()!r}"
            )
        limits[found[1]] = float(found[2]) * MILLISECONDS[found[3]]
    return ServiceLevel(**limits)
