#!/usr/bin/env python3
"""Opens pages of replays in headless Chromium and looks at them: report_page_test.py PROGRAM LOG_FOLDER CONFIG_FOLDER

One browser lays out every page at every width, in frames of a harness; the pages are what users get, unchanged.
"""

import html
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM, LOGS, CONFIGS = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
CHECKS = pathlib.Path(__file__).with_name("browser_checks.js")
CONVERSATION = LOGS / "mooncake_conversation_head1000.jsonl"
WIDTHS = (1280, 800)
MODEL = ["--execute", "model", "--config", CONFIGS / "deepseek-v4-flash.json", "--step-table",
         CONFIGS / "step-table-h200.json", "--jitter", "3000", "--prefix-interval", "512"]
SERVED = ["headline", "latency", "load", "cache", "slowest", "memory", "run", "meaning"]

# What no page should look like: every check has something to find in it.
BROKEN = """<!DOCTYPE html><html><body onclick="1"><section id="one"></section>
<div style="width:3000px">wide</div>
<svg viewBox="0 0 100 50" width="100"><text x="10" y="20">over each</text><text x="14" y="22">other</text>
<text x="90" y="45">outside of it</text><text x="5" y="48" style="font-size:3px">tiny</text></svg>
<table><tr><td style="position:absolute;left:0;top:300px">cell</td><td style="position:absolute;left:4px;top:301px">cell
</td></tr></table><p style="width:20px;overflow:hidden">clippedclippedclipped</p>
<img src="http://127.0.0.1:9/nothing.png"></body></html>"""


def replay(log, *arguments, json_file, page):
    done = subprocess.run([PROGRAM, "replay", str(log), *map(str, arguments), "--json", str(json_file), "--report",
                           str(page)], capture_output=True, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr.decode())
    return json.loads(json_file.read_text()), page.read_text()


def browser():
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if found := shutil.which(name):
            return found
    raise AssertionError("no Chromium: scripts/setup.sh --browser installs it; ctest -LE browser goes without")


