"""Machines: the list of them, and one with its evidence and what can be done about it.

area       the Page that all of them belong to
listing    /machines, its export, and what is done to several at once
one        /machines/<id>: tabs
result     /machines/<id>/results/<n>: checks, PCRs, the event log
acts       what is done to one machine
export     the list in a file
patches    what it would be given, and versions of its patch
views      filters of the list that are kept under a name
"""

from attestation_web.pages.machines import acts, export, listing, one, patches, result, views
from attestation_web.pages.machines.area import page

__all__ = ["acts", "export", "listing", "one", "page", "patches", "result", "views"]
