"""API keys. Every method and path needs one, known or not, except those of health.

Both servers ask `Keyring.refusal`, so a key opens the same in both.
"""

import hashlib
import hmac
import logging
import os
import re
import time
from collections.abc import Mapping
from typing import Literal

from quire.frontend.config import KEY, FrontendConfig
from quire.frontend.security.file_watch import Clock, WatchedFiles
from quire.proto.api import RequestError

USER_VARIABLE = "QUIRE_API_KEY"
ADMIN_VARIABLE = "QUIRE_ADMIN_KEY"
"""Environment variables with keys, separated by spaces, beside those of the files."""

Need = Literal["nothing", "key", "admin"]
"""The kind of key that a call needs: none, any, or an admin key."""

log = logging.getLogger("quire.frontend")


class KeyFileError(ValueError):
    """Keys that cannot be used; the message names the file or variable, never a key."""


class Keys:
    """Keys of one file and one environment variable, kept as digests.

    The file is read again when it changes; one that cannot be used leaves the keys as they were.
    """

    def __init__(self, field: str, path: str, variable: str, given: str, clock: Clock = time.monotonic) -> None:
        """`field` is the option that named the file, `given` the value of `variable`. Raises `KeyFileError`."""
        self._field = field
        self._path = path
        self._fixed = _digests(given.split(), f"${variable}") if given.strip() else ()
        self._files = WatchedFiles([path], clock)
        self._of_file = self._read()

    def __bool__(self) -> bool:
        """True where there is any key."""
        return bool(self._fixed or self._of_file)

    def accept(self, digest: bytes) -> bool:
        """True for the digest of a key. Takes the same time whichever key, if any, is right."""
        if self._files.changed():
            try:
                self._of_file = self._read()
                log.info("%s: %s: read again, %d keys", self._field, self._path, len(self._of_file))
            except KeyFileError as error:
                log.error("%s; the keys of before stay in use", error)
        matches = [hmac.compare_digest(digest, known) for known in (*self._fixed, *self._of_file)]
        return any(matches)

    def _read(self) -> tuple[bytes, ...]:
        """One key per line; empty lines and lines that begin with # do not count."""
        if not self._path:
            return ()
        try:
            with open(self._path, encoding="utf-8") as file:
                lines = [line.strip() for line in file]
        except UnicodeDecodeError as error:
            raise KeyFileError(f"{self._field}: {self._path}: not text in UTF-8") from error
        except OSError as error:
            raise KeyFileError(f"{self._field}: {self._path}: {error.strerror}") from error
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise KeyFileError(f"{self._field}: {self._path}: holds no key; write one per line")
        return _digests(keys, f"{self._field}: {self._path}")


class Keyring:
    """The keys of users and of admins, and what they open. An admin key opens everything."""

    def __init__(
        self, config: FrontendConfig, environment: Mapping[str, str] = os.environ, clock: Clock = time.monotonic
    ) -> None:
        """Raises `KeyFileError`."""
        user, admin = environment.get(USER_VARIABLE, ""), environment.get(ADMIN_VARIABLE, "")

        def named(field: str) -> str:
            return config.flags.get(field, field)

        self._users = Keys(named("api_key_file"), config.api_key_file, USER_VARIABLE, user, clock)
        self._admins = Keys(named("admin_key_file"), config.admin_key_file, ADMIN_VARIABLE, admin, clock)

    @property
    def locked(self) -> bool:
        """True where ordinary calls need a key."""
        return bool(self._users)

    def refusal(self, need: Need, key: str | None) -> RequestError | None:
        """The refusal of a caller with `key` (None: with no key, or several); None where the call is allowed.

        Without admin keys, what needs one is refused where users have keys, and open where they have none.
        """
        if need == "nothing":
            return None
        digest = _digest(key) if key is not None else b""
        is_user, is_admin = self._users.accept(digest), self._admins.accept(digest)
        if is_admin:
            return None
        if need == "key":
            return None if is_user or not self._users else _unknown()
        if not self._users and not self._admins:
            return None
        if not is_user:
            return _unknown()
        hint = "" if self._admins else "; the server has none: start it with --admin-key-file"
        return RequestError("PERMISSION_DENIED", f"this needs an admin key{hint}")


def _unknown() -> RequestError:
    return RequestError("UNAUTHENTICATED", "a valid bearer key is needed")


def bearer(authorization: object) -> str | None:
    """The KEY of `Bearer KEY`; None for anything else."""
    if not isinstance(authorization, str):
        return None
    scheme, _, key = authorization.partition(" ")
    return key.strip(" ") if scheme.lower() == "bearer" else None


def tenant_of(key: str | None) -> str:
    """A name for whoever shows this key, from which nobody learns the key; empty for none."""
    return "" if key is None else _digest(key).hex()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def _digests(keys: list[str], where: str) -> tuple[bytes, ...]:
    for number, key in enumerate(keys, 1):
        if not re.fullmatch(KEY, key):
            raise KeyFileError(f"{where}: key {number} must be 8 to 1024 visible ASCII characters")
    return tuple(_digest(key) for key in keys)
