"""The configuration of the scheduler process, frozen at its start."""

from typing import Literal

import msgspec

from quire.proto.messages.requests import Limits

MOST_STEP_TOKENS = 1 << 20


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and policy. Measured facts (blocks, context length) are not here: they arrive from the workers."""

    frontends_address: str = ""
    workers_address: str = ""
    world_size: int = 1
    max_num_seqs: int = 256
    """Outputs that may run at once: the number of slots."""
    max_num_batched_tokens: int = 2048
    """Tokens that one step may run."""
    max_num_encoder_patches: int = 8192
    """Patches of images that one step may encode, but for a single larger image: one of 1080p has about 8000."""
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    max_num_partial_prefills: int = 4
    """Prompts of one priority that may be under way at once without being run to their end; 1: only the oldest."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    max_num_queued_reqs: int = 10_000
    max_num_queued_tokens: int = 10_000_000
    max_timeout_seconds: float = 3600.0
    frontend_lease_seconds: float = 5.0
    step_timeout_seconds: float = 300.0
    """Time after which a worker group that leaves a plan unanswered is taken to hang and replaced."""
    max_restarts_per_request: int = 2
    """Deaths of worker groups that an output may live through; after one more it ends as the likely cause."""
    audit_interval_steps: int = 1000
    """Steps between two audits of every invariant, on the next idle moment or after 500 times as many; 0: never."""
    log_stats_interval: float = 10.0
    """Seconds between two lines of figures in the log, while there is traffic; 0: none."""
    log_level: str = "info"

    def __post_init__(self) -> None:
        for field in (
            "world_size",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_num_encoder_patches",
            "max_num_partial_prefills",
            "max_num_queued_reqs",
            "max_num_queued_tokens",
        ):
            value = getattr(self, field)
            if value < 1:
                raise ValueError(f"{field}: must be at least 1, got {value}")
        if not 0.0 <= self.log_stats_interval < float("inf"):
            raise ValueError(f"log_stats_interval: must be finite seconds, at least 0, got {self.log_stats_interval:g}")
        if not 0.0 < self.step_timeout_seconds < float("inf"):
            raise ValueError(
                f"step_timeout_seconds: must be a finite number of seconds above 0, got {self.step_timeout_seconds:g}"
            )
        if self.max_num_batched_tokens > MOST_STEP_TOKENS:
            raise ValueError(
                f"max_num_batched_tokens: must be at most {MOST_STEP_TOKENS}, got {self.max_num_batched_tokens}"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens: {self.max_num_batched_tokens} is less than max_num_seqs {self.max_num_seqs}; "
                "a decode step of all sequences would not fit, raise the one or lower the other"
            )

    @property
    def limits(self) -> Limits:
        """The limits that frontends know."""
        return Limits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_queued_reqs=self.max_num_queued_reqs,
            max_num_queued_tokens=self.max_num_queued_tokens,
            priority_enabled=self.scheduling_policy == "priority",
            max_timeout_seconds=self.max_timeout_seconds,
        )
