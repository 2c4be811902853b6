// The page of a device: live signal, one window to label, the last windows. Text only enters by textContent.
"use strict";
(() => {
  const SPAN_S = 10;
  const HEIGHT = 130;
  const MOST = 4000;
  const byId = (id) => document.getElementById(id);
  const csrf = document.querySelector("meta[name=csrf]").content;
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const make = (tag, text, parent) => {
    const one = document.createElement(tag);
    if (text !== undefined) one.textContent = text;
    parent?.append(one);
    return one;
  };

  const ask = async (request) => {
    const answer = await fetch("/api/ask", {
      method: "POST", credentials: "same-origin", body: JSON.stringify(request),
      headers: { "content-type": "application/json", "x-csrf-token": csrf },
    });
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    return found.ok;
  };
  const say = (words) => { byId("said").textContent = words; };
  const trouble = (words) => { byId("trouble").textContent = words; byId("trouble").hidden = !words; };

  const plots = new Map();
  const plot = (parent, channels) => {
    const figure = make("figure", undefined, parent);
    figure.setAttribute("aria-hidden", "true");
    const axis = { stroke: style("--soft"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
    const series = Array.from({ length: channels }, (_, i) => ({ stroke: style(`--plot-${i % 6}`), width: 1.5 }));
    const drawn = new uPlot({
      width: parent.clientWidth, height: HEIGHT, legend: { show: false }, cursor: { show: false },
      scales: { x: { time: false } }, axes: [axis, { ...axis, size: 48 }], series: [{}, ...series],
    }, [[], ...series.map(() => [])], figure);
    plots.set(parent, drawn);
    return drawn;
  };
  let resizing = 0;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => {
      for (const [parent, drawn] of plots) {
        if (parent.isConnected) drawn.setSize({ width: parent.clientWidth, height: HEIGHT });
        else plots.delete(parent);
      }
    }, 100);
  });

  // The live signal: the last seconds of each sensor.
  const sensors = new Map();
  const sensor = (name, channels) => {
    const known = sensors.get(name);
    if (known && known.values?.length === channels) return known;
    known?.part.remove();
    const part = make("div", undefined, byId("sensors"));
    const head = make("h3", name, part);
    const quality = make("span", "", head);
    const one = { part, quality, t: [], values: Array.from({ length: channels }, () => []), plot: plot(part, channels) };
    sensors.set(name, one);
    return one;
  };
  // Images, vectors and texts: the newest one.
  const draw = (part, name, { picture, values, ngrams }) => {
    if (values) {
      const drawn = plots.get(part) ?? plot(part, 1);
      drawn.setData([values.map((_, i) => i), values]);
      return;
    }
    if (!picture) {
      (part.querySelector("p") ?? make("p", "", part)).textContent = `a text of ${ngrams} n-grams`;
      return;
    }
    const { width, height, channels, data } = picture;
    const canvas = part.querySelector("canvas") ?? make("canvas", undefined, part);
    Object.assign(canvas, { width, height });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `image of ${name}`);
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    const image = new ImageData(width, height);
    for (let i = 0; i < width * height; i += 1) {
      for (let c = 0; c < 3; c += 1) image.data[4 * i + c] = bytes[channels * i + (channels === 3 ? c : 0)];
      image.data[4 * i + 3] = 255;
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  };
  const newestFrame = (name, view) => {
    let one = sensors.get(name);
    if (!one || one.values) {
      one?.part.remove();
      const part = make("div", undefined, byId("sensors"));
      one = { part, quality: make("span", "", make("h3", name, part)) };
      sensors.set(name, one);
    }
    draw(one.part, name, view);
  };
  const feed = (name, { t, v, ...view }) => {
    if (!v) { newestFrame(name, view); return; }
    const one = sensor(name, v.length);
    if (t.length && one.t.length && t[0] < one.t[one.t.length - 1]) { // the clock went back, or a replay began again
      one.t = [];
      one.values = one.values.map(() => []);
    }
    one.t.push(...t);
    v.forEach((values, i) => one.values[i].push(...values));
    const end = one.t[one.t.length - 1];
    let first = one.t.findIndex((at) => at >= end - SPAN_S);
    first = Math.max(first, one.t.length - MOST);
    one.t = one.t.slice(first);
    one.values = one.values.map((values) => values.slice(first));
    one.plot.setData([one.t.map((at) => at - end), ...one.values]);
  };
  const judge = (window) => {
    for (const [name, one] of sensors) {
      const found = window.quality[name];
      const words = !found ? "missing" : found.reasons.length ? found.reasons.join(", ") : "good";
      one.quality.textContent = found ? `${words} (${found.score.toFixed(2)})` : words;
      one.quality.className = `tag ${words === "good" ? "good" : found && found.score >= 0.5 ? "warn" : "bad"}`;
    }
  };
  const predict = (line) => {
    if (!line || !line.label) return;
    byId("prediction").textContent = line.label;
    byId("confidence").textContent = line.probabilities ? `${Math.round(100 * Math.max(...line.probabilities))} %` : "";
  };
  let source = null;
  let stale = 0;
  const connected = (state) => { byId("connection").dataset.connection = state; };
  const look = () => {
    if (source || document.hidden) return;
    source = new EventSource("/live");
    source.addEventListener("now", (event) => {
      connected("live");
      const message = JSON.parse(event.data);
      for (const [name, samples] of Object.entries(message.samples)) feed(name, samples);
      if (message.windows.length) {
        judge(message.windows[message.windows.length - 1]);
        clearTimeout(stale);
        stale = setTimeout(() => { list().catch(() => {}); if (!current) next(); }, 1500);
      }
      predict(message.prediction);
    });
    source.addEventListener("trouble", (event) => { connected("lost"); trouble(JSON.parse(event.data).error); });
    source.addEventListener("open", () => trouble(""));
    source.addEventListener("error", () => connected("lost"));
  };
  document.addEventListener("visibilitychange", () => { // a page that nobody sees costs the device nothing
    if (document.hidden) { source?.close(); source = null; } else look();
  });

  // One window to label.
  let labels = [];
  let current = null;
  let last = null;
  let busy = false;
  const when = (at) => at === null ? "" : at > 86400 ? new Date(1000 * at).toLocaleTimeString() : `${at.toFixed(1)} s`;
  const setLabels = (given) => {
    if (given.join("\n") === labels.join("\n")) return;
    labels = given;
    byId("classes").replaceChildren(...labels.map((label, i) => {
      const button = make("button", `${label} `);
      button.type = "button";
      if (i < 9) make("kbd", String(i + 1), button);
      button.addEventListener("click", () => give(i));
      return button;
    }));
  };
  const clearPlots = () => {
    for (const part of byId("ask-plots").children) { plots.get(part)?.destroy(); plots.delete(part); }
    byId("ask-plots").replaceChildren();
  };
  const show = async (window) => {
    current = window;
    const said = window.prediction ? `, the model says ${window.prediction.label}` : "";
    byId("ask-what").textContent = `Window ${window.window}, ${when(window.at)}${window.reason ? `: ${window.reason}` : said}`;
    const found = await ask({ do: "show", window: window.window });
    if (current !== window) return;
    clearPlots();
    for (const [name, { v, step_s: step, ...view }] of Object.entries(found.signal)) {
      const part = make("div", undefined, byId("ask-plots"));
      make("h3", name, part);
      if (!v) draw(part, name, view);
      else plot(part, v.length).setData([v[0].map((_, i) => i * step), ...v]);
    }
  };
  const next = async () => {
    const found = await ask({ do: "propose", count: 1 });
    setLabels(found.labels);
    if (found.windows.length) await show(found.windows[0]);
    else { current = null; byId("ask-what").textContent = "No window without a label is worth asking for now."; clearPlots(); }
  };
  const list = async () => {
    const found = await ask({ do: "windows", count: 12 });
    setLabels(found.labels);
    byId("windows").replaceChildren(...found.windows.map((window) => {
      const row = make("tr");
      const cell = (name, text) => { const one = make("td", text, row); one.dataset.label = name; return one; };
      const said = window.prediction;
      cell("Window", window.window.split("-")[0]);
      cell("Start", when(window.at));
      cell("Label", window.label ?? "");
      cell("Prediction", said ? `${said.label} ${Math.round(100 * said.confidence)} %` : "");
      cell("Quality", Object.entries(window.quality).map(([name, score]) => `${name} ${score.toFixed(2)}`).join(", "));
      const button = make("button", window.label ? "Correct" : "Label", cell("Change"));
      button.type = "button";
      button.setAttribute("aria-label", `${button.textContent} window ${window.window.split("-")[0]}`);
      button.addEventListener("click", () => act(() => show(window), true));
      return row;
    }));
    return found.windows;
  };
  const act = async (work, quiet) => {
    if (busy) return;
    busy = true;
    try { await work(); if (!quiet) { await list(); } } catch (error) { say(error.message); } finally { busy = false; }
  };
  const give = (i) => act(async () => {
    if (!current || i >= labels.length) return;
    const given = await ask({ do: "label", window: current.window, label: labels[i], by: "page" });
    last = given.window;
    say(`Window ${given.window.split("-")[0]} is labelled ${given.label}: it is on the disk.`);
    await next();
  });
  const undo = () => act(async () => {
    const taken = await ask(last ? { do: "undo", window: last } : { do: "undo" });
    last = null;
    say(`Undone: window ${taken.window.split("-")[0]} has ${taken.label ? `the label ${taken.label}` : "no label"} again.`);
    const found = await ask({ do: "windows", count: 100 });
    const back = found.windows.find((one) => one.window === taken.window);
    if (back) await show(back);
  });
  const skip = () => act(async () => {
    if (!current) return;
    await ask({ do: "skip", window: current.window });
    say(`Window ${current.window.split("-")[0]} is not asked for again.`);
    await next();
  });
  const newest = () => act(async () => { const [first] = await list(); if (first) await show(first); }, true);
  byId("undo").addEventListener("click", undo);
  byId("skip").addEventListener("click", skip);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || event.target.closest("input, select, textarea")) return;
    if (/^[1-9]$/.test(event.key)) give(Number(event.key) - 1);
    else if (event.key === "u") undo();
    else if (event.key === "s") skip();
    else if (event.key === "n") newest();
    else return;
    event.preventDefault();
  });
  look();
  act(async () => { await next(); }).catch(() => {});
})();
