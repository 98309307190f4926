"""Every operation of the unmodified Python client of Pegasus, against a running Hedgerow cluster.

Usage: conformance.py ADDRESS,ADDRESS,... TABLE MISSING_TABLE [KILL_COMMAND RESTART_COMMAND]

TABLE is an empty hash table, MISSING_TABLE a name that no table has. The two commands, run by a shell, kill one node and
start it again. One line per check, then `N passed, N failed`. The client writes its log, pegasus.log, into the current
folder.
"""

import subprocess
import sys
import time
import traceback
import warnings

# The client's TLS library misses an optional package that nothing here uses.
warnings.filterwarnings("ignore", message=".*service_identity.*")

from pypegasus.base.ttypes import error_types
from pypegasus.pgclient import Pegasus
from pypegasus.rrdb.ttypes import filter_type
from pypegasus.utils.tools import MultiGetOptions, ScanOptions
from twisted.internet import defer, reactor, task

OK = error_types.ERR_OK.value
NOT_FOUND = error_types.ERR_OBJECT_NOT_FOUND.value
INCOMPLETE = error_types.ERR_INCOMPLETE_DATA.value

# Status numbers of the storage that the client hands through untranslated.
NO_SUCH_RECORD = 1
INVALID_ARGUMENT = 4

# The whole program is given up after this, seconds.
DEADLINE = 240
# After a kill: how long one attempt and all attempts may take, ms and seconds. The client looks for a new leader only
# after five time-outs.
ATTEMPT_MS = 300
RECOVERY = 60

passed = 0
failed = 0


def check(name, is_good, detail=""):
    global passed, failed
    if is_good:
        passed += 1
        print("ok      python: " + name, flush=True)
    else:
        failed += 1
        print("FAILED  python: " + name + ": " + str(detail), flush=True)


def check_equal(name, got, wanted):
    check(name, got == wanted, "got %.300r, wanted %.300r" % (got, wanted))


def pause(seconds):
    return task.deferLater(reactor, seconds, lambda: None)


@defer.inlineCallbacks
def collect(scanner):
    """Everything that a scanner gives, in its order."""
    rows = []
    while True:
        row = yield scanner.get_next()
        if row is None:
            return rows
        rows.append(row)


@defer.inlineCallbacks
def single_records(client):
    result = yield client.set("single", "a", "1")
    check_equal("set", result, (OK, None))
    result = yield client.get("single", "a")
    check_equal("get", result, (OK, b"1"))
    yield client.set("single", "a", "2")
    result = yield client.get("single", "a")
    check_equal("set again replaces", result, (OK, b"2"))
    code, _ = yield client.get("single", "absent")
    check_equal("get of an absent sort key", code, NOT_FOUND)
    code, _ = yield client.get("nobody", "a")
    check_equal("get of an absent hash key", code, NOT_FOUND)

    code, _ = yield client.exist("single", "a")
    check_equal("exist", code, OK)
    code, _ = yield client.exist("single", "absent")
    check_equal("exist of an absent record", code, NOT_FOUND)
    result = yield client.ttl("single", "a")
    check_equal("ttl of a record that lives for ever", result, (OK, -1))
    code, _ = yield client.ttl("single", "absent")
    check_equal("ttl of an absent record", code, NOT_FOUND)

    code, _ = yield client.remove("single", "a")
    check_equal("remove", code, OK)
    code, _ = yield client.get("single", "a")
    check_equal("get after remove", code, NOT_FOUND)
    code, _ = yield client.remove("single", "a")
    check_equal("remove of an absent record", code, OK)


@defer.inlineCallbacks
def odd_bytes(client):
    every_byte = bytes(range(256))
    cases = [
        ("an empty sort key", b"odd", b"", b"value"),
        ("an empty value", b"odd", b"empty", b""),
        ("keys and a value of every byte", b"\x00\xff" + every_byte, every_byte, every_byte),
        ("a hash key of one zero byte", b"\x00", b"k", b"zero"),
        ("a hash key of 1,024 bytes", b"h" * 1024, b"k", b"long"),
        ("a value of 400 KiB", b"odd", b"large", every_byte * 1600),
    ]
    for name, hash_key, sort_key, value in cases:
        code, _ = yield client.set(hash_key, sort_key, value)
        check_equal("set with " + name, code, OK)
        result = yield client.get(hash_key, sort_key)
        check_equal("get with " + name, result, (OK, value))
        yield client.remove(hash_key, sort_key)

    yield client.set(b"ab", b"c", b"1")
    yield client.set(b"a", b"bc", b"2")
    first = yield client.get(b"ab", b"c")
    second = yield client.get(b"a", b"bc")
    check_equal("the border between hash key and sort key counts", (first[1], second[1]), (b"1", b"2"))
    yield client.remove(b"ab", b"c")
    yield client.remove(b"a", b"bc")


