"""All that serves an owner beside a party's host: statements, notifications, a page."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sqlfl.governance.admin_socket import Door, door_of
from sqlfl.governance.owner import Owner
from sqlfl.service.hosting import Host
from sqlfl.service.notifications import Notifier
from sqlfl.service.owner_page import OwnerPage
from sqlfl.service.settings import PartySettings

log = logging.getLogger("sqlfl.party")


@contextmanager
def owner_served(host: Host, settings: PartySettings) -> Iterator[None]:
    """Serve the owner in the block: `sqlfl owner`, and what the settings ask for, a command for
    requests that wait and a page. Raise Error where the page's port is taken.
    """
    with ExitStack() as stack:
        owner = Owner(*host.databases, coordinator=settings.coordinator)
        stack.enter_context(Door(door_of(settings.home), owner))
        if settings.notify is not None:
            assert not isinstance(settings.notify, str), "read_settings splits it"
            hidden = settings.environment()
            stack.enter_context(Notifier(owner, settings.name, settings.notify, hidden))
        if settings.page is not None:
            page = OwnerPage(settings.page, owner, settings.name, settings.home)
            stack.enter_context(page)
            log.info("its owner's page is http://127.0.0.1:%d", page.port)
        yield
