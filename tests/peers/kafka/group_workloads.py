"""Workloads of consumer groups for `bench`, on raw sockets.

rebalance: members that answer at once join one group; the time from the first JoinGroup to the last
SyncGroup of the generation that has all of them. commits, heartbeats: a fixed rate over several
connections, each with a group of its own; CPU time of the broker per request, without what it uses
when idle.
"""

import itertools
import select
import struct
import time

clock = time.perf_counter
JOIN, HEARTBEAT, SYNC, COMMIT, FIND = (11, 5), (12, 3), (14, 3), (8, 7), (10, 2)
NOT_READY = (14, 15, 16)  # loading, not available, not the coordinator
REBALANCING, NEEDS_ID = 27, 79
SERIAL = itertools.count()


def text(value):
    return (
        struct.pack(">h", -1) if value is None else struct.pack(">h", len(value)) + value.encode()
    )


def blob(value):
    return struct.pack(">i", len(value)) + value


def frame(api, body):
    request = struct.pack(">hhi", *api, 1) + text("bench") + body
    return struct.pack(">i", len(request)) + request


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values if len(values) > 1 else values[0]

    def text(self):
        size = self.take(">h")
        self.at += max(size, 0)
        return None if size < 0 else self.data[self.at - size : self.at].decode()

    def blob(self):
        size = self.take(">i")
        self.at += size
        return self.data[self.at - size : self.at]


class Connection:
    def __init__(self, connect, host, port):
        self.sock, self.received = connect(host, port, 20), b""

    def call(self, api, body):
        self.sock.sendall(frame(api, body))
        while (reply := self.reply()) is None:
            pass
        return reply

    def reply(self):
        """A Reader behind the header of the next reply, None if it has not arrived whole."""
        if len(self.received) < 4 or len(self.received) < 4 + int.from_bytes(
            self.received[:4], "big"
        ):
            data = self.sock.recv(65536)
            if not data:
                raise RuntimeError("connection closed")
            self.received += data
        size = int.from_bytes(self.received[:4], "big")
        if len(self.received) < 4 + size:
            return None
        data, self.received = self.received[8 : 4 + size], self.received[4 + size :]
        return Reader(data)


def coordinator(peer, connect, group):
    """Host and port of the group's coordinator, once it answers for the group."""
    host, _, port = peer.bootstrap.split(",")[0].rpartition(":")
    until = clock() + 60
    while clock() < until:
        asked = Connection(connect, host, int(port))
        found = asked.call(FIND, text(group) + b"\0")
        found.take(">ih")
        found.text()
        node, at = found.take(">i"), (found.text(), found.take(">i"))
        asked.sock.close()
        if node >= 0:
            there = Connection(connect, *at)
            reply = there.call(
                HEARTBEAT, text(group) + struct.pack(">i", 0) + text("x") + text(None)
            )
            there.sock.close()
            if reply.take(">ih")[1] == 25:  # loaded: it does not know the member
                return at
        time.sleep(0.1)
    raise RuntimeError("no coordinator for 60 s")


class Member:
    """Joins, syncs, and joins again as soon as its heartbeats show a rebalance."""

    def __init__(self, connect, at, group):
        self.connection, self.group = Connection(connect, *at), group
        self.id, self.generation, self.joined, self.synced = "", -1, 0, -1
        self.asked = None

    def ask(self, api, body):
        self.asked = api
        self.connection.sock.sendall(frame(api, text(self.group) + body))

    def join(self):
        protocols = struct.pack(">i", 1) + text("range") + blob(bytes(100))
        self.ask(
            JOIN,
            struct.pack(">ii", 30000, 60000)
            + text(self.id)
            + text(None)
            + text("consumer")
            + protocols,
        )

    def heartbeat(self):
        self.ask(HEARTBEAT, struct.pack(">i", self.generation) + text(self.id) + text(None))

    def read(self):
        """Handle the reply, if it is whole. Return whether a heartbeat must be sent later."""
        reply = self.connection.reply()
        if reply is None:
            return False
        _, code = reply.take(">ih")
        if self.asked == JOIN:
            self.generation = reply.take(">i")
            reply.text()
            reply.text()
            self.id = reply.text()
            if code in (NEEDS_ID, REBALANCING, *NOT_READY):
                return self.join()
            check(code)
            members = [
                (reply.text(), reply.text(), reply.blob())[0] for _ in range(reply.take(">i"))
            ]
            self.joined = len(members)
            shares = struct.pack(">i", len(members)) + b"".join(
                text(each) + blob(bytes(100)) for each in members
            )
            return self.ask(
                SYNC, struct.pack(">i", self.generation) + text(self.id) + text(None) + shares
            )
        if code == REBALANCING:
            return self.join()
        check(code)
        if self.asked == SYNC:
            self.synced = self.generation
        return True


