"""Exceptions: one class for each status of the library."""

from dsv4rt._library import ffi, lib, text


class Dsv4rtError(Exception):
    """A call that failed. Its text says what failed, why, and what is accepted.

    Unless a class says otherwise, nothing has changed.
    """

    status: int = 0


class InvalidArgumentError(Dsv4rtError, ValueError):
    """A value, shape, address or option that is not accepted."""

    status = 1


class BadInputError(Dsv4rtError):
    """A checkpoint or snapshot that is damaged, or not what it should be."""

    status = 2


class NotFoundError(Dsv4rtError):
    """A file or tensor that is not there."""

    status = 3


class UnsupportedError(Dsv4rtError):
    """Something that this build, machine or version does not do."""

    status = 4


class ResourceExhaustedError(Dsv4rtError):
    """Blocks, slots or memory are short: wait for a release, or admit less, then repeat the call."""

    status = 5


class FailedPreconditionError(Dsv4rtError):
    """A call that is right at another time: during a step, between steps, with an option that is not set."""

    status = 6


class StaleHandleError(Dsv4rtError):
    """A sequence that was released, or that belongs to another engine."""

    status = 7


class MismatchError(Dsv4rtError):
    """Two things that should be equal are not."""

    status = 8


class FaultedError(Dsv4rtError):
    """The engine is latched after a failed device or a defect: close it and create another one."""

    status = 9


class InternalError(Dsv4rtError):
    """A defect of the library; calls that follow are FaultedError."""

    status = 10


class BackendLostError(Dsv4rtError):
    """Other ranks failed or did not answer in time: close the engine."""

    status = 11


_CLASSES: dict[int, type[Dsv4rtError]] = {
    error.status: error
    for error in (InvalidArgumentError, BadInputError, NotFoundError, UnsupportedError, ResourceExhaustedError,
                  FailedPreconditionError, StaleHandleError, MismatchError, FaultedError, InternalError,
                  BackendLostError)
}


def error_of(status: int, message: str) -> Dsv4rtError:
    """The exception for a status that is not OK."""
    found = _CLASSES.get(status)
    if found is None:
        error = Dsv4rtError(f"[status {status}] {message}")
        error.status = status
        return error
    return found(message or text(lib.dsv4rt_status_name(status)))


def raise_status(status: int, handle=ffi.NULL) -> None:
    """Raises what the last call on an engine failed with."""
    if handle == ffi.NULL:
        raise FailedPreconditionError("the engine is closed")
    raise error_of(status, text(lib.dsv4rt_engine_last_error(handle)))
