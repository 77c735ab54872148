"""Cameras: streams that send a frame each at an interval, whatever the server does, and how many it keeps up with.

Request `i` of a run is a frame of camera `i % cameras`.
"""

from collections.abc import Sequence

import numpy as np

from quire.deploy.bench.load.request_record import OK, RequestRecord
from quire.deploy.bench.load.service_level import KEPT_SHARE
from quire.deploy.bench.report.report import Figure


def frame_moments(cameras: int, frames: int, interval: float, seed: int) -> list[float]:
    """Seconds from the start at which each frame is sent; cameras were switched on at random moments of an interval."""
    phases = np.random.default_rng(seed).uniform(0.0, interval, cameras)
    return [float(phase + frame * interval) for frame in range(frames) for phase in phases]


def camera_figures(records: Sequence[RequestRecord], cameras: int, interval: float) -> dict[str, Figure]:
    """The share of frames answered in whole within the interval, and of how many cameras 99 % of the frames were."""
    in_time = [record.status == OK and record.ended - record.sent <= interval for record in records]
    shares = [float(np.mean(in_time[camera::cameras])) for camera in range(cameras)]
    return {
        "frames_in_time_share": float(np.mean(in_time)),
        "cameras_sustained": sum(share >= KEPT_SHARE for share in shares),
    }
