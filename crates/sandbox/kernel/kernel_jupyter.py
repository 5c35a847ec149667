"""Kernels of other languages: a go-between of the host's frames and Jupyter's protocol.

A kernel of Python becomes one when it is configured for another language, before its first cell. The Jupyter kernel that the template has
for the language is its child, which it reaches over sockets in a directory of /tmp; it ends when its child does, and the child when it does.

Frames in: execute, shown. Frames out: configured, display, result, flushed, error, done, failed.
"""

import ctypes
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

from kernel_channel import FROM_HOST_FD
from kernel_output import encode_bundle, flush_streams

# In a kernel's command: the file that tells it where it is reached.
FILE = "{connection_file}"
# The directory of its description.
PLACE = "{resource_dir}"
# Directories in which packages declare kernels.
DECLARED = [os.path.join(prefix, "share/jupyter/kernels") for prefix in (sys.prefix, "/usr/local", "/usr")]
# Without the working directory in its path, whose modules are the user's, and without its socket for forked processes: a TCP socket, for which
# ZeroMQ asks the system about its devices and aborts when it may not.
BASH = (
    "import os, sys; del sys.path[0]; from ipykernel.iostream import IOPubThread; IOPubThread._setup_pipe_in = lambda self: None; "
    "from ipykernel.kernelapp import IPKernelApp; from bash_kernel.kernel import BashKernel; "
    "sys.argv += ['--quiet', '--ipython-dir=' + os.path.dirname(sys.argv[-1])]; IPKernelApp.launch_instance(kernel_class=BashKernel)"
)


class Command:
    """The command of a Jupyter kernel, how it is interrupted, the sockets that it listens on, and the milliseconds for which it may go on to tell of
    a cell whose end it has told."""

    def __init__(self, argv, interrupt="signal", transport="ipc", environment=(), lag=0):
        self.argv, self.interrupt, self.transport, self.environment = argv, interrupt, transport, dict(environment)
        self.lag = lag

    def with_file(self, path):
        return [word.replace(FILE, path) for word in self.argv]


# Deno of PyPI or npm, which speaks over TCP alone, and tells one value in ten after the end of its cell.
DENO = Command(
    ["deno", "--quiet", "jupyter", "--kernel", "--conn", FILE],
    interrupt="message",
    transport="tcp",
    environment={"NO_COLOR": "1"},
    lag=50,
)
# Languages of declared kernels that speak over TCP alone: their ZeroMQ is written in Java and has no Unix sockets.
OVER_TCP = ("clojure", "groovy", "java", "kotlin", "scala")
# Kernels whose packages declare nothing, and the module or the program by which they are there.
UNDECLARED = {
    "bash": ("bash_kernel", Command([sys.executable, "-s", "-c", BASH, "-f", FILE])),
    "javascript": ("deno", DENO),
    "typescript": ("deno", DENO),
}


def of_node(name, value):
    return f"process.env[{json.dumps(name)}] = {json.dumps(value)}; undefined"


# Programs that set a variable of the environment, or take it away. The environment of a program in Java cannot be changed and is not where such
# programs look: they find the variables among their properties.
SET = {
    "bash": lambda name, value: f"export {name}={shlex.quote(value)}",
    "java": lambda name, value: f"System.setProperty({json.dumps(name)}, {json.dumps(value)});",
    "javascript": of_node,
    "r": lambda name, value: f"invisible(Sys.setenv({name}={json.dumps(value)}))",
    "typescript": of_node,
}
UNSET = {
    "bash": lambda name: f"unset {name}",
    "java": lambda name: f"System.clearProperty({json.dumps(name)});",
    "javascript": lambda name: f"delete process.env[{json.dumps(name)}]; undefined",
    "r": lambda name: f"invisible(Sys.unsetenv({json.dumps(name)}))",
    "typescript": lambda name: f"delete process.env[{json.dumps(name)}]; undefined",
}
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Channels of a Jupyter kernel.
CHANNELS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
PR_SET_PDEATHSIG = 1
# Pause after which a kernel that starts is asked again whether it has, milliseconds.
PATIENCE = 1000


class Unavailable(Exception):
    """A language without a kernel, or a kernel that did not start."""


class Refused(Exception):
    """A program that cannot run as it was asked for."""


