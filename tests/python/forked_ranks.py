"""Programs that a launcher starts, and that have torch already: importing it takes seconds.

    with Server(directory) as server:
        subprocess.run([*launcher, *server.program("program.py")], ...)

The server is a process that has imported torch and computes nothing. A launcher starts this file,
without torch, for each rank. It asks the server to fork a process with its environment, files and
directory, which runs the program, passes signals on to it, and ends as it ends. If it is killed, so
is the forked process."""

import json
import os
import select
import signal
import socket
import subprocess
import sys

_PASSED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


class Server:
    def __init__(self, directory):
        self._path = os.path.join(directory, "ranks.socket")
        self._process = None

    def __enter__(self):
        self._process = subprocess.Popen([sys.executable, __file__, "serve", self._path],
                                         stdout=subprocess.PIPE)
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def program(self, path):
        """What a launcher starts in place of the program."""
        return [__file__, self._path, path]


# ---- a rank ----

def _be_rank(server, program):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(server)
        asked = json.dumps([program, os.getcwd(), dict(os.environ)]).encode()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        socket.send_fds(connection, [asked], [0, 1, 2])
        for number in _PASSED:
            signal.signal(number, lambda number, _: connection.send(b"%d" % number))
        status = int(connection.recv(64) or b"1")
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


# ---- the server ----

def _fork(connection):
    """Returns the process; 0 and its program in the process itself."""
    message, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    child = os.fork()
    program = None
    if child == 0:
        program, directory, environment = json.loads(message)
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
    for file in files:
        os.close(file)
    return child, program


def _serve(path):
    """Returns a program in the process that is to run it."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen(16)
    os.write(1, b"ready\n")
    ranks = {}  # by connection: its process
    while True:
        ready, _, _ = select.select([listening, *ranks], [], [], 0.02)
        for connection in ready:
            if connection is listening:
                connection, _ = listening.accept()
                child, program = _fork(connection)
                if child == 0:
                    for each in (listening, connection, *ranks):
                        each.close()
                    return program
                ranks[connection] = child
            elif connection in ranks:
                os.kill(ranks[connection], int(connection.recv(64) or signal.SIGKILL))
        for connection, child in list(ranks.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                del ranks[connection]
                try:
                    connection.send(b"%d" % os.waitstatus_to_exitcode(status))
                except OSError:
                    pass  # the rank was killed
                connection.close()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        import sluice.torch  # noqa: F401
        import torch

        torch.optim.SGD([torch.zeros(1)], 1.0)  # the first optimizer imports a thousand modules
        path = _serve(sys.argv[2])
        sys.argv = [path]
        with open(path) as file:
            text = file.read()
        exec(compile(text, path, "exec"), {"__name__": "__main__"})
    else:
        _be_rank(*sys.argv[1:])
