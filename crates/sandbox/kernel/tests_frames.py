"""A host of a kernel, for its tests."""

import kernel_channel


class Frames(kernel_channel.Silence):
    """A host that remembers the frames."""

    def __init__(self):
        super().__init__()
        self.frames = []

    def send(self, frame):
        super().send(frame)
        self.frames.append(frame)
