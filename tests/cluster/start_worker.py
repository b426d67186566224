"""Ray runs this program to start a worker (`NODE`): it asks the server of `tests.cluster.forked`
for a process. It must import nothing that takes time."""

import json
import os
import socket
import sys

if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ["CLEW_TEST_WORKERS"])
        server.sendall(json.dumps([sys.argv[1:], dict(os.environ)]).encode())
