"""Machine code of one kernel, as cuobjdump lists it, for the tests of the scripts that read it."""


def listing_of(*instructions):
    """Each of 16 bytes, from address 0 on, by its text."""
    lines = ["\t\tFunction : kernel"]
    lines += [f"        /*{16 * i:04x}*/  {text} ;  /* 0x0000000000000000 */" for i, text in enumerate(instructions)]
    return "\n".join(lines)
