"""The example of docs/clients.md: example.py ADDRESS,ADDRESS,... TABLE"""

import sys

from pypegasus.base.ttypes import error_types
from pypegasus.pgclient import Pegasus
from pypegasus.utils.tools import ScanOptions
from twisted.internet import defer, task

OK = error_types.ERR_OK.value


def checked(operation, answer):
    """What an operation gave. A failed one gives the error alone, or a pair of its code and nothing."""
    if not isinstance(answer, tuple) or answer[0] != OK:
        sys.exit("%s failed: %s" % (operation, answer))
    return answer[1]


@defer.inlineCallbacks
def main(reactor, addresses, table):
    client = Pegasus(addresses.split(","), table)
    if (yield client.init()) is not True:
        sys.exit("cannot open table " + table)

    # Keys and values are bytes or text; what is read is bytes. The last argument is the time to live, seconds.
    checked("set", (yield client.set(b"user-17", b"name", b"Ada", 3600)))
    # Of several records the client takes text only: bytes would be stored as they are printed, as "b'city'".
    checked("multi_set", (yield client.multi_set("user-17", {"city": "Paris", "lang": "fr"})))
    value = checked("get", (yield client.get(b"user-17", b"name")))
    print("name", value.decode())

    # The client needs both borders of a scan of one hash key. The keys that it gives are text.
    scanner = client.get_scanner("user-17", "c", "z", ScanOptions())
    while True:
        row = yield scanner.get_next()
        if row is None:
            break
        (hash_key, sort_key), value = row
        print(sort_key, value.decode())
    scanner.close()
    client.close()


task.react(main, sys.argv[1:])
