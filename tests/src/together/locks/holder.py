"""A process of the scene `locks`: it executes lines, and prints an answer to each.

It calls the C library, so that an interrupted call shows: the interpreter would repeat it.
"""

import ctypes
import fcntl
import os
import random
import signal
import struct
import sys
import time

LIBRARY = ctypes.CDLL(None, use_errno=True)
# struct flock: type, whence, start, length, process.
FLOCK = "hhqqi4x"
SET = {"fcntl": (fcntl.F_SETLK, fcntl.F_SETLKW), "ofd": (fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW)}
GET = {"fcntl": fcntl.F_GETLK, "ofd": fcntl.F_OFD_GETLK}
HOW = {
    "exclusive": (fcntl.F_WRLCK, fcntl.LOCK_EX),
    "shared": (fcntl.F_RDLCK, fcntl.LOCK_SH),
    "none": (fcntl.F_UNLCK, fcntl.LOCK_UN),
}
DIGITS = 20


def asked(how, start, length):
    packed = struct.pack(FLOCK, HOW[how][0], os.SEEK_SET, start, length, 0)
    return ctypes.create_string_buffer(packed, len(packed))


def checked(result):
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def lock(kind, how, of, wait=True, start=0, length=0):
    """Takes or releases a lock; a length of 0 reaches to the end."""
    if kind == "flock":
        checked(LIBRARY.flock(of, HOW[how][1] | (0 if wait else fcntl.LOCK_NB)))
    else:
        checked(LIBRARY.fcntl(of, SET[kind][wait], asked(how, start, length)))


def conflict(kind, how, of, start, length):
    """What is in the way of a lock: its type, start and length."""
    question = asked(how, start, length)
    checked(LIBRARY.fcntl(of, GET[kind], question))
    found, whence, start, length, _ = struct.unpack(FLOCK, question.raw)
    names = {fcntl.F_WRLCK: "exclusive", fcntl.F_RDLCK: "shared", fcntl.F_UNLCK: "none"}
    return names[found] if found == fcntl.F_UNLCK else f"{names[found]} {whence} {start} {length}"


def interrupted_after(seconds):
    """Has SIGALRM come once, with a handler that does not ask for a restart."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def opened(name="file"):
    return os.open(name, os.O_RDWR)


def number(of):
    text = os.pread(of, DIGITS + 1, 0)
    if len(text) != DIGITS or not text.isdigit():
        raise ValueError(f"a counter is {text!r}")
    return int(text)


def put(of, value):
    text = str(value).zfill(DIGITS).encode()
    if os.pwrite(of, text, 0) != len(text):
        raise ValueError("a counter was not written whole")


def in_copy(kind, do):
    """Opens and closes the copy, since the lock is of the counter."""
    copy = opened(f"copy-{kind}")
    try:
        return do(copy)
    finally:
        os.close(copy)


def count(kind, times, log, seed):
    """Increments a counter, and its copy in another file, under an exclusive lock."""
    counter = opened(f"counter-{kind}")
    draw = random.Random(seed)
    with open(log, "w", encoding="ascii") as log:
        for _ in range(times):
            began = time.monotonic_ns()
            lock(kind, "exclusive", counter)
            entered = time.monotonic_ns()
            value, other = number(counter), in_copy(kind, number)
            # Others ask for the lock meanwhile.
            time.sleep(draw.random() * 0.002)
            put(counter, value + 1)
            in_copy(kind, lambda copy: put(copy, value + 1))
            leaving = time.monotonic_ns()
            lock(kind, "none", counter)
            log.write(f"exclusive {began} {entered} {leaving} {value} {other}\n")
            time.sleep(draw.random() * 0.003)


def look(kind, until, log, seed):
    """Reads both under a shared lock."""
    counter = opened(f"counter-{kind}")
    draw = random.Random(seed)
    value = 0
    with open(log, "w", encoding="ascii") as log:
        while value < until:
            began = time.monotonic_ns()
            lock(kind, "shared", counter)
            entered = time.monotonic_ns()
            value, other = number(counter), in_copy(kind, number)
            leaving = time.monotonic_ns()
            lock(kind, "none", counter)
            log.write(f"shared {began} {entered} {leaving} {value} {other}\n")
            log.flush()
            time.sleep(0.005 + draw.random() * 0.02)


def main():
    print("ready", flush=True)
    for line in sys.stdin:
        result = None
        try:
            if line.startswith("= "):
                result = eval(line[2:], globals())
            else:
                exec(line, globals())
            print("done" if result is None else result, flush=True)
        except BlockingIOError:
            print("refused", flush=True)
        except InterruptedError:
            print("interrupted", flush=True)
        except (OSError, ValueError) as error:
            # EACCES: POSIX leaves the choice.
            print("refused" if getattr(error, "errno", 0) == 13 else error, flush=True)


main()