@defer.inlineCallbacks
def many_records(client):
    rows = {"k%03d" % number: "v%03d" % number for number in range(200)}
    as_bytes = {key.encode(): value.encode() for key, value in rows.items()}
    code, _ = yield client.multi_set("many", rows)
    check_equal("multi_set", code, OK)
    result = yield client.sort_key_count("many")
    check_equal("sort_key_count", result, (OK, 200))
    result = yield client.sort_key_count("nobody")
    check_equal("sort_key_count of an absent hash key", result, (OK, 0))

    result = yield client.multi_get("many", {"k001", "k100", "absent"})
    check_equal("multi_get by keys", result, (OK, {key: as_bytes[key] for key in (b"k001", b"k100")}))
    result = yield client.multi_get("many", {"k001"}, no_value=True)
    check_equal("multi_get without values", result, (OK, {b"k001": b""}))
    result = yield client.multi_get("many", None, max_kv_count=1000)
    check_equal("multi_get of a whole hash key", result, (OK, as_bytes))
    code, kvs = yield client.multi_get("many", None)
    check_equal("multi_get stops at its default of 100 rows", (code, sorted(kvs)), (INCOMPLETE, sorted(as_bytes)[:100]))
    code, kvs = yield client.multi_get("many", None, max_kv_count=7)
    check_equal("multi_get stops at max_kv_count", (code, sorted(kvs)), (INCOMPLETE, sorted(as_bytes)[:7]))
    code, kvs = yield client.multi_get("many", None, max_kv_count=1000, max_kv_size=40)
    check_equal("multi_get says that max_kv_size cut it", code, INCOMPLETE)
    check("multi_get stops near max_kv_size", 1 <= len(kvs) <= 6, "%d rows of 8 bytes" % len(kvs))
    code, kvs = yield client.multi_get("nobody", None)
    check_equal("multi_get of an absent hash key", (code, kvs), (OK, {}))
    code, kvs = yield client.get_sort_keys("many", max_kv_count=1000)
    check_equal("get_sort_keys", (code, sorted(kvs)), (OK, sorted(as_bytes)))

    yield ranges(client, as_bytes)

    result = yield client.multi_del("many", {"k000", "k001", "absent"})
    check_equal("multi_del counts the keys it was sent", result, (OK, 3))
    result = yield client.sort_key_count("many")
    check_equal("sort_key_count after multi_del", result, (OK, 198))
    code, _ = yield client.multi_set("many", {})
    check_equal("multi_set of nothing is refused", code, INVALID_ARGUMENT)
    code, _ = yield client.multi_del("many", set())
    check_equal("multi_del of nothing is refused", code, INVALID_ARGUMENT)
    rest = {"k%03d" % number for number in range(2, 200)}
    yield client.multi_del("many", rest)
    result = yield client.sort_key_count("many")
    check_equal("sort_key_count after the last multi_del", result, (OK, 0))


@defer.inlineCallbacks
def ranges(client, rows):
    """multi_get_opt: borders, filters, order, limits."""

    def options(**changes):
        result = MultiGetOptions()
        for name, value in changes.items():
            assert hasattr(result, name)
            setattr(result, name, value)
        return result

    def between(low, high):
        return {key: value for key, value in rows.items() if low <= key <= high}

    cases = [
        ("includes its start only", "k010", "k020", options(), between(b"k010", b"k019")),
        ("with both borders", "k010", "k020", options(stop_inclusive=True), between(b"k010", b"k020")),
        ("without its borders", "k010", "k020", options(start_inclusive=False), between(b"k011", b"k019")),
        ("to the end", "k195", "", options(), between(b"k195", b"k199")),
        ("from the beginning", "", "k005", options(), between(b"k000", b"k004")),
        ("that is empty", "k020", "k010", options(), {}),
        ("without values", "k010", "k012", options(no_value=True), {b"k010": b"", b"k011": b""}),
        (
            "by prefix",
            "",
            "",
            options(sortkey_filter_type=filter_type.FT_MATCH_PREFIX, sortkey_filter_pattern="k01"),
            between(b"k010", b"k019"),
        ),
        (
            "by postfix",
            "",
            "",
            options(sortkey_filter_type=filter_type.FT_MATCH_POSTFIX, sortkey_filter_pattern="99"),
            {key: rows[key] for key in (b"k099", b"k199")},
        ),
        (
            "by a match anywhere",
            "",
            "",
            options(sortkey_filter_type=filter_type.FT_MATCH_ANYWHERE, sortkey_filter_pattern="19"),
            {key: value for key, value in rows.items() if b"19" in key},
        ),
    ]
    for name, start, stop, option, wanted in cases:
        result = yield client.multi_get_opt("many", start, stop, option)
        check_equal("multi_get of a range " + name, result, (OK, wanted))

    code, kvs = yield client.multi_get_opt("many", "k010", "k020", options(reverse=True), max_kv_count=3)
    check_equal("multi_get backwards keeps the last rows", (code, sorted(kvs)), (INCOMPLETE, [b"k017", b"k018", b"k019"]))


