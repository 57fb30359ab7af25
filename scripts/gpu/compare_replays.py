#!/usr/bin/env python3
"""Holds `dsv4rt replay` on a GPU against itself: answers against the same requests run alone, and real runs against
models of the machine.

  compare_replays.py --program build/cuda/tools/dsv4rt/dsv4rt --checkpoint DIR --config FILE --out DIR [...]

answers: 500 requests of a log, lengths scaled, a few shared beginnings put in front, are served by a crowded engine
  (prefix cache, preemption by recompute and by snapshot, drafts) and then one by one by an engine that shares nothing.
  Every request's SHA-256 of its outputs must be the same, and hits, preemptions and drafts must have happened.
table: measures a step table on this machine (dsv4rt bench --step-table).
model: 200 requests of the log by --execute real and by --execute model with the table: p50 and p99 of time to first
  token and of time per output token, side by side. Fails where they are more than --tolerance apart.

Everything that the runs write stays in --out. Exit code: 0 if all parts that were asked for are well.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

FOLDER = pathlib.Path(__file__).resolve().parent.parent.parent
CONVERSATION = FOLDER / "tests/data/logs/mooncake_conversation_head1000.jsonl"
# Sequences x cached tokens, and tokens of a prompt @ cached ones: what a few tens of sequences of up to 128K meet.
DECODE = ("1x1024,1x8192,1x32768,1x131072,2x1024,2x8192,2x32768,4x1024,4x8192,4x32768,8x1024,8x8192,8x32768,16x8192,"
          "32x1024,32x8192,32x32768,64x8192,128x4096,256x1024,256x4096")
PREFILL = ("16,64,128,256,512,1024,2048,4096,8192,16@8192,128@8192,512@8192,2048@8192,"
           "16@32768,128@32768,512@32768,2048@32768")


def run(arguments, program, *parts):
    """Runs the program, its output in front of the reader; its failure ends this one."""
    command = [str(part) for part in (program, *parts)]
    print("$", " ".join(command), flush=True)
    begin = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=arguments.limit)
    print(done.stdout, f"[{time.monotonic() - begin:.1f} s]", flush=True)
    if done.returncode != 0:
        sys.exit(f"{command[1]}: exit code {done.returncode}")


def engine_flags(arguments):
    layers = ["--layers", arguments.layers] if arguments.layers else []
    return ["--execute", "real", "--checkpoint", arguments.checkpoint, "--backend", arguments.backend, *layers]


# ---- Answers

def write_answers_log(arguments, path):
    """Requests of the log with one of four beginnings of 256 tokens in front, in the native form."""
    block, beginning = 16, 16
    with open(CONVERSATION, encoding="utf-8") as log, open(path, "w", encoding="utf-8") as out:
        header = {"dsv4_trace": 1, "block_tokens": block, "prefix_identity": "global", "session_turns": "full",
                  "arrivals_ordered": 1, "lengths_estimated": 0, "source_format": "mooncake"}
        out.write(json.dumps(header) + "\n")
        for number, line in enumerate(log):
            if number == arguments.answers:
                break
            request = json.loads(line)
            first = [10**6 * (1 + number % 4) + part for part in range(beginning)]
            tokens = max(1, request["input_length"] * block // 512)
            out.write(json.dumps({"timestamp": request["timestamp"], "input_length": beginning * block + tokens,
                                  "output_length": request["output_length"] // 16,
                                  "hash_ids": first + request["hash_ids"][:-(-tokens // block)]}) + "\n")


def digests(path):
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line)["metadata"] for line in file]
    return {line["session_num"]: line.get("output_sha256", line["outcome"]) for line in lines}


def check_answers(arguments):
    log = arguments.out / "answers.jsonl"
    write_answers_log(arguments, log)
    shared = ["replay", log, *engine_flags(arguments), "--max-context", "8192", "--pool-tokens", "8192",
              "--step-tokens", "2048"]
    crowded = ["--concurrency", "32", "--max-sequences", "32", "--reserve", "prompt", "--draft", "2", "--accept", "0.6",
               "--prefix-interval", "128", "--prefix-states", "64"]
    well = True
    results = {}
    runs = {"recompute": [*crowded, "--preempt", "recompute"], "snapshot": [*crowded, "--preempt", "snapshot"],
            "alone": ["--concurrency", "1", "--max-sequences", "1", "--prefix-states", "0"]}
    for name, flags in runs.items():
        requests, report = arguments.out / f"answers_{name}.jsonl", arguments.out / f"answers_{name}.json"
        run(arguments, arguments.program, *shared, *flags, "--requests", requests, "--json", report)
        results[name] = digests(requests)
        summary = json.loads(report.read_text())["run"]
        counts = {"finished": summary["requests"]["finished"], "hit tokens": summary["tokens"]["hit"],
                  "preemptions": summary["requests"]["preemptions"],
                  "by snapshot": summary["requests"]["preemptions_by_snapshot"],
                  "drafts accepted": summary["tokens"]["drafts_accepted"], "captured": summary["steps"]["captured"],
                  "eager": summary["steps"]["eager"], "sha256": summary["outputs"]["sha256"]}
        print(name, json.dumps(counts), flush=True)
        if name != "alone":
            needed = ["hit tokens", "preemptions", "drafts accepted"] + (["by snapshot"] if name == "snapshot" else [])
            needed += ["captured"] if arguments.backend == "cuda" else []
            missing = [key for key in needed if counts[key] == 0]
            well = well and not missing
            if missing:
                print(f"{name}: nothing of {', '.join(missing)}")
    for name in ("recompute", "snapshot"):
        equal = sum(results[name].get(number) == digest for number, digest in results["alone"].items())
        well = well and equal == len(results["alone"]) == arguments.answers
        print(f"answers, {name}: {equal} of {len(results['alone'])} as alone", flush=True)
    return well


# ---- Model and real

def serving_flags(arguments):
    return ["replay", CONVERSATION, "--limit", arguments.requests, "--scale-lengths", arguments.scale, "--jitter", "3000",
            "--max-context", "65536", "--pool-tokens", "1M", "--max-sequences", "32", "--step-tokens", "2048",
            "--prefix-interval", "512", "--prefix-states", "512"]


def measure_table(arguments):
    run(arguments, arguments.program, "bench", "--checkpoint", arguments.checkpoint, "--backend", arguments.backend,
        "--step-table", arguments.step_table, "--revision", arguments.revision, "--whole-step", arguments.decode,
        "--whole-prefill", arguments.prefill)
    return True


def compare(arguments):
    reports = {}
    for name, flags in (("real", [*engine_flags(arguments), "--no-digests"]),
                        ("model", ["--execute", "model", "--config", arguments.config, "--step-table",
                                   arguments.step_table])):
        report = arguments.out / f"{name}.json"
        run(arguments, arguments.program, *serving_flags(arguments), *flags, "--json", report, "--requests",
            arguments.out / f"{name}_requests.jsonl", "--timeline", arguments.out / f"{name}_timeline.json")
        reports[name] = json.loads(report.read_text())["run"]
    real, model = reports["real"], reports["model"]
    print(f"{'':24}{'real':>12}{'model':>12}{'model/real - 1':>16}")
    worst = 0.0
    for metric in ("ttft", "tpot", "itl", "e2el"):
        for statistic in ("mean", "p50", "p90", "p99"):
            a, b = real["latency_ms"][metric][statistic], model["latency_ms"][metric][statistic]
            print(f"{metric + ' ' + statistic + ', ms':24}{a:12.3f}{b:12.3f}{b / a - 1:16.1%}")
            if metric in ("ttft", "tpot") and statistic in ("p50", "p99"):
                worst = max(worst, abs(b / a - 1))
    for name, of in (("steps", lambda run_: run_["steps"]["count"]), ("busy ms", lambda run_: run_["steps"]["busy_ms"]),
                     ("hit tokens", lambda run_: run_["tokens"]["hit"])):
        print(f"{name:24}{of(real):12.0f}{of(model):12.0f}{of(model) / max(of(real), 1) - 1:16.1%}")
    print(f"graphs made while it ran: {real['steps']['graph_captures']}, extrapolated: {model['steps']['extrapolated']}")
    print(f"p50 and p99 of TTFT and TPOT: at most {worst:.1%} apart, allowed {arguments.tolerance:.0%}", flush=True)
    return worst <= arguments.tolerance


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True, help="dsv4rt, built with CUDA")
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True)
    parser.add_argument("--config", type=pathlib.Path, default=FOLDER / "configs/deepseek-v4-flash.json")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for everything that is written")
    parser.add_argument("--parts", default="table,model,answers")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--layers", default="", help="A-B: fewer layers, for answers")
    parser.add_argument("--step-table", type=pathlib.Path, help="default: the one that part table writes")
    parser.add_argument("--revision", default="")
    parser.add_argument("--decode", default=DECODE)
    parser.add_argument("--prefill", default=PREFILL)
    parser.add_argument("--answers", type=int, default=500)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--scale", default="0.25", help="lengths of the 200 requests times this")
    parser.add_argument("--tolerance", type=float, default=0.1)
    parser.add_argument("--limit", type=float, default=600, help="most seconds of a run")
    arguments = parser.parse_args()
    arguments.program = arguments.program.resolve()  # "./dsv4rt" as a path is "dsv4rt", which would be looked up
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.step_table = arguments.step_table or arguments.out / "table.json"
    parts = {"table": measure_table, "model": compare, "answers": check_answers}
    results = {}
    for part in arguments.parts.split(","):
        if part not in parts:
            parser.error(f"--parts: '{part}'; accepted: {', '.join(parts)}")
        results[part] = parts[part](arguments)
    for part, well in results.items():
        print(f"{part}: {'ok' if well else 'FAILED'}")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
