"""A command or a connection: what goes in, and what comes out."""

from first_messages import CLOSE, send
from first_streams import Streams

# Bytes of a stream that may be under way.
CHANNEL_WINDOW = 128 << 10


class Channel(Streams):
    """A command or a connection: what goes in, and what comes out."""

    def __init__(self, number):
        super().__init__(number, CHANNEL_WINDOW)
        # True if nothing goes in after what is unsent.
        self.is_last = False
        self.is_refused = False

    def feed(self):
        super().feed()
        if self.is_last and not self.unsent and self.input is not None:
            self.is_last = False
            self.end_input()

    def ended(self, stream):
        """Nothing comes out of a stream any more."""
        self.let_go(stream)
        send(CLOSE, self.number, stream)

    def refused(self):
        """Nobody takes what goes in."""
        self.unsent.clear()
        self.end_input()
        if not self.is_refused:
            self.is_refused = True
            send(CLOSE, self.number, 0)

    def close_stream(self, stream):
        """The host sends no more, or reads no more."""
        if stream == 0:
            self.is_last = True
            self.feed()
        else:
            self.let_go(stream)
        self.watch()
