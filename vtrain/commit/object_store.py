"""Object stores: S3 and what speaks its protocol, Google's and Azure's (extra ``store``).

obstore writes, and signs addresses that are good for a while.  Reading goes through these addresses
and ``vtrain.commit.http_store``, so that one reader alone holds out against strangers.  Credentials
and places are obstore's: the environment's as its users know them, or options.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any, Final

from vtrain.commit.http_store import HttpReader
from vtrain.commit.store import Source, check_name, is_content, parse_url, split_url
from vtrain.errors import MissingExtraError, NotProducedError, RunError, StoreError
from vtrain.limits import LIMITS, Limits

try:
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import from_url
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"obstore is missing: {sys.executable} -m pip install 'vtrain[store]'",
        where="published runs (https://, s3:// and their kin)",
    ) from error

_GOOD_FOR: Final = timedelta(hours=1)


def _refuse(what: str, error: BaseError, where: str) -> StoreError:
    """The store's own first line, which has the cause (the rest is for who debugs obstore), and
    what to look at."""
    cause = str(error).strip().partition("\n")[0]
    return StoreError(
        f"cannot be {what}: {cause}; see that the bucket is there and that credentials, region and "
        "endpoint are right, in the environment or by --store-option",
        where=where,
    )


class ObjectStore(Source):
    """A prefix of a bucket, for reading and publishing."""

    def __init__(
        self, url: str, options: Mapping[str, str] | None = None, limits: Limits = LIMITS
    ) -> None:
        super().__init__(limits)
        parse_url(url)
        self._url, self._limits = url.rstrip("/"), limits
        given: dict[str, Any] = dict(options or {})
        opening: Any = from_url  # has an overload for each kind of store, with its options
        client: dict[str, Any] = {"timeout": timedelta(seconds=limits.store_grace_seconds)}
        if given.get("endpoint", "").startswith("http://"):
            client["allow_http"] = True
        try:
            self._store: Any = opening(self._url, client_options=client, **given)
        except (BaseError, TypeError, ValueError) as error:
            raise RunError(f"cannot be opened: {error}", where=url) from None

    @cached_property
    def _there(self) -> dict[str, int]:
        """Sizes of what is there and need not be written again."""
        found: dict[str, int] = {}
        try:
            for page in obstore.list(self._store):
                found |= {item["path"]: item["size"] for item in page}
        except BaseError as error:
            raise _refuse("listed", error, self._url) from None
        return {name: size for name, size in found.items() if is_content(name)}

    @cached_property
    def _reader(self) -> HttpReader:
        return HttpReader(split_url(self._sign("claim.cbor")), self._limits)

    @property
    def ranges(self) -> bool:  # type: ignore[override]
        """Until the store gives all of an object of which a part was asked for."""
        return self._reader.ranges

    def locate(self, name: str) -> str:
        return f"{self._url}/{name}"

    def find(self, name: str, most: int) -> bytes | None:
        try:
            found = obstore.get(self._store, check_name(name))
            if found.meta["size"] > most:
                message = f"it has {found.meta['size']} bytes, more than the {most} that are taken"
                raise NotProducedError(message, where=self.locate(name))
            return bytes(found.bytes())
        except FileNotFoundError:
            return None
        except BaseError as error:
            raise _refuse("read", error, self.locate(name)) from None

    def put(self, name: str, data: bytes) -> None:
        if self._there.get(check_name(name)) == len(data):
            return
        try:
            obstore.put(self._store, name, data)
        except BaseError as error:
            raise _refuse("written", error, self.locate(name)) from None

    def stream(
        self, name: str, most: int, *, exact: bool = False, span: tuple[int, int] | None = None
    ) -> Iterator[bytes]:
        return self._reader.stream(
            self._sign(name), self.locate(name), most, exact=exact, span=span
        )

    def close(self) -> None:
        if "_reader" in self.__dict__:
            self._reader.close()

    def _sign(self, name: str) -> str:
        """The address of an object that is good for a while."""
        try:
            return str(obstore.sign(self._store, "GET", name, _GOOD_FOR))
        except BaseError as error:
            raise _refuse("signed for", error, self.locate(name)) from None
