"""One operation of the API, as both sides of the wire know it: `route` of the service serves it, clients ask for it.

    @operation("lock_machine", "POST /machines/{machine_id}/lock", MachineUnknown)
    def lock(self, machine_id: str, reason: str | None = None) -> api.MachineDetail:
        \"\"\"Suspend an attested machine.\"\"\"

It reads as a route of FastAPI does: what the path names stands there, `request` is the body, and each other
parameter is a member of the query of a GET or DELETE, else of the body. What it returns, says what is answered:

    a model                             200, or 201
    … | PendingApproval                 202 where others must agree
    … | None                            204
    Annotated[Iterator[Item], Page]     one page after the other
    bytes, str, a generator of bytes    as it is

Annotations stay text until an answer is read: a listing does not wait for pydantic (docs/adr/0021).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cached_property, update_wrapper
from types import MethodType, UnionType
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    get_args,
    get_type_hints,
    overload,
)

from attestation.errors import AttestationError

P = ParamSpec("P")
A = TypeVar("A")

Error = type[AttestationError] | int
"""What an operation can end in: one of our errors, or a status of the framework."""


class Operation:
    """One operation.

    Args:
        operation_id: Its name in the OpenAPI document. Generated clients use it, so it does not change.
        line: Method and path; below `/api/v1` unless the router says otherwise.
        errors: What it can end in, beside what each operation can that the same people may ask for.
        accept: Media type of the answer.
        act: It changes something that must not happen twice, or unnoticed, unless it is a GET.
    """

    def __init__(
        self,
        operation_id: str,
        line: str,
        *errors: Error,
        accept: str = "application/json",
        act: bool = True,
    ) -> None:
        self.operation_id, self.errors, self.accept, self.act = operation_id, errors, accept, act
        self.method, self.path = line.split()

    @property
    def in_path(self) -> list[str]:
        """What the path names."""
        return re.findall(r"\{(\w+)", self.path)


class Asks(Protocol):
    """A client that asks for operations."""

    def ask(self, operation: ClientMethod[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Ask for *operation* and return what it answers."""
        ...


class ClientMethod(Operation, Generic[P, A]):
    """An operation that is a method of a client; on its class it is the operation."""

    def __init__(self, declared: Callable[..., Any], *line: Any, accept: str, act: bool) -> None:
        super().__init__(*line, accept=accept, act=act)
        self._declared = declared
        update_wrapper(self, declared)

    @cached_property
    def signature(self) -> inspect.Signature:
        """What it is asked for with; annotations are text."""
        declared = inspect.signature(self._declared)
        return declared.replace(parameters=[*declared.parameters.values()][1:])

    @property
    def is_gated(self) -> bool:
        """True where several may have to agree."""
        return any(each.rpartition(".")[2] == "PendingApproval" for each in self._returned)

    @property
    def may_be_empty(self) -> bool:
        """True where there may be nothing to answer."""
        return "None" in self._returned

    @cached_property
    def answer(self) -> Any:
        """What it answers beside a vote: a model, another type, an annotated iterator; None where nothing."""
        found = get_type_hints(self._declared, include_extras=True)["return"]
        says = get_args(found) if isinstance(found, UnionType) else (found,)
        return next((each for each in says if each.__name__ not in ("PendingApproval", "NoneType")), None)

    @property
    def _returned(self) -> list[str]:
        text: str = self.signature.return_annotation
        return text.split(" | ")

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...

    @overload
    def __get__(self, client: Asks, owner: type) -> Callable[P, A]: ...

    def __get__(self, client: Asks | None, owner: type) -> Self | Callable[P, A]:
        # As a function does it, so that editors and `help` see a method.
        return self if client is None else MethodType(self, client)

    def __call__(self, client: Asks, /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Ask for it."""
        return client.ask(self, *args, **kwargs)


def operation(
    operation_id: str, line: str, *errors: Error, accept: str = "application/json", act: bool = True
) -> Callable[[Callable[Concatenate[Any, P], A]], ClientMethod[P, A]]:
    """Declare an operation by the signature of the method that asks for it; the arguments are those of `Operation`."""

    def declare(declared: Callable[Concatenate[Any, P], A]) -> ClientMethod[P, A]:
        return ClientMethod(declared, operation_id, line, *errors, accept=accept, act=act)

    return declare
