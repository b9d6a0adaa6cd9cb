"""openmined.psi: client and server in one process, as its own example does it."""

from __future__ import annotations

import json
import sys
import time

import private_set_intersection.python as psi

rows = int(sys.argv[1])
left = [f"person {i}" for i in range(rows)]
right = [f"person {i + rows // 2}" for i in range(rows)]
began, used = time.perf_counter(), time.process_time()
client, server = psi.client.CreateWithNewKey(True), psi.server.CreateWithNewKey(True)
setup = server.CreateSetupMessage(1e-9, rows, right, psi.DataStructure.RAW)
response = server.ProcessRequest(client.CreateRequest(left))
common = client.GetIntersection(setup, response)
told = {
    "common": len(common),
    "wall": time.perf_counter() - began,
    "cpu": time.process_time() - used,
}
print(json.dumps(told))
