// What htmx leaves to a page: the connection's state in words, times that count, and rows that are links.
"use strict";
(() => {
  const say = (state) => {
    for (const one of document.querySelectorAll("[data-connection]")) one.dataset.connection = state;
  };
  document.addEventListener("htmx:sseOpen", () => say("live"));
  document.addEventListener("htmx:sseError", () => say("lost"));
  document.addEventListener("htmx:sseClose", () => say("lost"));

  // The stream of events of all tabs of this browser, from the worker shared-events.js; to htmx it is an EventSource.
  let isShared = Boolean(window.SharedWorker);
  class SharedEvents extends EventTarget {
    constructor(address) {
      super();
      this.readyState = EventSource.CONNECTING;
      this.names = new Set();
      const worker = new SharedWorker(document.body.dataset.sharedEvents, "lichen-events");
      worker.onerror = () => { isShared = false; this.fail(EventSource.CLOSED); };  // the next one is no shared one
      this.port = worker.port;
      this.port.onmessage = ({ data }) => this.take(data);
      this.port.postMessage({ kind: "open", address: new URL(address, location.href).href });
      this.left = new AbortController();
      const tell = (kind) => () => this.port.postMessage({ kind });
      const { signal } = this.left;
      const timer = setInterval(tell("here"), 30000);
      signal.addEventListener("abort", () => clearInterval(timer));
      addEventListener("pagehide", tell("leave"), { signal });
      addEventListener("pageshow", (event) => { if (event.persisted) tell("here")(); }, { signal });
      document.addEventListener("visibilitychange", () => { if (!document.hidden) tell("here")(); }, { signal });
    }
    take({ kind, name, text, readyState }) {
      if (kind === "event") this.dispatchEvent(new MessageEvent(name, { data: text }));
      else if (kind === "error") this.fail(readyState);
      else {
        this.readyState = EventSource.OPEN;
        this.onopen?.(new Event("open"));
      }
    }
    fail(readyState) {
      this.readyState = readyState;
      if (readyState === EventSource.CLOSED) this.close();
      this.onerror?.(new Event("error"));
    }
    addEventListener(name, ...rest) {
      super.addEventListener(name, ...rest);
      if (this.names.has(name)) return;
      this.names.add(name);
      this.port.postMessage({ kind: "hear", name });
    }
    close() {
      this.readyState = EventSource.CLOSED;
      this.left.abort();
      this.port.postMessage({ kind: "leave" });
      this.port.close();
    }
  }
  htmx.createEventSource = (address) => (isShared ? new SharedEvents(address) : new EventSource(address));

  // A live region is not fetched while somebody uses a form in it: what was typed would be lost.
  document.addEventListener("htmx:beforeRequest", (event) => {
    const region = event.detail.elt;
    if (region.id === "live" && region.querySelector("form:focus-within, dialog[open], details[open] form")) event.preventDefault();
  });

  // Forms of actions (details.act): the answer is shown also if it is a refusal, and the page is fetched again.
  const again = () => { const live = document.getElementById("live"); if (live) htmx.trigger(live, "again"); };
  const close = (act) => { act.open = false; act.querySelector("summary").focus(); };
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id === "answers" && event.detail.xhr.status !== 401) event.detail.shouldSwap = true;
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    const act = event.detail.elt.closest?.("details.act");
    if (!act || !event.detail.xhr?.status) return;
    act.open = false;
    document.querySelector("#answers > *")?.focus();
  });
  document.addEventListener("htmx:sendError", (event) => {
    const answers = document.getElementById("answers");
    if (!answers || !event.detail.elt.closest?.("details.act")) return;
    answers.innerHTML = '<div class="banner bad" tabindex="-1"><strong>Not known</strong>The console did not answer. Load the page again to see whether it was done.</div>';
    answers.firstChild.focus();
  });
  document.addEventListener("toggle", (event) => {
    if (event.target.matches?.("details.act") && !event.target.open) again();
  }, true);
  document.addEventListener("click", (event) => {
    if (event.target.matches("[data-close]")) close(event.target.closest("details"));
    if (event.target.matches("[data-dismiss]")) event.target.parentElement.remove();
    for (const one of document.querySelectorAll("details.switch[open]")) if (!one.contains(event.target)) one.open = false;
  });
  document.addEventListener("keydown", (event) => {
    const open = event.key === "Escape" && event.target.closest("details.act[open], details.switch[open]");
    if (open) close(open);
  });

  const span = (seconds) => {
    const s = Math.max(0, Math.round(seconds));
    if (s < 90) return `${s} s`;
    if (s < 5400) return `${Math.round(s / 60)} min`;
    if (s < 129600) return `${Math.round(s / 3600)} h`;
    return `${Math.round(s / 86400)} d`;
  };
  // <time data-at="UNIX" data-rel>: how long ago, or in how long; the server's text stays without JavaScript.
  const count = (root, now = Date.now() / 1000) => {
    for (const one of root.querySelectorAll("time[data-rel]")) {
      const at = Number(one.dataset.at);
      const text = at > now ? `in ${span(at - now)}` : `${span(now - at)} ago`;
      if (one.textContent !== text) one.textContent = text;
    }
  };
  setInterval(() => count(document), 1000);
  document.addEventListener("htmx:load", () => count(document));

  // <figure data-plot='{"x": [...], "series": [{"name", "values"}], "label", "height", "min", "max", "time"}'>: drawn by
  // uPlot where it is loaded. time: x is in Unix seconds.
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const two = (number) => String(number).padStart(2, "0");
  const day = (at) => `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const hour = (at) => `${two(at.getHours())}:${two(at.getMinutes())}`;
  const ticks = (_plot, splits) => {
    const long = splits.length > 1 && splits.at(-1) - splits[0] > 172800;
    return splits.map((one) => (long ? day : hour)(new Date(one * 1000)));
  };
  const draw = (figure, again) => {
    if (!window.uPlot || !figure.clientWidth) return;
    const key = `${figure.clientWidth} ${figure.dataset.plot}`;
    if (figure.drawn === key && !again) return;
    figure.drawn = key;
    const given = JSON.parse(figure.dataset.plot);
    figure.plot?.destroy();
    const shown = (value) => (value == null ? "–" : String(Number(value.toPrecision(4))));
    const axis = { stroke: style("--soft"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
    const at = (_plot, one) => { const when = new Date((one ?? given.x.at(-1)) * 1000); return `${day(when)} ${hour(when)}`; };
    const series = given.series.map((one, i) => ({
      label: one.name, stroke: style(`--plot-${i % 6}`), width: 2, spanGaps: true, dash: one.dashed ? [6, 5] : undefined,
      points: { show: given.x.length < 30 && !one.dashed, size: 5 },
      value: (_, value) => shown(value ?? one.values.findLast((known) => known != null)),
    }));
    const bounds = given.min == null ? {} : { range: (_, low, high) => [Math.min(given.min, low ?? 0), Math.max(given.max, high ?? 1)] };
    const whole = given.fraction ? {} : { values: (_, splits) => splits.map((one) => (Number.isInteger(one) ? one : "")) };
    const along = given.time ? { values: ticks, space: 64 } : { ...whole, label: given.label, labelSize: 20 };
    figure.plot = new uPlot({
      width: figure.clientWidth, height: given.height ?? 240, scales: { x: { time: Boolean(given.time) }, y: bounds },
      axes: [{ ...axis, ...along }, { ...axis, size: (_, texts) => 26 + 7 * Math.max(2, ...(texts ?? []).map((one) => String(one).length)) }],
      series: [{ label: given.label, value: given.time ? at : (_, value) => shown(value ?? given.x.at(-1)) }, ...series], cursor: { drag: { x: false, y: false } },
    }, [given.x, ...given.series.map((one) => one.values)], figure);
  };
  const drawAll = (root, again) => {
    for (const one of root.querySelectorAll?.("figure[data-plot]") ?? []) draw(one, again);
  };
  document.addEventListener("htmx:load", (event) => drawAll(event.detail.elt.parentElement ?? document));

  // hx-swap="live": what is the same in the new content of a region stays as it is, with its focus and its plots.
  // htmx's own swap sends two events for each element that goes, which takes most of the time of a long table.
  const ASKS = "[hx-get], [hx-post], [hx-trigger]";
  const WHOLE = `tr, ${ASKS}`;  // replaced as one if anything in it is another one
  const alike = (a, b) => a.nodeType === 1 && a.nodeName === b.nodeName && a.id === b.id && !a.matches(WHOLE);
  const adapt = (old, now, fresh) => {
    for (const { name } of [...old.attributes]) if (!now.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const before = [...old.childNodes], after = [...now.childNodes];
    const stays = (a, b) => {
      if (a.isEqualNode(b)) return true;
      if (!alike(a, b)) return false;
      adapt(a, b, fresh);
      return true;
    };
    let first = 0, last = before.length, end = after.length;
    while (first < last && first < end && stays(before[first], after[first])) first += 1;
    while (last > first && end > first && stays(before[last - 1], after[end - 1])) { last -= 1; end -= 1; }
    const next = before[last] ?? null, added = after.slice(first, end);
    for (const one of before.slice(first, last)) one.remove();
    for (const one of added) {
      old.insertBefore(one, next);
      if (one.nodeType === 1) fresh.push(one);
    }
  };
  const REGION = ["hx-trigger", "hx-get", "hx-swap", "hx-select"];
  htmx.defineExtension("live-region", {
    handleSwap: (style, target, fragment, settling) => {
      const now = fragment.firstElementChild;
      if (style !== "live") return false;
      if (!now) return [];
      const seconds = Date.now() / 1000;  // else each row with a time that counts would be another one
      count(target, seconds);
      count(fragment, seconds);
      if (now.id !== target.id || REGION.some((name) => now.getAttribute(name) !== target.getAttribute(name))) {
        target.replaceWith(now);
        settling.elts.push(now);
        return [now];
      }
      const fresh = [];
      adapt(target, now, fresh);
      settling.elts.push(target);
      settling.tasks.push(() => {
        for (const one of fresh) if (one.matches(ASKS) || one.querySelector(ASKS)) htmx.process(one);
        drawAll(target);
      });
      return [];
    },
  });

  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => drawAll(document), 150);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(document, true));
})();
