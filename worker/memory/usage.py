"""Memory that one process takes of a device beside others, from here on, by kind."""

import logging

from quire.worker.device.device import Device

LIBRARIES_MOST_BYTES = 4 << 30
"""Most that libraries take beside torch (NCCL's buffers, code of kernels, graphs). The driver counts processes
together, so what grew by more than this is taken for another's, and a neighbour's growth below it counts as ours:
NVML's count per process names it by the host's number, which a process in a container does not know."""

_log = logging.getLogger(__name__)


class MemoryUsage:
    """Memory this engine takes. Made before anything is loaded: what is in use by then is another's."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._total = device.total_memory()
        self._used_before = self._total - device.free_memory()
        self._held_before = device.held_memory()

    def taken(self, held: int) -> int:
        """Bytes in all, if torch holds `held` of the device."""
        return held - self._held_before + self._beside()

    def kinds(self, weights: int, kv_cache: int, graphs: int, encoder: int = 0) -> tuple[tuple[str, int], ...]:
        """(kind, bytes) of what is taken now, of which so many are known; on the CPU nothing else is."""
        known = (("weights", weights), ("kv_cache", kv_cache), *((("encoder_memory", encoder),) if encoder else ()))
        if not self._device.has_own_memory:
            return known
        held = self._device.held_memory() - self._held_before
        steps = max(0, held - weights - kv_cache - graphs - encoder)
        return *known, ("graphs", graphs), ("steps", steps), ("libraries", self._beside())

    def _beside(self) -> int:
        """Bytes that libraries beside torch take."""
        grown = self._total - self._device.free_memory() - self._used_before
        beside = grown - (self._device.held_memory() - self._held_before)
        if beside > LIBRARIES_MOST_BYTES:
            _log.warning("%d bytes of device memory were taken by other processes meanwhile", beside)
        return max(0, min(beside, LIBRARIES_MOST_BYTES))
