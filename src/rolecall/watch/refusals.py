"""Declares why the server cannot answer a question, each with its HTTP status."""

from __future__ import annotations


class Unanswerable(Exception):
    """A question that is answered with a status and a sentence."""

    status = 400


class UnknownNameError(Unanswerable):
    """Nothing has the name that a link asks for."""

    status = 404


class ForbiddenError(Unanswerable):
    """This server does not do that."""

    status = 403


class BusyError(Unanswerable):
    """Something else has to end first."""

    status = 409
