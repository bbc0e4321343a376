"""What a night ends with: at most 15 lines for mail or chat, the worst first. Beside scripts/nightly."""
from pathlib import Path

MOST_LINES, MOST_NAMED, MOST_LETTERS = 15, 4, 300


def summarize(facts, before, directory, commit):
    """The facts of a night beside those of the night before (None: there is none): lines, and whether something is wrong."""
    problems = facts["problems"]
    tests, earlier = facts.get("tests", {}), (before or {}).get("tests", {})
    counts = {state: sum(value == state for value in tests.values()) for state in ("passed", "failed", "skipped")}
    failing = sorted(name for name, state in tests.items() if state == "failed")
    newly_failing = [name for name in failing if earlier.get(name) != "failed"]
    newly_skipped = sorted(name for name, state in tests.items() if state == "skipped" and earlier.get(name) == "passed")
    last = [f"tests: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"] if tests else []
    regressed, improved, broken_before = [], [], []
    for name, suite in facts.get("suites", {}).items():
        cells, once = suite["cells"], (before or {}).get("suites", {}).get(name, {}).get("cells", {})
        broken = {key for key, state in cells.items() if state in ("crashed", "timeout", "diverged")}
        broken_before += [f"{name} {key}" for key in broken if once.get(key) == cells[key]]
        newly_failing += sorted(f"{name} {key} {cells[key]}" for key in broken if once.get(key) != cells[key])
        newly_skipped += [f"{name} {key}" for key, state in cells.items() if state == "skipped" and once.get(key) in ("ok", "oom")]
        states = list(cells.values())
        others = "".join(f", {states.count(state)} {state}" for state in sorted(set(states) - {"ok"}))
        said = [f"{against['summary']['regressed']} regressed, {against['summary']['improved']} improved, "
                f"{against['summary']['unclear']} unclear against {against['what']}" for against in suite["against"]]
        if "confirmed" in suite:
            beside = suite["confirmed"]
            regressed += beside["regressed"]
            said.append(f"{beside['count']} regressed of {beside['cells']} measured beside the build of {beside['night']}")
        last.append(f"{name}: {states.count('ok')} of {len(states)} cells ok{others}; "
                    + ("; ".join(said) or "nothing to compare with yet"))
        for against in suite["against"]:
            regressed += against["regressed"]
            improved += against["improved"]
    missing = [f"{name} (VRAMLAB_REQUIRE, or an earlier night)" for name in facts.get("missing", [])]
    still = [name for name in failing if name not in newly_failing] + broken_before
    lines = named("problem", problems) + named("not updated", [facts["not_updated"]] if "not_updated" in facts else [])
    lines += named("missing", missing) + named("newly failing", newly_failing) + named("newly skipped", newly_skipped)
    lines += named("regressed", unique(regressed)) + named("improved", unique(improved)) + named("still failing", still)
    lines += named("warning", facts["warnings"]) + last
    verdict = "BROKEN" if problems else "FAILED" if newly_failing or still else "REGRESSED" if regressed else \
        "LESS IS TESTED" if newly_skipped or missing else "NOT UPDATED" if "not_updated" in facts else "all is well"
    title = f"vramlab nightly {facts['night']}: {verdict} ({facts['host']}{', ' + commit if commit else ''})"
    reports = [Path(suite["store"]) / "report.html" for suite in facts.get("suites", {}).values()]
    link = f"report: {reports[0]}" if len(reports) == 1 and not problems else f"all of it: {directory}"
    if len(lines) > MOST_LINES - 2:
        lines = [*lines[:MOST_LINES - 3], f"and {len(lines) - MOST_LINES + 3} lines more in facts.json"]
    return [title, *lines, link], verdict != "all is well"


def describe(cell, judgement):
    parts = []
    for difference in cell["differences"]:
        if difference["judgement"] != judgement:
            continue
        base, new = difference["base"], difference["new"]
        if isinstance(base, (int, float)) and isinstance(new, (int, float)):
            change = f"{new - base:+,.0f} bytes" if difference["unit"] == "bytes" else f"{100 * (new / base - 1):+.1f} %" if base else ""
        elif difference.get("ratio"):  # of all cells, which have no time of their own
            change = f"{100 * (difference['ratio'] - 1):+.1f} %"
        else:
            change = f"{base} -> {new}"
        parts.append(f"{difference['metric']} {change}")
    return f"{cell['cell']}: {parts[0] if parts else ''}" + (f" (+{len(parts) - 1})" if len(parts) > 1 else "")


def unique(texts):
    return list(dict.fromkeys(texts))


def named(title, names):
    """A line with the first few."""
    if not names:
        return []
    more = f" (+{len(names) - MOST_NAMED})" if len(names) > MOST_NAMED else ""
    text = f"{title}: {'; '.join(names[:MOST_NAMED])}"
    return [(text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS - 3] + "...") + more]
