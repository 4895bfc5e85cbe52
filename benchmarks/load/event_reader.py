"""Server-sent events, from bytes as they come: the data of each event, and nothing else of it.

Lines end with a line feed, with or without a carriage return before it; several lines of data are joined, as
the format asks for.
"""

__all__ = ["EventReader"]


class EventReader:
    """Reads one stream."""

    def __init__(self) -> None:
        self._rest = b""  # a line that has not ended
        self._data: list[bytes] = []  # of the event that has not ended

    def feed(self, body: bytes) -> list[bytes]:
        """Take the next bytes; answers with the data of events that ended in them."""
        lines = (self._rest + body if self._rest else body).split(b"\n")
        self._rest = lines.pop()
        events: list[bytes] = []
        for line in lines:
            self._take(line.removesuffix(b"\r"), events)
        return events

    def close(self) -> list[bytes]:
        """The stream has ended: a last event that no empty line ended counts too."""
        events: list[bytes] = []
        self._take(self._rest.removesuffix(b"\r"), events)
        self._take(b"", events)
        self._rest = b""
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif not line and self._data:
            events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
            self._data = []
