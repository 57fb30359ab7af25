"""Machine code of one kernel, as cuobjdump lists it, for the tests of the scripts that read it."""
import os
import tempfile


def listing_of(*instructions):
    """Each of 16 bytes, from address 0 on, by its text."""
    lines = ["\t\tFunction : kernel"]
    lines += [f"        /*{16 * i:04x}*/  {text} ;  /* 0x0000000000000000 */" for i, text in enumerate(instructions)]
    return "\n".join(lines)


def report_of(report_file, least, *instructions):
    """What a script that finds places says of the kernel; report_file(least, cuobjdump, file)."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.sass")
        with open(path, "w", encoding="utf-8") as file:
            file.write(listing_of(*instructions))
        return report_file(least, None, path)
