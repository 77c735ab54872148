"""One of four ranks in two stages over Gloo, run as a program: prints its groups and what they computed, as JSON.

python groups_rank.py RANK RENDEZVOUS. There is no pipeline behind the stages: pipeline parallelism brings it.
"""

import json
import sys

import torch

from quire.worker.device.parallel import Group, connect


def seen(group: Group, rank: int) -> dict[str, object]:
    """Place in the group, the ranks that are in it, a sum over them, and what does not lie as it reads."""
    turned = torch.tensor([[rank, 10], [rank + 1, 20]]).T
    return {
        "rank": group.rank,
        "size": group.size,
        "members": group.all_gather(torch.tensor([rank])).tolist(),
        "turned": group.all_gather(turned).tolist(),
        "sum": int(group.all_reduce(torch.tensor(10**rank))),
        "least": group.minimum(5 - rank),
    }


def main() -> None:
    rank = int(sys.argv[1])
    groups = connect(rank, 2, 2, torch.device("cpu"), sys.argv[2], timeout_seconds=600.0)
    facts = groups.facts
    report = {
        "tensor": seen(groups.tensor, rank),
        "pipeline": seen(groups.pipeline, rank),
        "facts": [facts.world_size, facts.num_stages, facts.reporter, facts.max_in_flight],
        "reports": groups.reports,
        "least": groups.minimum(7 - rank),
    }
    groups.close()
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