def look_at(pages, folder):
    """What browser_checks.js says of every page, by name and width."""
    frames = "".join(f'<iframe title="{html.escape(name)}" style="border:0;width:{width}px;height:900px" '
                     f'srcdoc="{html.escape(page)}"></iframe>' for name, page in pages.items() for width in WIDTHS)
    harness = folder / "harness.html"
    harness.write_text(f'<!DOCTYPE html><meta charset="utf-8"><pre id="result"></pre><script>{CHECKS.read_text()}'
                       f'</script>{frames}')
    command = [browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
               f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000", "--dump-dom", harness.as_uri()]
    done = subprocess.run(command, capture_output=True, check=False, timeout=100)
    result = re.search(r'<pre id="result">(.*?)</pre>', done.stdout.decode(), re.DOTALL)
    if result is None or not result.group(1):
        raise AssertionError(f"the browser gave no result: {done.stderr.decode()[-2000:]}")
    return {(look["name"], look["width"]): look for look in json.loads(html.unescape(result.group(1)))}


def at(document, pointer):
    for part in pointer.split("/")[1:]:
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        folder = pathlib.Path(cls.temporary.name)
        # A name that would be markup, ids that would be too.
        hostile = folder / "<script>alert('log')<b>&\"'.jsonl"
        hostile.write_text(
            '{"dsv4_trace":1,"block_tokens":512,"prefix_identity":"none"}\n' +
            "".join(json.dumps({"timestamp": 40 * i, "input_length": 900 + i, "output_length": 1 + i % 70,
                                "request_id": "<img src=x onerror=alert(1)>" + "w" * 200 + str(i)}) + "\n"
                    for i in range(60)))
        cases = {
            "overload": (CONVERSATION, [*MODEL, "--speed", "2", "--max-waiting", "64", "--max-sequences", "128",
                                        "--slo", "ttft:2000,tpot:50,e2el:60000", "--reserve", "prompt",
                                        "--sweep-pool", "1M,2M", "--prefix-states", "4096"]),
            "hostile": (hostile, [*MODEL, "--max-sequences", "4", "--prefix-states", "0"]),
            "nothing": (CONVERSATION, [*MODEL, "--limit", "1", "--max-context", "4096"]),
            "study": (CONVERSATION, ["--execute", "none", "--policy", "belady"]),
            "unknown": (LOGS / "azure_llm_2023_code_head100.csv", ["--execute", "none"]),
        }
        cls.documents, cls.pages = {}, {}
        for name, (log, arguments) in cases.items():
            cls.documents[name], cls.pages[name] = replay(log, *arguments, json_file=folder / f"{name}.json",
                                                          page=folder / f"{name}.html")
        cls.looks = look_at({**cls.pages, "broken": BROKEN}, folder)

    def each(self):
        return [(name, width, look) for (name, width), look in self.looks.items() if name != "broken"]

    def test_the_checks_find_what_is_wrong_with_a_page(self):
        look = self.looks["broken", 1280]
        self.assertEqual(sorted(name for name, found in look["found"].items() if not found), [])
        self.assertEqual(len(look["found"]["overlapping"]), 2)
        self.assertEqual(look["found"]["outside"], ["outside of it"])
        self.assertGreater(look["beyondTheEdge"], 1000)
        self.assertEqual(look["requests"], ["http://127.0.0.1:9/nothing.png"])
        self.assertEqual(look["loading"], ["IMG"])

    def test_nothing_overlaps_or_leaves_its_place(self):
        for name, width, look in self.each():
            self.assertEqual(look["found"], {key: [] for key in look["found"]}, (name, width))
            self.assertLessEqual(look["beyondTheEdge"], 0, (name, width))

    def test_all_sections_and_charts_are_there(self):
        for name, width, look in self.each():
            expected = ["headline", "capacity", "run", "meaning"] if name in ("study", "unknown") else list(SERVED)
            if name == "overload":
                expected.insert(4, "capacity")
            self.assertEqual(look["sections"], expected, (name, width))
        charts = self.looks["overload", 1280]["headings"]
        for heading in ("Time to first token (TTFT)", "Time per output token (TPOT)", "Gap between tokens (ITL)",
                        "End to end", "Requests a second", "Waiting requests", "Running requests", "Tokens a second",
                        "Blocks of CSA_KV", "Blocks of INDEX_K", "Blocks of HCA_KV", "Boundary states",
                        "Hit rate against capacity", "Time to first token against capacity"):
            self.assertIn(heading, charts)
        self.assertEqual(self.looks["study", 800]["svgs"], 1)
        self.assertEqual(self.looks["unknown", 800]["svgs"], 0)
        self.assertGreater(self.looks["overload", 800]["texts"], 14 * 6)

    def test_pages_need_neither_network_nor_scripts(self):
        for name, _, look in self.each():
            self.assertEqual(look["requests"], [], name)
            self.assertEqual(look["loading"], [], name)
            style = self.pages[name].partition("</style>")[0]
            self.assertIn("default-src 'none'", style)
            self.assertNotIn("@import", style)
            self.assertNotIn("url(", style)

    def test_numbers_are_those_of_the_json(self):
        for name, _, look in self.each():
            document = self.documents[name]
            self.assertGreater(len(look["numbers"]), 5)
            for pointer, scale, text in look["numbers"]:
                digits = len(text.partition(".")[2])
                value = at(document, pointer) * scale
                self.assertLessEqual(abs(value - float(text.replace(",", ""))), 0.5 * 10**-digits + 1e-9 * abs(value),
                                     (pointer, text))
        shown = {pointer for pointer, _, _ in self.looks["overload", 1280]["numbers"]}
        wanted = [f"/run/latency_ms/{what}/{value}" for what in ("ttft", "tpot", "itl", "e2el", "queue")
                  for value in ("count", "mean", "min", "p50", "p90", "p95", "p99", "max")]
        wanted += [f"/run/requests/{value}" for value in ("arrived", "finished", "rejected", "preemptions")]
        wanted += ["/run/tokens/hit_rate", "/run/goodput/share_of_arrived", "/run/throughput/output_tokens_per_s",
                   "/run/overload/last_rejected_ms", "/run/steps/extrapolated", "/sweep/1/hit_rate",
                   "/run/slowest/19/metrics/request_latency/value", "/run/memory/roles/0/total_bytes"]
        self.assertEqual([pointer for pointer in wanted if pointer not in shown], [])
        shown = {pointer for pointer, _, _ in self.looks["study", 1280]["numbers"]}
        self.assertTrue({"/capacities/0/hit_rate", "/capacities/3/lru/hit_rate"} <= shown)

    def test_a_curve_is_drawn_through_the_points_of_the_json(self):
        values = self.documents["overload"]["run"]["distribution_ms"]["ttft"]
        drawn = [tuple(map(float, point.split(","))) for point in self.looks["overload", 1280]["firstLine"].split()][1:]
        self.assertEqual(len(drawn), len(values))
        left, right = drawn[0][0], drawn[-1][0]
        span = math.log(values[-1][0] / values[0][0])
        for (x, y), (value, share) in zip(drawn, values):
            self.assertAlmostEqual(y, 188 - 164 * share, delta=0.06)
            self.assertAlmostEqual(x, left + (right - left) * math.log(value / values[0][0]) / span, delta=0.12)

    def test_texts_of_others_are_no_markup(self):
        look = self.looks["hostile", 800]
        self.assertEqual(look["title"], "Replay of <script>alert('log')<b>&\"'.jsonl")
        self.assertIn("<script>alert('log')<b>", look["text"])
        self.assertIn("<img src=x onerror=alert(1)>www", look["text"])

    def test_what_was_run_is_said(self):
        text = self.looks["overload", 1280]["text"]
        document = self.documents["overload"]
        for words in (document["log"]["sha256"], document["provenance"]["version"], document["provenance"]["commit"],
                      "dsv4rt replay ", "--speed 2", "NVIDIA H200", "Performance only", "extrapolated", "useful"):
            self.assertIn(words, text)
        self.assertIn("Not known: the log does not say", self.looks["unknown", 800]["text"])
        self.assertIn("No request finished", self.looks["nothing", 800]["text"])

    def test_the_page_of_a_saved_report_has_the_same_bytes(self):
        folder = pathlib.Path(self.temporary.name)
        for name in ("overload", "study"):
            again = subprocess.run([PROGRAM, "report", str(folder / f"{name}.json")], capture_output=True, check=True)
            self.assertEqual(again.stdout.decode(), self.pages[name])
            out = folder / f"{name} again.html"
            subprocess.run([PROGRAM, "report", str(folder / f"{name}.json"), "--out", str(out)], check=True)
            self.assertEqual(out.read_text(), self.pages[name])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
