"""Programs of tests, each in a process of its own that ends as Python does.

Importing torch takes seconds, so one process imports it, computes nothing, and is forked for each
program. It ends with the process of the tests."""

import atexit
import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile

_LONGEST = 1 << 16


@functools.lru_cache(None)
def _connection():
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        number = theirs.fileno()
        server = subprocess.Popen([sys.executable, __file__, str(number)], pass_fds=[number])

    def end():
        own.close()
        server.wait()

    atexit.register(end)
    return own


class Program:
    """A program that runs; a context in which it ends. One runs at a time."""

    def __init__(self, text, stdout, stderr):
        """stdout, stderr: file descriptors, which may be closed afterwards."""
        self._server = _connection()
        socket.send_fds(self._server, [text.encode()], [stdout, stderr])
        self._status = None
        self.pid = self._receive()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._status is None:
            self.kill()
            self.wait()

    def _receive(self):
        message = self._server.recv(_LONGEST)
        assert message, "the process that runs the programs has ended"
        return int(message)

    def kill(self, number=signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(self.pid, number)

    def wait(self, seconds=120):
        """The exit status; negative: the signal that ended it."""
        self._server.settimeout(seconds)
        try:
            self._status = self._receive()
        except socket.timeout:
            self._server.settimeout(None)
            self.kill()
            self._status = self._receive()
            raise
        finally:
            self._server.settimeout(None)
        return self._status


def run(text, seconds=120):
    """Runs a program to its end. Returns its exit status and what it printed."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        with Program(text, stdout.fileno(), stderr.fileno()) as program:
            status = program.wait(seconds)
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read().decode())
    return status, *texts


def _serve(connection):
    """Returns the text of a program in the process that is to run it."""
    while True:
        message, files, _, _ = socket.recv_fds(connection, _LONGEST, 2)
        if not message:
            os._exit(0)
        child = os.fork()
        if child == 0:
            connection.close()
            for number, file in zip((1, 2), files):
                os.dup2(file, number)
                os.close(file)
            return message.decode()
        for file in files:
            os.close(file)
        connection.send(b"%d" % child)
        connection.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    import sluice.torch  # noqa: F401
    import torch

    torch.optim.SGD([torch.zeros(1)], 1.0)  # the first optimizer imports a thousand modules
    exec(compile(_serve(socket.socket(fileno=int(sys.argv[1]))), "<program>", "exec"),
         {"__name__": "__main__"})
