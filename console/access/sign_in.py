"""Sign-in, sign-out, and who sent a request."""

import asyncio
import re
from typing import Final

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from console.access.accounts import Accounts, form_token
from console.access.forgery import require_field
from console.open_access import LoopbackViewers
from console.ports import Role, Viewer, render
from coordinator.accounts.people import PersonRow
from coordinator.accounts.sessions import SESSION_S, ConsoleSession
from coordinator.identity.http_api.rate_limit import Throttle
from coordinator.identity.person_certificates import PersonCertificates
from protocol.errors import Refused
from runtime.text import peer_of
from runtime.web.security import read_form

log = structlog.get_logger(__name__)
SIGN_IN: Final = "/sign-in"
_COOKIE: Final = "lichen_console"
_OWN_PATH: Final = re.compile(r"/(?![/\\])[A-Za-z0-9\-._~!$&'()*+,;=:@%/?]{0,1000}")
_MAX_FORM: Final = 4096
_PROXIED: Final = ("forwarded", "x-forwarded-for", "via")


class SessionAccess:
    """People with a session; without any person, also viewers of this machine.

    Args:
        accounts: people, links and sessions.
        tls: whether browsers reach the console by TLS: cookies are then never sent without it.
        open_viewing: whether this machine's users may look while nobody was admitted.
        certificates: reads those of people; None: this console has no TLS, or the fleet no authority.
    """

    sign_in = SIGN_IN

    def __init__(
        self,
        accounts: Accounts,
        *,
        tls: bool,
        open_viewing: bool,
        certificates: PersonCertificates | None = None,
    ) -> None:
        self._accounts = accounts
        self._tls = tls
        self.cookie = f"__Host-{_COOKIE}" if tls else _COOKIE
        self._certificates = certificates
        self._open = LoopbackViewers() if open_viewing else None
        self._attempts = Throttle(rate=0.2, burst=20.0, total_rate=20.0, total_burst=200.0)
        self.routes: tuple[BaseRoute, ...] = (
            Route(SIGN_IN, self._page, methods=["GET"]),
            Route(SIGN_IN, self._by_link, methods=["POST"]),
            Route(f"{SIGN_IN}/certificate", self._by_certificate, methods=["POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
        )

    async def who(self, request: HTTPConnection) -> Viewer | None:
        """See :class:`console.ports.Access`."""
        cookie = request.cookies.get(self.cookie, "")
        session = await asyncio.to_thread(self._accounts.session, cookie, acts=_acts(request))
        if session is not None:
            return Viewer(session.name, Role[session.role.upper()], session.how, form_token(cookie))
        if self._open is None or any(name in request.headers for name in _PROXIED):
            return None
        if await asyncio.to_thread(self._accounts.has_people):
            return None
        return await self._open.who(request)

    async def _page(self, request: Request) -> Response:
        target, token = own_path(request.query_params.get("next", "")), request.query_params.get("token", "")
        person, link, trouble = None, None, ""
        try:
            if token:
                self._count(request)
                link = await asyncio.to_thread(self._accounts.link, token)
            elif _shown(request):
                person = await self._certified(request)
        except Refused as error:
            trouble = error.words
        except HTTPException as error:
            trouble = error.detail
        return render(
            request,
            "sign_in.html",
            status=403 if trouble else 200,
            target=target,
            token=token,
            link=link,
            person=person,
            trouble=trouble,
            takes_certificates=self._certificates is not None,
            elsewhere=request.headers.get("sec-fetch-site") == "cross-site",
        )

    async def _by_link(self, request: Request) -> Response:
        self._count(request)
        form = await read_form(request, _MAX_FORM)
        try:
            cookie = await asyncio.to_thread(
                self._accounts.sign_in_by_link, form.get("token", ""), self._before(request), _peer(request)
            )
        except Refused as error:
            return self._not(request, error, form)
        return self._entered(request, cookie, form)

    async def _by_certificate(self, request: Request) -> Response:
        self._count(request)
        form = await read_form(request, _MAX_FORM)
        try:
            person = await self._certified(request)
            cookie = await asyncio.to_thread(
                self._accounts.sign_in_by_certificate, person, self._before(request), _peer(request)
            )
        except Refused as error:
            return self._not(request, error, form)
        return self._entered(request, cookie, form)

    async def _certified(self, request: Request) -> PersonRow:
        shown = _shown(request)
        if self._certificates is None or shown is None:
            raise HTTPException(403, "the browser showed no certificate; nobody was signed in")
        found = self._certificates.read(shown, self._accounts.wall())
        return await asyncio.to_thread(self._accounts.certified, found.name, found.serial)

    async def _sign_out(self, request: Request) -> Response:
        form, cookie = await read_form(request, _MAX_FORM), self._before(request)
        session: ConsoleSession | None = await asyncio.to_thread(self._accounts.session, cookie, acts=False)
        if session is not None:
            name, role = session.name, Role[session.role.upper()]
            require_field(form, Viewer(name, role, session.how, form_token(cookie)))
            await asyncio.to_thread(self._accounts.sign_out, cookie, session)
        answer = RedirectResponse(SIGN_IN, 303)
        answer.delete_cookie(self.cookie, path="/", secure=self._tls, httponly=True, samesite="strict")
        return answer

    def _before(self, request: Request) -> str:
        return request.cookies.get(self.cookie, "")

    def _count(self, request: Request) -> None:
        now = asyncio.get_running_loop().time()
        if wait := self._attempts.wait_s(peer_of(_peer(request)), now):
            words = f"too many attempts to sign in from this address; try again in {wait:.0f} s"
            raise HTTPException(429, words, {"retry-after": f"{wait + 1:.0f}"})

    def _not(self, request: Request, error: Refused, form: dict[str, str]) -> Response:
        log.warning("not_signed_in", peer=_peer(request), why=error.reason.value)
        values = {"target": own_path(form.get("next", "")), "token": "", "link": None, "person": None}
        has = self._certificates is not None
        return render(
            request,
            "sign_in.html",
            status=403,
            trouble=error.words,
            takes_certificates=has,
            elsewhere=False,
            **values,
        )

    def _entered(self, request: Request, cookie: str, form: dict[str, str]) -> Response:
        log.info("signed_in", peer=_peer(request))
        answer = RedirectResponse(own_path(form.get("next", "")), 303)
        answer.set_cookie(
            self.cookie,
            cookie,
            max_age=int(SESSION_S),
            path="/",
            secure=self._tls,
            httponly=True,
            samesite="strict",
        )
        return answer


def own_path(text: str) -> str:
    """A path of this server, as it was given; the first page for anything else."""
    return text if _OWN_PATH.fullmatch(text) and not text.startswith(SIGN_IN) else "/"


def _shown(request: HTTPConnection) -> bytes | None:
    found: bytes | None = getattr(request.state, "peer_certificate", None)
    return found


def _peer(request: HTTPConnection) -> str:
    return request.client.host if request.client is not None else "unknown"


def _acts(request: HTTPConnection) -> bool:
    """Whether the person did something: a page that updates itself, or hears of changes, does not count."""
    if request.scope["method"] not in {"GET", "HEAD"}:
        return True
    return "hx-request" not in request.headers and request.headers.get("accept") != "text/event-stream"
