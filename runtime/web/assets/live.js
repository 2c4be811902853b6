// What htmx leaves to a page: the connection's state in words, times that count, and rows that are links.
"use strict";
(() => {
  const say = (state) => {
    for (const one of document.querySelectorAll("[data-connection]")) one.dataset.connection = state;
  };
  document.addEventListener("htmx:sseOpen", () => say("live"));
  document.addEventListener("htmx:sseError", () => say("lost"));
  document.addEventListener("htmx:sseClose", () => say("lost"));

  // A live region is not fetched while somebody uses a form in it: what was typed would be lost.
  document.addEventListener("htmx:beforeRequest", (event) => {
    const region = event.detail.elt;
    if (region.id === "live" && region.querySelector("form:focus-within, dialog[open], details[open] form")) event.preventDefault();
  });

  const span = (seconds) => {
    const s = Math.max(0, Math.round(seconds));
    if (s < 90) return `${s} s`;
    if (s < 5400) return `${Math.round(s / 60)} min`;
    if (s < 129600) return `${Math.round(s / 3600)} h`;
    return `${Math.round(s / 86400)} d`;
  };
  // <time data-at="UNIX" data-rel>: how long ago, or in how long; the server's text stays without JavaScript.
  const count = () => {
    const now = Date.now() / 1000;
    for (const one of document.querySelectorAll("time[data-rel]")) {
      const at = Number(one.dataset.at);
      const text = at > now ? `in ${span(at - now)}` : `${span(now - at)} ago`;
      if (one.textContent !== text) one.textContent = text;
    }
  };
  setInterval(count, 1000);
  document.addEventListener("htmx:load", count);

  // <figure data-plot='{"x": [...], "series": [{"name", "values"}], "label"}'>: drawn by uPlot where it is loaded.
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const draw = (figure) => {
    if (!window.uPlot || !figure.clientWidth) return;
    const given = JSON.parse(figure.dataset.plot);
    figure.plot?.destroy();
    const axis = { stroke: style("--soft"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
    const series = given.series.map((one, i) => ({
      label: one.name, stroke: style(`--plot-${i % 6}`), width: 2, spanGaps: true, points: { size: 5 },
    }));
    figure.plot = new uPlot({
      width: figure.clientWidth, height: 240, scales: { x: { time: Boolean(given.time) } },
      axes: [{ ...axis, label: given.label, labelSize: 20 }, { ...axis, size: 56 }],
      series: [{ label: given.label }, ...series],
    }, [given.x, ...given.series.map((one) => one.values)], figure);
  };
  const drawAll = (root) => {
    for (const one of root.querySelectorAll?.("figure[data-plot]") ?? []) draw(one);
  };
  document.addEventListener("htmx:load", (event) => drawAll(event.detail.elt.parentElement ?? document));
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => drawAll(document), 150);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(document));
})();
