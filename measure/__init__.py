"""From a running server to evidence: load, rounds, ratios, targets, report. Runs beside servers, never inside one."""
