"""The beginning of a sandbox that is reached by its streams: stores the scripts that come over stdin, and becomes the first process."""

import json
import os
import struct
import sys
import tempfile

# The directory of the scripts; a temporary one where nothing can be written there.
SCRIPTS_DIRECTORY = "/run/aludel"


def main():
    # As for the other commands of a sandbox, by their environment, which a process with -I does not read.
    sys.dont_write_bytecode = True
    directory = store(json.loads(read_exactly(struct.unpack(">I", read_exactly(4))[0])))
    sys.path.insert(0, directory)
    import first_process

    first_process.run(directory)


def store(scripts):
    """Stores scripts, and returns their directory."""
    directory = SCRIPTS_DIRECTORY if os.access(SCRIPTS_DIRECTORY, os.W_OK) else tempfile.mkdtemp(prefix="aludel-")
    for name, text in scripts.items():
        with open(os.path.join(directory, name), "w") as file:
            file.write(text)
    return directory


def read_exactly(count):
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            os._exit(0)
        data += part
    return data


if __name__ == "__main__":
    main()
