"""The response half of HTTP/1.1 (RFC 9112), from bytes as they come. No I/O, no clock.

It owns the framing alone: the status, whether the connection may be used again, and the body without its
chunks. Bodies that end with the connection are known too; compression is not, and is never asked for.
"""

from enum import Enum, auto

__all__ = ["BrokenResponse", "ResponseReader"]

_MAX_HEAD_BYTES = 1 << 16


class BrokenResponse(Exception):
    """What came is no whole HTTP/1.1 response."""


class _Place(Enum):
    HEAD = auto()
    SIZE = auto()  # the line before a chunk
    CHUNK = auto()
    TRAILER = auto()
    COUNTED = auto()  # a body of a known length
    UNTIL_CLOSE = auto()
    DONE = auto()


class ResponseReader:
    """Reads one response."""

    def __init__(self) -> None:
        self.status = 0  # 0 until the head has been read
        self.keeps_alive = False
        self._place = _Place.HEAD
        self._buffer = b""
        self._num_left = 0  # bytes of the chunk (with its line end) or of the counted body

    @property
    def is_done(self) -> bool:
        """The response has ended."""
        return self._place is _Place.DONE

    @property
    def is_untouched(self) -> bool:
        """Nothing has come yet."""
        return self._place is _Place.HEAD and not self._buffer and not self.status

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; answers with what of them is body. Raises BrokenResponse."""
        self._buffer = self._buffer + data if self._buffer else data
        body: list[bytes] = []
        while self._buffer and self._advance(body):
            pass
        return body[0] if len(body) == 1 else b"".join(body)

    def close(self) -> None:
        """The connection has ended. Raises BrokenResponse if the response had not."""
        if self._place is _Place.UNTIL_CLOSE:
            self._place = _Place.DONE
        if self._place is not _Place.DONE:
            raise BrokenResponse("the connection ended before the response did")

    def _advance(self, body: list[bytes]) -> bool:
        """Take one piece off the buffer; False when more bytes are needed."""
        match self._place:
            case _Place.CHUNK | _Place.COUNTED:
                return self._take_counted(body)
            case _Place.SIZE:
                return self._take_size()
            case _Place.UNTIL_CLOSE:
                body.append(self._buffer)
                self._buffer = b""
                return False
            case _Place.HEAD:
                return self._take_head()
            case _Place.TRAILER:
                return self._take_trailer()
            case _Place.DONE:
                raise BrokenResponse("bytes came after the response")

    def _take_counted(self, body: list[bytes]) -> bool:
        line_end = 2 if self._place is _Place.CHUNK else 0
        taken = self._buffer[: self._num_left]
        self._buffer = self._buffer[self._num_left :]
        piece = taken[: max(0, self._num_left - line_end)]
        if piece:
            body.append(piece)
        self._num_left -= len(taken)
        if self._num_left:
            return False
        self._place = _Place.SIZE if line_end else _Place.DONE
        return True

    def _take_size(self) -> bool:
        line, found, rest = self._buffer.partition(b"\r\n")
        if not found:
            self._check_length()
            return False
        digits = line.partition(b";")[0].strip()
        if not digits or digits.strip(b"0123456789abcdefABCDEF"):
            raise BrokenResponse(f"no size of a chunk: {line[:40]!r}")
        size = int(digits, 16)
        self._buffer = rest
        self._num_left = size + 2
        self._place = _Place.CHUNK if size else _Place.TRAILER
        return True

    def _take_trailer(self) -> bool:
        line, found, rest = self._buffer.partition(b"\r\n")
        if not found:
            self._check_length()
            return False
        self._buffer = rest
        if not line:
            self._place = _Place.DONE
        return True

    def _take_head(self) -> bool:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            self._check_length()
            return False
        self._buffer = rest
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, reason = first.partition(" ")
        if not version.startswith("HTTP/1.") or not reason[:3].isdecimal():
            raise BrokenResponse(f"no status line: {first[:40]!r}")
        self.status = int(reason[:3])
        if 100 <= self.status < 200:
            return True  # an interim response; the one that counts follows
        fields = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        self._begin_body(fields, version)
        return True

    def _begin_body(self, fields: dict[str, str], version: str) -> None:
        self.keeps_alive = version == "HTTP/1.1" and fields.get("connection", "").lower() != "close"
        if fields.get("transfer-encoding", "").lower().endswith("chunked"):
            self._place = _Place.SIZE
        elif "content-length" in fields:
            if not fields["content-length"].isdecimal():
                raise BrokenResponse(f"no length: {fields['content-length'][:40]!r}")
            self._num_left = int(fields["content-length"])
            self._place = _Place.COUNTED if self._num_left else _Place.DONE
        else:
            self.keeps_alive = False
            self._place = _Place.DONE if self.status in (204, 304) else _Place.UNTIL_CLOSE

    def _check_length(self) -> None:
        if len(self._buffer) > _MAX_HEAD_BYTES:
            raise BrokenResponse("a head or a line without an end")