@defer.inlineCallbacks
def expiry(client):
    begin = time.time()
    code, _ = yield client.set("mortal", "short", "v", ttl=2)
    check_equal("set with a ttl", code, OK)
    code, _ = yield client.set("mortal", "long", "v", ttl=1000)
    code, _ = yield client.multi_set("mortal", {"m1": "v", "m2": "v"}, ttl=2)
    check_equal("multi_set with a ttl", code, OK)
    code, seconds = yield client.ttl("mortal", "long")
    check("ttl counts down", code == OK and 990 <= seconds <= 1000, (code, seconds))
    code, seconds = yield client.ttl("mortal", "short")
    if time.time() - begin < 0.5:
        check("ttl of a short life", code == OK and 0 <= seconds <= 2, (code, seconds))
    code = OK
    while code == OK and time.time() - begin < 15:
        code, _ = yield client.get("mortal", "short")
        yield pause(0.1)
    check_equal("a record expires", code, NOT_FOUND)
    check("a record does not expire early", time.time() - begin > 0.9, time.time() - begin)
    while time.time() - begin < 3.2:
        yield pause(0.1)
    code, _ = yield client.exist("mortal", "short")
    check_equal("exist of an expired record", code, NOT_FOUND)
    code, _ = yield client.ttl("mortal", "short")
    check_equal("ttl of an expired record", code, NOT_FOUND)
    result = yield client.multi_get("mortal", None)
    check_equal("multi_get leaves expired records out", result, (OK, {b"long": b"v"}))
    result = yield client.sort_key_count("mortal")
    check_equal("sort_key_count leaves expired records out", result, (OK, 1))
    yield client.set("mortal", "long", "w")
    result = yield client.ttl("mortal", "long")
    check_equal("set without a ttl takes the ttl away", result, (OK, -1))
    yield client.remove("mortal", "long")


@defer.inlineCallbacks
def scans(client):
    wanted = {}
    for hash_number in range(20):
        hash_key = "scan%02d" % hash_number
        rows = {"s%03d" % number: "v%d-%d" % (hash_number, number) for number in range(50)}
        yield client.multi_set(hash_key, rows)
        wanted.update({(hash_key, key): value.encode() for key, value in rows.items()})

    def options(**changes):
        result = ScanOptions()
        for name, value in changes.items():
            assert hasattr(result, name)
            setattr(result, name, value)
        return result

    def part(low, high):
        rows = sorted(wanted.items())
        return [row for row in rows if row[0][0] == "scan07" and low <= row[0][1] <= high]

    # Without a stop key the client fails in its own code, so every scan of a hash key names one.
    rows = yield collect(client.get_scanner("scan07", "s000", "s999", options(batch_size=7)))
    check_equal("scan of a hash key in pages of 7", rows, part("s000", "s999"))
    rows = yield collect(client.get_scanner("scan07", "s010", "s020", options(stop_inclusive=True)))
    check_equal("scan with both borders", rows, part("s010", "s020"))
    rows = yield collect(client.get_scanner("scan07", "s010", "s020", options(start_inclusive=False)))
    check_equal("scan without its borders", rows, part("s011", "s019"))
    rows = yield collect(client.get_scanner("nobody", "s000", "s999", options()))
    check_equal("scan of an absent hash key", rows, [])

    for count, batch_size in ((1, 1000), (3, 13), (1000, 10)):
        found = []
        for scanner in client.get_unordered_scanners(count, options(batch_size=batch_size)):
            found += yield collect(scanner)
        name = "full scan with at most %d scanners in pages of %d" % (count, batch_size)
        check_equal(name + " finds no record twice", len(found), len(dict(found)))
        check_equal(name + " finds every record", dict(found), wanted)

    scanner = client.get_scanner("scan07", "s000", "s999", options(batch_size=7))
    first = yield scanner.get_next()
    scanner.close()
    result = yield client.get("scan07", "s001")
    check_equal("a closed scan leaves the connection usable", (first, result), (part("s000", "s000")[0], (OK, b"v7-1")))

    for hash_number in range(20):
        yield client.multi_del("scan%02d" % hash_number, {"s%03d" % number for number in range(50)})