def commands():
    """The kernels that the template has, by language."""
    found = {}
    for directory in DECLARED:
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            continue
        for name in names:
            try:
                place = os.path.join(directory, name)
                with open(os.path.join(place, "kernel.json"), encoding="utf-8") as file:
                    declared = json.load(file)
                interrupt, environment = declared.get("interrupt_mode", "signal"), declared.get("env", {})
                argv = [word.replace(PLACE, place) for word in declared["argv"]]
                languages = [name.lower(), declared["language"].lower()]
                transport = "tcp" if languages[1] in OVER_TCP else "ipc"
                command = Command(argv, interrupt, transport, environment)
            except (OSError, ValueError, LookupError, AttributeError, TypeError):
                continue
            for language in languages:
                if not language.startswith("python"):
                    found.setdefault(language, command)
    for language, (part, command) in UNDECLARED.items():
        if shutil.which(part) is not None or importlib.util.find_spec(part) is not None:
            found.setdefault(language, command)
    return found


class Relay:
    """The go-between of the host and one Jupyter kernel."""

    def __init__(self, language, output, variables):
        there = commands()
        if language not in there:
            raise Unavailable(f"no kernel for {language} is installed; the languages are {', '.join(['python', *sorted(there)])}")
        self.language, self.output, self.command = language, output, there[language]
        self.ended, self.wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, self.interrupt)
        # Some variables make a program run others when it starts, which nobody has approved.
        can_take_later = language in SET
        self.start({} if can_take_later else variables)
        if can_take_later:
            self.take_environment(variables)

    def start(self, variables):
        """Starts the kernel with these variables beside its own, and waits until it listens."""
        directory = tempfile.mkdtemp(prefix=".kernel-", dir="/tmp")
        path = os.path.join(directory, "connection.json")
        key = os.urandom(16).hex()
        transport = self.command.transport
        address = "127.0.0.1" if transport == "tcp" else f"{directory}/socket"
        ports = dict(zip(CHANNELS, free_ports(len(CHANNELS)) if transport == "tcp" else range(1, 6)))
        where = {"transport": transport, "ip": address, "key": key, "signature_scheme": "hmac-sha256", **ports}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(where, file)
        libc = ctypes.CDLL(None)
        try:
            self.kernel = subprocess.Popen(
                self.command.with_file(path),
                stdin=subprocess.DEVNULL,
                env={**os.environ, **variables, **self.command.environment},
                # We interrupt it in its own way.
                start_new_session=True,
                # It ends with this process, however that ends.
                preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        except OSError as error:
            raise Unavailable(f"the kernel for {self.language} did not start: {error.strerror}") from None
        # It starts meanwhile.
        import zmq
        from jupyter_client.session import Session

        self.zmq = zmq
        context = zmq.Context()
        self.session = Session(key=key.encode(), signature_scheme="hmac-sha256")
        channels = []
        for kind, port in ((zmq.DEALER, "shell_port"), (zmq.SUB, "iopub_port"), (zmq.DEALER, "control_port")):
            channel = context.socket(kind)
            channel.linger = 0
            # Text that is printed faster than it is read waits, within the sandbox's memory, and is not left out.
            channel.rcvhwm = 0
            if kind == zmq.SUB:
                channel.subscribe(b"")
            between = ":" if transport == "tcp" else "-"
            channel.connect(f"{transport}://{address}{between}{ports[port]}")
            channels.append(channel)
        self.shell, self.published, self.control = channels
        self.poller = zmq.Poller()
        for source in (self.shell, self.published, self.ended):
            self.poller.register(source, zmq.POLLIN)
        self.is_up = False
        answered, publishes = False, False
        while not (answered and publishes):
            self.session.send(self.shell, "kernel_info_request", {})
            for source in self.wait(PATIENCE):
                message = self.receive(source)
                answered = answered or message["header"]["msg_type"] == "kernel_info_reply"
                publishes = publishes or source is self.published
        self.is_up = True
        # All that reads it has.
        shutil.rmtree(directory, ignore_errors=True)

    def wait(self, patience=None):
        """Returns the sockets that have something; ends as the kernel does when it has ended and told all."""
        ready = [source for source, _event in self.poller.poll(patience)]
        if self.ended in ready:
            os.read(self.ended, 4096)
            ready.remove(self.ended)
        if not ready and self.kernel.poll() is not None:
            if not self.is_up:
                raise Unavailable(f"the kernel for {self.language} ended when it started, with {self.kernel.returncode}")
            end_like(self.kernel.returncode)
        return ready

    def receive(self, source):
        _identities, message = self.session.recv(source, mode=0)
        return message

    def interrupt(self, _number=None, _frame=None):
        """Ends the cell; between cells there is nothing to end."""
        if self.output.in_cell:
            if self.command.interrupt == "message":
                self.session.send(self.control, "interrupt_request", {})
            else:
                self.kernel.send_signal(signal.SIGINT)

    def take_environment(self, variables):
        """Sets the sandbox's variables for programs to come."""
        for name, value in variables.items():
            if NAME.match(name) is not None:
                self.converse(SET[self.language](name, value), is_silent=True)

    def run(self):
        """Runs cells until the host has gone."""
        channel = self.output.channel
        waits = self.zmq.Poller()
        for source in (FROM_HOST_FD, self.ended):
            waits.register(source, self.zmq.POLLIN)
        while True:
            ready = [source for source, _event in waits.poll()]
            if self.ended in ready:
                os.read(self.ended, 4096)
                if self.kernel.poll() is not None:
                    end_like(self.kernel.returncode)
            if FROM_HOST_FD not in ready:
                continue
            try:
                frame = channel.receive()
            except EOFError:
                return
            if frame["type"] == "execute":
                self.execute(frame["code"], dict(frame.get("environment", ())))
            elif frame["type"] == "configure":
                channel.send({"type": "failed", "reason": "it is set up already"})

    def execute(self, code, variables):
        output = self.output
        output.begin_cell()
        output.in_cell = True
        try:
            error = self.run_cell(code, variables)
        except Refused as refused:
            error = {"name": "ValueError", "value": str(refused), "traceback": f"ValueError: {refused}"}
        finally:
            output.in_cell = False
        flush_streams()
        if error is not None:
            output.channel.send({"type": "error", **error})
        output.channel.send({"type": "done"})

    def run_cell(self, code, variables):
        """Runs a cell with these variables, and returns its error."""
        if variables and self.language not in SET:
            raise Refused(f"a program in {self.language} has no environment variables of its own here")
        for name, value in variables.items():
            if NAME.match(name) is None:
                raise Refused(f"{name!r} cannot be a variable in {self.language}")
            self.converse(SET[self.language](name, value), is_silent=True)
        try:
            return self.converse(code)
        finally:
            for name in variables:
                before = os.environ.get(name)
                back = UNSET[self.language](name) if before is None else SET[self.language](name, before)
                self.converse(back, is_silent=True)

    def converse(self, code, is_silent=False):
        """Sends a program to the kernel and tells what comes of it. Returns its error."""
        content = {
            "code": code,
            "silent": is_silent,
            "store_history": not is_silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        asked = self.session.send(self.shell, "execute_request", content)["header"]["msg_id"]
        reply, is_idle, error = None, False, None
        while reply is None or not is_idle or (self.command.lag and self.poller.poll(self.command.lag)):
            for source in self.wait():
                message = self.receive(source)
                kind, told = message["header"]["msg_type"], message["content"]
                if message["parent_header"].get("msg_id") != asked:
                    continue
                if kind == "execute_reply":
                    reply = told
                elif kind == "status":
                    is_idle = told["execution_state"] == "idle"
                elif kind == "error":
                    error = described(told)
                elif not is_silent:
                    self.tell(kind, told)
        if error is None and reply["status"] != "ok":
            error = described(reply)
        return error

    def tell(self, kind, told):
        if kind == "stream":
            stream = sys.stderr if told["name"] == "stderr" else sys.stdout
            stream.write(told["text"])
            stream.flush()
        elif kind in ("display_data", "update_display_data"):
            self.output.show({"type": "display", "data": encode_bundle(told["data"])})
        elif kind == "execute_result":
            self.output.show_result(told["data"])


def free_ports(count):
    """Ports of the sandbox's loopback device on which nothing listens."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def described(told):
    """An error as Jupyter tells it, as a frame has it."""
    name, value = told.get("ename") or "Error", told.get("evalue") or ""
    if value.isdigit():
        value = f"exit status {value}"
    traceback = "\n".join(told.get("traceback") or ()) or f"{name}: {value}"
    return {"name": name, "value": value, "traceback": COLOURS.sub("", traceback)}


def end_like(status):
    """Ends this process as its child has ended."""
    flush_streams()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)
