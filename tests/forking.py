"""Processes that start fast: forked from one server per test run that has the libraries loaded."""

import multiprocessing

# There is one server, whoever asks for it: a second list would replace this one.
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["tests.preloaded"])