@defer.inlineCallbacks
def pipelining(client):
    writes = [client.set("pipe%d" % (number % 50), "k%d" % number, "v%d" % number) for number in range(500)]
    results = yield defer.gatherResults(writes)
    check_equal("500 writes at once", set(results), {(OK, None)})
    reads = [client.get("pipe%d" % (number % 50), "k%d" % number) for number in range(500)]
    results = yield defer.gatherResults(reads)
    check_equal("500 reads at once", results, [(OK, b"v%d" % number) for number in range(500)])
    yield defer.gatherResults([client.remove("pipe%d" % (number % 50), "k%d" % number) for number in range(500)])


@defer.inlineCallbacks
def until_good(operation, is_good):
    """Repeats an operation as a caller of this client has to while leaders change. Returns the last result."""
    end = time.time() + RECOVERY
    while True:
        result = yield operation()
        if is_good(result) or time.time() > end:
            return result
        yield pause(0.05)


def shell(command):
    """Runs a command without stopping the client meanwhile."""
    from twisted.internet import threads

    return threads.deferToThread(subprocess.run, command, shell=True, check=True, stdin=subprocess.DEVNULL)


@defer.inlineCallbacks
def leader_change(client, kill, restart):
    hash_keys = ["fault%02d" % number for number in range(40)]

    @defer.inlineCallbacks
    def write_and_read(suffix):
        """Writes one record per hash key, so in every partition, and reads all older ones back. Returns what went wrong."""
        wrong = []
        for hash_key in hash_keys:
            value = "v-" + suffix
            result = yield until_good(
                lambda: client.set(hash_key, suffix, value, timeout=ATTEMPT_MS), lambda result: result == (OK, None)
            )
            if result != (OK, None):
                wrong.append(("set", hash_key, suffix, result))
            for written in suffixes[: suffixes.index(suffix) + 1]:
                wanted = (OK, b"v-" + written.encode())
                result = yield until_good(
                    lambda: client.get(hash_key, written, timeout=ATTEMPT_MS), lambda result: result == wanted
                )
                if result != wanted:
                    wrong.append(("get", hash_key, written, result))
        return wrong

    suffixes = ["before", "while-down", "after"]
    wrong = yield write_and_read("before")
    check_equal("writes and reads before a node is killed", wrong, [])
    yield shell(kill)
    begin = time.time()
    wrong = yield write_and_read("while-down")
    check_equal("writes and reads while a node is down", wrong, [])
    print("        python: served again by the other nodes after %.1f s" % (time.time() - begin), flush=True)
    yield shell(restart)
    wrong = yield write_and_read("after")
    check_equal("writes and reads after the node came back", wrong, [])
    for hash_key in hash_keys:
        yield until_good(
            lambda: client.multi_del(hash_key, set(suffixes), timeout=ATTEMPT_MS), lambda result: result == (OK, 3)
        )


@defer.inlineCallbacks
def run(arguments):
    addresses, table, missing = arguments[0].split(","), arguments[1], arguments[2]
    stranger = Pegasus(addresses, missing, 1000)
    result = yield stranger.init()
    check("a table that does not exist cannot be opened", not result, result)
    stranger.close()

    client = Pegasus(addresses, table)
    result = yield client.init()
    check("open a table", result is True, result)
    sections = [single_records, odd_bytes, many_records, expiry, scans, pipelining]
    for section in sections:
        try:
            yield section(client)
        except Exception:
            check(section.__name__ + " runs to its end", False, traceback.format_exc())
    if len(arguments) == 5:
        try:
            yield leader_change(client, arguments[3], arguments[4])
        except Exception:
            check("leader_change runs to its end", False, traceback.format_exc())
    client.close()


def finish(result):
    if result is not None:
        check("the program runs to its end", False, result)
    reactor.stop()


def give_up():
    check("the program ends within %d seconds" % DEADLINE, False, "gave up")
    reactor.stop()


def main():
    if len(sys.argv) not in (4, 6):
        sys.exit(__doc__)
    reactor.callLater(DEADLINE, give_up)
    reactor.callWhenRunning(lambda: run(sys.argv[1:]).addBoth(finish))
    reactor.run()
    print("python: %d passed, %d failed" % (passed, failed), flush=True)
    sys.exit(1 if failed or not passed else 0)


main()
