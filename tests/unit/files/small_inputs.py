"""What the fault tests of commands read: a small checkpoint and a trace."""


def make_small_inputs(run, config, folder):
    """Makes folder/ck (layers 0-2) and folder/t.st (layers 0-1); `run(arguments, folder)` runs a command there."""
    for arguments in (("gen-checkpoint", "--config", config, "--layers", "0-2", "--out", "ck"),
                      ("gen-trace", "--config", config, "--layers", "0-1", "--out", "t.st", "--prefill", "6",
                       "--decode", "1")):
        made = run(arguments, folder)
        assert made.returncode == 0, made.stderr