def check(code):
    if code:
        raise RuntimeError(f"error {code}")


def rebalance(peer, connect, count):
    group = f"bench-{time.time_ns():x}-{next(SERIAL)}"
    at = coordinator(peer, connect, group)
    members = [Member(connect, at, group) for _ in range(count)]
    poll, by_fd, due = select.epoll(), {each.connection.sock.fileno(): each for each in members}, {}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    began = clock()
    for member in members:
        member.join()
    while True:
        for fd, _ in poll.poll(0.005):
            member = by_fd[fd]
            while True:
                if member.read():
                    due[member] = clock() + 0.02
                if len(member.connection.received) < 4:
                    break
        if (
            any(each.joined == count and each.synced == each.generation for each in members)
            and len({each.synced for each in members}) == 1
        ):
            break
        now = clock()
        if now - began > 60:
            raise RuntimeError(f"{len({each.synced for each in members})} generations after 60 s")
        for member in [each for each, at_ in due.items() if at_ <= now]:
            del due[member]
            member.heartbeat()
    took = clock() - began
    for member in members:
        member.connection.sock.close()
    return {"rebalance_ms": took * 1e3, "generations": members[0].synced}


def steady(peer, connect, usage, prepare, rate, seconds, connections=50):
    """Send the requests of `prepare` at a rate; subtract the CPU time of the idle broker."""
    base = f"bench-{time.time_ns():x}-{next(SERIAL)}"
    senders = []
    for number in range(connections):
        group = f"{base}-{number}"
        senders.append(prepare(Connection(connect, *coordinator(peer, connect, group)), group))
    time.sleep(1)
    before, began = usage(peer.pids)[0], clock()
    time.sleep(3)
    idle = (usage(peer.pids)[0] - before) / (clock() - began)
    poll, waiting, taken, done = select.epoll(), {}, [], 0
    for connection, _, _ in senders:
        poll.register(connection.sock, select.EPOLLIN)
    by_fd = {each[0].sock.fileno(): each for each in senders}
    before, began = usage(peer.pids)[0], clock()
    turn, sent = itertools.cycle(senders), 0
    while (now := clock()) - began < seconds or waiting:
        while now - began < seconds and sent < (now - began) * rate:
            sender = next(turn)
            fd = sender[0].sock.fileno()
            if fd in waiting:
                break  # the broker does not keep up: the rate of the result shows it
            sender[0].sock.sendall(sender[1])
            waiting[fd] = now
            sent += 1
        for fd, _ in poll.poll(0.001):
            reply = by_fd[fd][0].reply()
            if reply is not None:
                by_fd[fd][2](reply)
                taken.append(clock() - waiting.pop(fd))
                done += 1
        if clock() - began > seconds + 20:
            raise RuntimeError("replies are missing")
    took = clock() - began
    used = usage(peer.pids)[0] - before - idle * took
    for connection, _, _ in senders:
        connection.sock.close()
    taken.sort()
    return {
        "req_s": done / took,
        "p50_ms": taken[done // 2] * 1e3,
        "p99_ms": taken[done * 99 // 100] * 1e3,
        "cpu_us_per_request": used / done * 1e6,
        "idle_cores": idle,
    }


def commits(topic):
    def prepare(connection, group):
        partition = struct.pack(">iqi", 0, 1234, -1) + text("")
        body = (
            text(group)
            + struct.pack(">i", -1)
            + text("")
            + text(None)
            + struct.pack(">i", 1)
            + text(topic)
            + struct.pack(">i", 1)
            + partition
        )

        def read(reply):
            reply.take(">ii")
            reply.text()
            check(reply.take(">iih")[2])

        return connection, frame(COMMIT, body), read

    return prepare


def heartbeats(connection, group):
    member = Member.__new__(Member)
    member.connection, member.group, member.id, member.synced = connection, group, "", -1
    member.join()
    while member.synced < 0:
        member.read()
    body = text(group) + struct.pack(">i", member.generation) + text(member.id) + text(None)

    def read(reply):
        check(reply.take(">ih")[1])

    return connection, frame(HEARTBEAT, body), read
